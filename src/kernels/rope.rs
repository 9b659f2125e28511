//! Rotary position embedding (Su et al., "RoFormer", 2021) of dims `(2 i, 2 i + 1)`, and the way of K
//! and V into their pages: for caches in several slabs. Where there is one, the matmul of queries,
//! keys and values does this itself.

use super::case::{Case, CaseTensor, Data, U};
use super::twin::kv::Slab;
use super::twin::matmul::{angle_pairs, f32_pieces, floats};
use super::twin::{Effort, Piece};
use crate::error::Result;
use crate::gpu::recorder::grid;
use crate::gpu::{Call, Kernel, Part, Recorder, Tensor, Variant};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::{params, wgsl};

params! {
    /// Checked against `Params` in `shaders/rope.wgsl`.
    pub struct RopeParams {
        /// Rows of `qkv` and `q` in use.
        pub num_tokens: u32,
        /// Query heads.
        pub num_heads: u32,
        /// Key heads; as many value heads.
        pub num_kv_heads: u32,
        /// Dims of a head.
        pub head_dim: u32,
        /// Where the tokens' slots begin in the step's metadata.
        pub slots_at: u32,
        /// Where the tokens' cosines and sines begin.
        pub rope_at: u32,
        /// The slab's first page.
        pub first_page: u32,
        /// The slab's pages.
        pub num_pages: u32,
        /// 1 in the dispatch that writes `q`.
        pub write_q: u32,
    }
}

const PARTS: &[Part] = &[wgsl!("lib/rope.wgsl"), wgsl!("rope.wgsl")];

/// The kernel.
pub static ROPE: Kernel = Kernel::new::<RopeParams>("rope", PARTS);

/// How queries and keys are normalised, before they are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; a weight for each of its dims.
    Head,
    /// All heads of a token together; a weight for each of all dims.
    Whole,
}

/// Invocations of a workgroup, as in the shader.
const WG: usize = 64;

/// Where a step's tokens are described in its metadata: word indices.
#[derive(Clone, Copy, Debug)]
pub struct RopeRows {
    /// A slot (`page * 16 + offset in page`) per token.
    pub slots_at: usize,
    /// `[token][head_dim / 2][2]`: cosine and sine as f32 bits.
    pub rope_at: usize,
}

/// The CPU twin for one head `x` in f64, with `angles` as (cosine, sine): the rotated head and for
/// each element the sum of magnitudes that its bound needs.
pub fn reference(x: &[f32], angles: &[(f32, f32)]) -> (Vec<f64>, Vec<f64>) {
    (0..x.len())
        .map(|i| {
            let (cos, sin) = angles[i / 2];
            let (own, other) = (f64::from(x[i]), f64::from(x[i ^ 1]));
            let (straight, crossed) = (own * f64::from(cos), other * f64::from(sin));
            let sign = if i % 2 == 0 { -1.0 } else { 1.0 };
            (straight + sign * crossed, straight.abs() + crossed.abs())
        })
        .unzip()
}

/// The same head with bounds.
fn exact(x: &[f32], angles: &[(f32, f32)]) -> Vec<(f64, f64)> {
    let (values, abs) = reference(x, angles);
    let bound = abs.into_iter().map(|abs| 3.0 * U * abs + 1e-30);
    values.into_iter().zip(bound).collect()
}

/// A head that is copied.
fn copied(x: &[f32]) -> Vec<(f64, f64)> {
    x.iter().map(|&x| (f64::from(x), 1e-30)).collect()
}

/// Rotates the first `num_tokens` rows of `qkv: [.., (num_heads + 2 num_kv_heads) * head_dim]`:
/// queries into `q: [.., num_heads * head_dim]`, keys and values into the pages of `slabs`.
pub fn record(
    rec: &mut Recorder,
    slabs: &[KvSlab],
    qkv: &Tensor,
    num_tokens: usize,
    step_meta: &Tensor,
    rows: RopeRows,
    q: &Tensor,
) {
    let [_, num_kv_heads, page_size, head_dim] = slabs[0].k.dims();
    let [qkv_rows, qkv_width] = qkv.dims();
    let [q_rows, q_width] = q.dims();
    let num_heads = q_width / head_dim;
    assert_eq!(page_size, PAGE_SIZE, "tokens of a page");
    assert!(
        (32..=256).contains(&head_dim) && head_dim.is_multiple_of(4),
        "head_dim {head_dim}"
    );
    assert_eq!(q_width, num_heads * head_dim, "columns of q");
    assert_eq!(
        qkv_width,
        (num_heads + 2 * num_kv_heads) * head_dim,
        "columns of qkv"
    );
    assert!(
        num_tokens <= qkv_rows && num_tokens <= q_rows,
        "{num_tokens} tokens of {qkv_rows} and {q_rows}"
    );
    let invocations = num_tokens * (num_heads + 2 * num_kv_heads) * head_dim / 4;
    for (i, slab) in slabs.iter().enumerate() {
        rec.dispatch(
            &variant(KvFormat::of(slab.k.dtype())),
            &[
                ("qkv", qkv),
                ("step_meta", step_meta),
                ("q", q),
                ("k", &slab.k),
                ("v", &slab.v),
            ],
            RopeParams {
                num_tokens: num_tokens as u32,
                num_heads: num_heads as u32,
                num_kv_heads: num_kv_heads as u32,
                head_dim: head_dim as u32,
                slots_at: rows.slots_at as u32,
                rope_at: rows.rope_at as u32,
                first_page: slab.first_page,
                num_pages: slab.num_pages as u32,
                write_q: u32::from(i == 0),
            },
            grid(invocations.div_ceil(WG)),
        );
    }
}

fn variant(format: KvFormat) -> Variant {
    Variant::new(&ROPE).part(format.part())
}

/// What a dispatch writes.
///
/// # Errors
/// What reading its inputs reports.
pub fn twin(call: &mut Call<'_>, _: Effort) -> Result<Vec<Piece>> {
    let p: RopeParams = call.params();
    let (tokens, head_dim) = (p.num_tokens as usize, p.head_dim as usize);
    let (num_heads, num_kv_heads) = (p.num_heads as usize, p.num_kv_heads as usize);
    let (slots_at, rope_at) = (p.slots_at as usize, p.rope_at as usize);
    let slots = call.read_range("step_meta", slots_at..slots_at + tokens)?;
    let angles = call.read_range("step_meta", rope_at..rope_at + tokens * head_dim)?;
    let angles = angle_pairs(&angles);
    let all_heads = num_heads + 2 * num_kv_heads;
    let qkv = floats(&call.read_range("qkv", 0..tokens * all_heads * head_dim)?);
    let slab = Slab {
        format: KvFormat::of_variant(&call.variant),
        first_page: p.first_page,
        num_pages: p.num_pages,
        num_kv_heads,
        head_dim,
    };
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for (i, x) in qkv.chunks(head_dim).enumerate() {
        let (token, head) = (i / all_heads, i % all_heads);
        let angles = &angles[token * head_dim / 2..][..head_dim / 2];
        if head < num_heads {
            if p.write_q == 1 {
                q.push(((token * num_heads + head) * head_dim, exact(x, angles)));
            }
            continue;
        }
        let Some(at) = slab.place(slots[token], (head - num_heads) % num_kv_heads) else {
            continue;
        };
        if head < num_heads + num_kv_heads {
            k.push((at, exact(x, angles)));
        } else {
            v.push((at, copied(x)));
        }
    }
    let mut pieces = f32_pieces("q", q);
    pieces.extend(slab.pieces("k", k));
    pieces.extend(slab.pieces("v", v));
    Ok(pieces)
}

/// One for each way to store K and V.
pub fn variants() -> Vec<Variant> {
    KvFormat::ALL.into_iter().map(variant).collect()
}

/// Ragged first: one head, odd head counts, head widths that are no multiple of 8; then shapes of
/// models. Slots are scattered over two slabs, and everything else in the pages must stay as it is.
pub fn cases() -> Vec<Case> {
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
    let mut all = Vec::new();
    for (seed, &shape) in shapes.iter().enumerate() {
        for format in KvFormat::ALL {
            all.push(case(seed as u64, format, shape));
        }
    }
    all
}

/// Two slabs, as first page and number of pages.
const SLABS: [(u32, usize); 2] = [(4, 3), (7, 2)];

pub(super) fn case(
    seed: u64,
    format: KvFormat,
    (num_tokens, num_heads, num_kv_heads, head_dim): (usize, usize, usize, usize),
) -> Case {
    let mut data = Data::new(seed);
    let width = (num_heads + 2 * num_kv_heads) * head_dim;
    let mut qkv = data.normal(num_tokens * width);
    let last = qkv.len() - 1;
    qkv[last] = 1e6; // the last value's last dim: saturates in f16
    let angles = some_angles(&mut data, num_tokens * head_dim / 2);
    let slots = some_slots(&mut data, num_tokens);
    let slots_at = 3;
    let rope_at = slots_at + num_tokens + 2;
    let mut meta = vec![u32::MAX; rope_at];
    meta[slots_at..slots_at + num_tokens].copy_from_slice(&slots);
    meta.extend(angles.iter().flat_map(|&(c, s)| [c.to_bits(), s.to_bits()]));

    let mut q = Vec::new();
    let mut pages = SLABS.map(|(_, n)| {
        let size = n * num_kv_heads * PAGE_SIZE * head_dim;
        [vec![None; size], vec![None; size]]
    });
    for (token, &slot) in slots.iter().enumerate() {
        let angles = &angles[token * head_dim / 2..][..head_dim / 2];
        for (head, x) in qkv[token * width..][..width].chunks(head_dim).enumerate() {
            let head_out = match head >= num_heads + num_kv_heads {
                true => copied(x),
                false => exact(x, angles),
            };
            if head < num_heads {
                q.extend(head_out);
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
                for (i, element) in head_out.iter().enumerate() {
                    pages[slab][which][row * head_dim + i] = Some(*element);
                }
            }
        }
    }

    let (q_values, q_bounds) = q.into_iter().unzip();
    let names = [["k0", "v0"], ["k1", "v1"]];
    let mut case = Case::new(
        &ROPE,
        format!(
            "{num_tokens} tokens {num_heads}/{num_kv_heads}x{head_dim} {}",
            format.name()
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
    case.record(move |rec, t| {
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
            t.get("q"),
        );
    })
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
