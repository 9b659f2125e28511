//! The cases of `rope`, and what others have that write into pages: slots, angles, pages that are judged.

use super::case::{Case, CaseTensor, Data};
use super::rope::{NORMS, QkNorm, QkNormValues, QkNormWeights, ROPE, RopeRows, record, stored};
use super::twin::endings::Exact;
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};

/// Ragged first: one head, odd head counts, head widths that are no multiple of 8; then shapes of
/// models. Slots are scattered over two slabs, and everything else in the pages must stay as it is. With
/// norms, more and fewer heads than a workgroup has, as well.
pub(super) fn cases() -> Vec<Case> {
    let shapes = [
        (1, 1, 1, 32),
        (1, 3, 1, 36),
        (3, 2, 2, 44),
        (17, 9, 3, 64),
        (5, 7, 1, 80),
        (33, 4, 2, 96),
        (16, 8, 2, 128),
        (2, 4, 1, 256),
    ];
    let many = [(3, 11, 9, 36), (1, 40, 8, 128)];
    let mut all = Vec::new();
    for norm in NORMS {
        for (seed, &shape) in shapes.iter().enumerate() {
            for format in KvFormat::ALL {
                all.push(case(seed as u64, format, norm, shape));
            }
        }
        if norm.is_some() {
            all.extend(many.map(|shape| case(9, KvFormat::F16, norm, shape)));
        }
    }
    all
}

/// Heads of models, for one token and for a chunk of a prompt.
pub(super) fn timings() -> Vec<Case> {
    let shapes = [(1, 16, 8, 128), (64, 16, 8, 128), (64, 16, 16, 128)];
    let of = |norm| shapes.map(|shape| case(1, KvFormat::F16, norm, shape));
    NORMS.into_iter().flat_map(of).collect()
}

const EPS: f32 = 1e-6;

/// Two slabs, as first page and number of pages.
const SLABS: [(u32, usize); 2] = [(4, 3), (7, 2)];

pub(super) fn case(
    seed: u64,
    format: KvFormat,
    kind: Option<QkNorm>,
    (num_tokens, num_heads, num_kv_heads, head_dim): (usize, usize, usize, usize),
) -> Case {
    let mut data = Data::new(seed);
    let width = (num_heads + 2 * num_kv_heads) * head_dim;
    let mut qkv = data.normal(num_tokens * width);
    if kind.is_some() {
        // heads of different sizes, some so small that eps counts
        for (i, head) in qkv.chunks_mut(head_dim).enumerate() {
            let size = [1.0, 1e-3, 30.0][i % 3];
            head.iter_mut().for_each(|v| *v *= size);
        }
    }
    let last = qkv.len() - 1;
    qkv[last] = 1e6; // the last value's last dim: saturates in f16
    let angles = some_angles(&mut data, num_tokens * head_dim / 2);
    let slots = some_slots(&mut data, num_tokens);
    let slots_at = 3;
    let rope_at = (slots_at + num_tokens + 2).next_multiple_of(4);
    let mut meta = vec![u32::MAX; rope_at];
    meta[slots_at..slots_at + num_tokens].copy_from_slice(&slots);
    meta.extend(angles.iter().flat_map(|&(c, s)| [c.to_bits(), s.to_bits()]));

    let norm = kind.map(|kind| QkNormValues {
        kind,
        q: data.normal(kind.weights(num_heads, head_dim)),
        k: data.normal(kind.weights(num_kv_heads, head_dim)),
        eps: EPS,
    });

    let heads = (num_heads, num_kv_heads, head_dim);
    let tokens = qkv.chunks(width).zip(angles.chunks(head_dim / 2));
    let heads_out = tokens.map(|(row, angles)| stored(row, heads, norm.as_ref(), angles));
    let (q, pages) = placed(heads_out, &slots, heads);
    let (q_values, q_bounds) = q.into_iter().unzip();
    let names = [["k0", "v0"], ["k1", "v1"]];
    let mut case = Case::new(
        &ROPE,
        format!(
            "{num_tokens} tokens {num_heads}/{num_kv_heads}x{head_dim} {}{}",
            format.name(),
            kind.map_or(String::new(), |kind| format!(" norm={kind:?}"))
        ),
    )
    .work(
        3.0 * (num_tokens * width) as f64,
        8.0 * (num_tokens * width) as f64,
    )
    .tensor(CaseTensor::f32("qkv", &[num_tokens, width], &qkv))
    .tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
    .tensor(CaseTensor::output_f32(
        "q",
        &[num_tokens, num_heads * head_dim],
        q_values,
        q_bounds,
    ));
    for (slab, expected) in pages.into_iter().enumerate() {
        for (which, expected) in expected.into_iter().enumerate() {
            let dims = [SLABS[slab].1, num_kv_heads, PAGE_SIZE, head_dim];
            case = case.tensor(pages_tensor(names[slab][which], format, dims, expected));
        }
    }
    if let Some(norm) = &norm {
        case = case
            .tensor(CaseTensor::f32("q_weight", &[norm.q.len()], &norm.q))
            .tensor(CaseTensor::f32("k_weight", &[norm.k.len()], &norm.k));
    }
    case.record(move |rec, t| {
        let norm = kind.map(|kind| QkNormWeights {
            kind,
            q: t.get("q_weight"),
            k: t.get("k_weight"),
            eps: EPS,
        });
        let slabs: Vec<KvSlab> = SLABS
            .iter()
            .zip(names)
            .map(|(&(first_page, num_pages), [k, v])| KvSlab {
                first_page,
                num_pages,
                k: t.get(k).clone(),
                v: t.get(v).clone(),
            })
            .collect();
        let rows = RopeRows { slots_at, rope_at };
        record(
            rec,
            &slabs,
            t.get("qkv"),
            num_tokens,
            t.get("step_meta"),
            rows,
            norm,
            t.get("q"),
        );
    })
}

/// Elements of the pages of each slab, keys and values, where they are written.
type Pages = [[Vec<Option<Exact>>; 2]; 2];

/// Queries as `q` must hold them, and pages, of each token's heads, by its slot.
fn placed(
    heads_out: impl Iterator<Item = Vec<Vec<Exact>>>,
    slots: &[u32],
    (num_heads, num_kv_heads, head_dim): (usize, usize, usize),
) -> (Vec<Exact>, Pages) {
    let mut q = Vec::new();
    let mut pages = SLABS.map(|(_, n)| {
        let size = n * num_kv_heads * PAGE_SIZE * head_dim;
        [vec![None; size], vec![None; size]]
    });
    for (heads, &slot) in heads_out.zip(slots) {
        for (head, x) in heads.into_iter().enumerate() {
            if head < num_heads {
                q.extend(x);
                continue;
            }
            let kv_head = (head - num_heads) % num_kv_heads;
            for (slab, &(first, n)) in SLABS.iter().enumerate() {
                let Some(page) = (slot / 16).checked_sub(first).filter(|&p| (p as usize) < n)
                else {
                    continue;
                };
                let row = (page as usize * num_kv_heads + kv_head) * PAGE_SIZE + slot as usize % 16;
                let which = usize::from(head >= num_heads + num_kv_heads);
                for (i, element) in x.iter().enumerate() {
                    pages[slab][which][row * head_dim + i] = Some(*element);
                }
            }
        }
    }
    (q, pages)
}

/// Cosines and sines of `count` angles.
pub(super) fn some_angles(data: &mut Data, count: usize) -> Vec<(f32, f32)> {
    let angle = |turn: f64| (turn * std::f64::consts::TAU).sin_cos();
    (0..count)
        .map(|_| angle(data.unit()))
        .map(|(sin, cos)| (cos as f32, sin as f32))
        .collect()
}

/// Slots in the slabs' five pages, and in a page below and one above them: those are dropped. None
/// occurs twice.
pub(super) fn some_slots(data: &mut Data, count: usize) -> Vec<u32> {
    let mut slots: Vec<u32> = (3 * 16..10 * 16).collect();
    for i in (1..slots.len()).rev() {
        slots.swap(i, data.below(i + 1));
    }
    slots.truncate(count);
    slots
}

/// Pages of which some elements are expected to be written; the others must keep what they hold.
pub(super) fn pages_tensor(
    name: &'static str,
    format: KvFormat,
    dims: [usize; 4],
    expected: Vec<Option<(f64, f64)>>,
) -> CaseTensor {
    const UNTOUCHED: u8 = 0xFD; // a NaN in either format
    let bytes = expected.len() * format.dtype().bytes() as usize;
    CaseTensor::input(name, format.dtype(), &dims, vec![UNTOUCHED; bytes]).judged(move |found| {
        for (i, expected) in expected.iter().enumerate() {
            let (value, untouched) = element(format, found, i, UNTOUCHED);
            let right = match *expected {
                None => untouched,
                Some((exact, bound)) => {
                    let (exact, stored) = match format {
                        KvFormat::F32 => (exact, 0.0),
                        // f16 keeps 11 bits; WGSL leaves open in which direction it rounds
                        KvFormat::F16 => {
                            let exact = exact.clamp(-65504.0, 65504.0);
                            (exact, exact.abs() / 1024.0 + 2f64.powi(-24))
                        }
                    };
                    (value - exact).abs() <= bound + stored
                }
            };
            if !right {
                return Err(format!("element {i} is {value:e}, expected {expected:?}"));
            }
        }
        Ok(())
    })
}

fn element(format: KvFormat, bytes: &[u8], i: usize, untouched: u8) -> (f64, bool) {
    let width = format.dtype().bytes() as usize;
    let bytes = &bytes[i * width..][..width];
    let value = match format {
        KvFormat::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        KvFormat::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f64(),
    };
    (value, bytes.iter().all(|&b| b == untouched))
}
