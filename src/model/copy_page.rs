//! Pages of the cache copied on the device.

use super::Decoder;
use crate::kv::pages::PageCopy;

impl Decoder {
    /// Records a copy of a page's keys and values in every layer of its group, before the step that writes to it. By
    /// way of a tensor of its own: a buffer cannot be copied within itself.
    ///
    /// # Panics
    /// When the pages are in different slabs: a page takes the place of its original within a split.
    pub fn copy_page(&mut self, copy: PageCopy) {
        let PageCopy { group, from, to } = copy;
        let slab_of = |page| self.kv.geometry(group).slab_of(page);
        let slab = slab_of(from);
        assert_eq!(slab, slab_of(to), "a copy of page {from} in page {to}");
        let between = &self.scratch.copied_page;
        let layers = 0..self.config.num_layers;
        for layer in layers.filter(|&layer| self.kv.group_of(layer) == group) {
            let slab = &self.kv.layer(layer)[slab];
            for tensor in [&slab.k, &slab.v] {
                self.recorder.copy(&slab.page(tensor, from), between);
                self.recorder.copy(between, &slab.page(tensor, to));
            }
        }
    }
}
