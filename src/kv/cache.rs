//! Where pages lie on the device: per layer one K and one V tensor for each slab of its group.

use super::{PAGE_SIZE, PageGeometry, PageGroup, PageId, SPLIT_PAGES};
use crate::error::{Error, Result};
use crate::gpu::{DType, Gpu, Part, Tensor, Variant};
use crate::wgsl;
use half::slice::HalfFloatSliceExt;

/// How cached keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// f16, rounded to nearest: half the memory, and the default.
    #[default]
    F16,
    /// f32, as computed: for comparisons.
    F32,
}

impl KvFormat {
    /// Every format.
    pub const ALL: [KvFormat; 2] = [KvFormat::F16, KvFormat::F32];

    /// The word of `--cache-type-k` and `--cache-type-v`.
    pub fn name(self) -> &'static str {
        match self {
            KvFormat::F16 => "f16",
            KvFormat::F32 => "f32",
        }
    }

    /// The format called `name`.
    pub fn from_name(name: &str) -> Option<KvFormat> {
        KvFormat::ALL.into_iter().find(|f| f.name() == name)
    }

    /// The element type of its tensors.
    pub fn dtype(self) -> DType {
        match self {
            KvFormat::F16 => DType::F16,
            KvFormat::F32 => DType::F32,
        }
    }

    /// The format that has `dtype`.
    ///
    /// # Panics
    /// On types that no format has.
    pub fn of(dtype: DType) -> KvFormat {
        KvFormat::ALL
            .into_iter()
            .find(|f| f.dtype() == dtype)
            .unwrap_or_else(|| panic!("no KV format of {dtype:?}"))
    }

    /// The format of the cache that `variant` reads or writes.
    ///
    /// # Panics
    /// When it knows no cache.
    pub fn of_variant(variant: &Variant) -> KvFormat {
        let chosen = |f: &KvFormat| variant.chosen().any(|part| part == f.part());
        let found = KvFormat::ALL.into_iter().find(chosen);
        found.unwrap_or_else(|| panic!("{variant} has no cache"))
    }

    /// The elements of whole words of a tensor.
    pub fn unpack(self, words: &[u32]) -> Vec<f32> {
        match self {
            KvFormat::F32 => words.iter().map(|&w| f32::from_bits(w)).collect(),
            KvFormat::F16 => {
                let halves: &[half::f16] = bytemuck::cast_slice(words);
                let mut values = vec![0.0; halves.len()];
                halves.convert_to_f32_slice(&mut values);
                values
            }
        }
    }

    /// WGSL that defines `KvPair`, `KvOct`, and how they are packed and unpacked.
    pub fn part(self) -> &'static Part {
        static F16: Part = wgsl!("kv/f16.wgsl");
        static F32: Part = wgsl!("kv/f32.wgsl");
        match self {
            KvFormat::F16 => &F16,
            KvFormat::F32 => &F32,
        }
    }
}

/// Pages that a kernel can bind at once, of one layer.
#[derive(Clone)]
pub struct KvSlab {
    /// Its first page.
    pub first_page: PageId,
    /// How many pages it has.
    pub num_pages: usize,
    /// Keys, rotated: `[num_pages, num_kv_heads, 16, head_dim]`.
    pub k: Tensor,
    /// Values, of the same shape.
    pub v: Tensor,
}

impl KvSlab {
    /// One page of `tensor`, which is the slab's `k` or `v`: `[num_kv_heads, 16, head_dim]`.
    pub fn page(&self, tensor: &Tensor, page: PageId) -> Tensor {
        let dims = &tensor.shape()[1..];
        let bytes = Tensor::bytes_for(tensor.dtype(), dims);
        tensor.window(
            u64::from(page - self.first_page) * bytes,
            tensor.dtype(),
            dims,
        )
    }
}

/// Keys and values of all layers.
pub struct KvCache {
    groups: Vec<PageGroup>,
    /// Of each layer.
    group_of: Vec<usize>,
    format: KvFormat,
    layers: Vec<Vec<KvSlab>>,
}

impl KvCache {
    /// Bytes of one page, K and V, over so many layers: what the number of pages is computed from.
    pub fn page_bytes(layers: usize, kv_heads: usize, head_dim: usize, format: KvFormat) -> u64 {
        layers as u64 * 2 * slab_page_bytes(kv_heads, head_dim, format)
    }

    /// How `num_pages` pages are spread over slabs, none of which is over `max_binding` bytes.
    ///
    /// # Errors
    /// [`Error::DoesNotFit`] when not even the pages of one split fit a binding.
    pub fn geometry_for(
        max_binding: u64,
        kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
        num_pages: usize,
    ) -> Result<PageGeometry> {
        let page_bytes = slab_page_bytes(kv_heads, head_dim, format);
        let fitting = (max_binding / page_bytes) as usize;
        let slab_pages = fitting / SPLIT_PAGES * SPLIT_PAGES;
        if slab_pages == 0 {
            return Err(Error::DoesNotFit {
                what: format!("a split of {SPLIT_PAGES} KV pages"),
                needed_bytes: page_bytes * SPLIT_PAGES as u64,
                available_bytes: max_binding,
                advice: "it is over the largest storage binding of this adapter".to_owned(),
            });
        }
        Ok(PageGeometry::new(num_pages, slab_pages))
    }

    /// Slabs for the pages of `groups`, as [`KvCache::geometry_for`] spreads them; `group_of` is that of each
    /// layer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when the device has no room for all of them.
    pub fn allocate(
        gpu: &Gpu,
        groups: Vec<PageGroup>,
        group_of: Vec<usize>,
        kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
    ) -> Result<KvCache> {
        let slab = |geometry: &PageGeometry, slab: usize| {
            let pages = geometry.pages_of(slab);
            let dims = [pages.len(), kv_heads, PAGE_SIZE, head_dim];
            Ok(KvSlab {
                first_page: pages.start,
                num_pages: pages.len(),
                k: gpu.tensor("KV cache", format.dtype(), &dims)?,
                v: gpu.tensor("KV cache", format.dtype(), &dims)?,
            })
        };
        let layer = |&group: &usize| {
            let geometry: &PageGeometry = &groups[group].geometry;
            let slabs = 0..geometry.num_slabs();
            slabs.map(|number| slab(geometry, number)).collect()
        };
        let layers = group_of.iter().map(layer).collect::<Result<_>>()?;
        Ok(KvCache {
            groups,
            group_of,
            format,
            layers,
        })
    }

    /// The groups of layers, each with pages of its own.
    pub fn groups(&self) -> &[PageGroup] {
        &self.groups
    }

    /// The pages of a group, and their slabs: the same in every layer of it.
    pub fn geometry(&self, group: usize) -> PageGeometry {
        self.groups[group].geometry
    }

    /// The group of a layer.
    pub fn group_of(&self, layer: usize) -> usize {
        self.group_of[layer]
    }

    /// Whether the pages of some layers are in several slabs.
    pub fn has_several_slabs(&self) -> bool {
        self.groups.iter().any(|g| g.geometry.num_slabs() > 1)
    }

    /// How they are stored.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// The slabs of a layer, in the order of their pages.
    pub fn layer(&self, layer: usize) -> &[KvSlab] {
        &self.layers[layer]
    }

    /// Bytes on the device.
    pub fn size_bytes(&self) -> u64 {
        self.layers
            .iter()
            .flatten()
            .map(|slab| slab.k.size_bytes() + slab.v.size_bytes())
            .sum()
    }
}

/// Bytes of one page of K, or of V, in one layer.
fn slab_page_bytes(kv_heads: usize, head_dim: usize, format: KvFormat) -> u64 {
    Tensor::bytes_for(format.dtype(), &[kv_heads, PAGE_SIZE, head_dim])
}
