//! Scores of queries against the keys in their pages: the first half of attention.

use super::attention::{AttentionParams, AttentionShape, Items};
use super::attention_cases;
use super::case::Case;
use crate::gpu::recorder::grid;
use crate::gpu::{Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::wgsl;

const PARTS: &[Part] = &[
    wgsl!("lib/attention_items.wgsl"),
    wgsl!("attention_scores.wgsl"),
];

/// The kernel.
pub static ATTENTION_SCORES: Kernel = Kernel::new::<AttentionParams>("attention_scores", PARTS);

/// Workgroups that share the keys of an item, as in the shader.
const SHARES: usize = 4;

/// The CPU twin in f64, over `keys: [num_keys, head_dim]` as the device sees them: scores with their
/// factor and with log2(e), and for each the sum of magnitudes that its bound needs.
pub fn reference(q: &[f32], keys: &[f32], scale: f32) -> Vec<(f64, f64)> {
    let factor = f64::from(scale) * std::f64::consts::LOG2_E;
    super::matmul::reference(keys, q, q.len())
        .into_iter()
        .map(|(dot, abs)| (dot * factor, abs * factor.abs()))
        .collect()
}

/// Fills `scores` for `items`, all of whose pages are in `slab`, from the queries
/// `q: [.., num_heads * head_dim]`.
pub fn record(
    rec: &mut Recorder,
    shape: &AttentionShape,
    slab: &KvSlab,
    q: &Tensor,
    step_meta: &Tensor,
    items: Items,
    scores: &Tensor,
) {
    shape.check();
    assert_eq!(
        slab.k.dims(),
        [
            slab.num_pages,
            shape.num_kv_heads,
            PAGE_SIZE,
            shape.head_dim
        ],
        "shape of the slab"
    );
    let [_, width] = q.dims();
    assert_eq!(width, shape.num_heads * shape.head_dim, "columns of q");
    assert!(
        items.max_tokens <= shape.tile_tokens(),
        "items of {} tokens",
        items.max_tokens
    );
    let [x, y, _] = grid(items.count);
    rec.dispatch(
        &variant(KvFormat::of(slab.k.dtype())),
        &[
            ("q", q),
            ("step_meta", step_meta),
            ("k", &slab.k),
            ("scores", scores),
        ],
        shape.params(slab, items),
        [x, y, (shape.item_workgroups() * SHARES) as u32],
    );
}

fn variant(format: KvFormat) -> Variant {
    Variant::new(&ATTENTION_SCORES).part(format.part())
}

/// One for each way to store the cache.
pub fn variants() -> Vec<Variant> {
    KvFormat::ALL.into_iter().map(variant).collect()
}

/// See [`attention_cases`].
pub fn cases() -> Vec<Case> {
    attention_cases::scores()
}
