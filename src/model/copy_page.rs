//! Pages of the cache copied on the device.

use super::Decoder;
use crate::kv::PageId;

impl Decoder {
    /// Records a copy of a page's keys and values in every layer, before the step that writes to it. By
    /// way of a tensor of its own: a buffer cannot be copied within itself.
    ///
    /// # Panics
    /// When the pages are in different slabs: a page takes the place of its original within a split.
    pub fn copy_page(&mut self, from: PageId, to: PageId) {
        let slab_of = |page| self.kv.geometry().slab_of(page);
        let slab = slab_of(from);
        assert_eq!(slab, slab_of(to), "a copy of page {from} in page {to}");
        let between = &self.scratch.copied_page;
        for layer in 0..self.config.num_layers {
            let slab = &self.kv.layer(layer)[slab];
            for tensor in [&slab.k, &slab.v] {
                self.recorder.copy(&slab.page(tensor, from), between);
                self.recorder.copy(between, &slab.page(tensor, to));
            }
        }
    }
}
