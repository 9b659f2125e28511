//! What attention must do: batches of ragged sequences over scattered pages, with NaN
//! in everything that no row may see.

use super::Tuning;
use super::activations::Activations;
use super::attention::{self, ATTENTION, AttentionShape};
use super::attention_batch::{Batch, Step};
use super::attention_coop::{self, ATTENTION_COOP};
use super::attention_merge;
use super::attention_output::{Output, tunings};
use super::attention_plan;
use super::attention_window_cases;
use super::case::{Case, CaseTensor, U};
use crate::gpu::{Coop, Kernel};
use crate::kv::{KvFormat, KvSlab, PageGeometry};
use crate::quant::GROUP;

pub(super) fn shape(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        score_cap: None,
    }
}

/// How a case runs: teams, or which cooperative matrices; where the result goes; slots of partial results,
/// 0 being a plan that folds in place; and how many keys a token sees, if not all.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    pub tuning: Tuning,
    pub coop: Option<Coop>,
    pub output: Output,
    pub partial_slots: usize,
    pub window: Option<usize>,
}

impl Mode {
    /// Number `i` of those that heads of `head_dim` can have.
    pub fn of(i: usize, head_dim: usize, partial_slots: usize) -> Mode {
        let all = tunings();
        let output = match head_dim.is_multiple_of(GROUP) && !i.is_multiple_of(3) {
            true => Output::Records,
            false => Output::Rows,
        };
        Mode {
            tuning: all[(i + i / 3) % all.len()],
            coop: None,
            output,
            partial_slots,
            window: None,
        }
    }

    /// The same where a token sees so many keys.
    pub fn with_window(self, window: usize) -> Mode {
        Mode {
            window: Some(window),
            ..self
        }
    }

    pub fn name(self) -> String {
        let by = match self.coop {
            Some(coop) => format!("size={}", coop.size),
            None => self.tuning.describe(),
        };
        let window = match self.window {
            Some(window) => format!(" window={window}"),
            None => String::new(),
        };
        format!("{:?} {by}{window}", self.output).to_lowercase()
    }
}

/// Heads first: every ratio of query to key heads with every width, each with sequences around pages
/// and splits; then batches that mix chunks and single tokens, in one slab and in several; then windows
/// and caps. Teams and outputs take turns.
pub fn attention() -> Vec<Case> {
    let shapes = [
        (1, 1, 32),
        (4, 2, 64),
        (9, 3, 64),
        (4, 1, 128),
        (7, 1, 80),
        (16, 2, 96),
        (16, 1, 64),
        (32, 1, 32),
        (20, 1, 256),
        (3, 1, 40),
        (5, 1, 64),
        (6, 1, 64),
    ];
    // contexts of 1, 15, 16, 17, 255, 256, 257 and 600 as single tokens
    let single = [
        (0, 1),
        (14, 1),
        (15, 1),
        (16, 1),
        (254, 1),
        (255, 1),
        (256, 1),
        (599, 1),
    ];
    let chunks = [
        (0, 1),
        (0, 15),
        (1, 16),
        (15, 17),
        (240, 33),
        (255, 2),
        (270, 5),
    ];
    let mut all = Vec::new();
    for (i, &(heads, kv_heads, dim)) in shapes.iter().enumerate() {
        let format = KvFormat::ALL[i % 2];
        let batch = if i % 4 < 2 { &single[..] } else { &chunks[..] };
        let mode = Mode::of(i, dim, 0);
        all.push(case(
            i as u64,
            shape(heads, kv_heads, dim),
            format,
            160,
            batch,
            mode,
        ));
    }
    for (i, format) in KvFormat::ALL.into_iter().enumerate() {
        let mixed = [(0, 33), (599, 1), (300, 16), (511, 2), (0, 1)];
        for j in 0..3 {
            let seed = 100 + (10 * i + j) as u64;
            let mode = |dim, slots| Mode::of(2 * i + j, dim, slots);
            all.push(case(
                seed,
                shape(9, 3, 64),
                format,
                160,
                &mixed,
                mode(64, 0),
            ));
            all.push(case(
                seed,
                shape(8, 2, 128),
                format,
                48,
                &mixed,
                mode(128, 24),
            ));
            all.push(case(
                seed,
                shape(2, 2, 64),
                format,
                32,
                &[(700, 9)],
                mode(64, 7),
            ));
        }
    }
    all.extend(attention_window_cases::windows());
    all.extend(attention_window_cases::caps());
    all
}

/// Single tokens at the end of contexts of a small chat model and of a wider one, folded in place and
/// by splits, and chunks of a prompt.
pub fn timings() -> Vec<Case> {
    let mode = |partial_slots| Mode {
        tuning: tunings()[0],
        coop: None,
        output: Output::Rows,
        partial_slots,
        window: None,
    };
    let mut all = Vec::new();
    for heads in [(9, 3, 64), (32, 8, 128)] {
        let shape = shape(heads.0, heads.1, heads.2);
        for keys in [512, 541, 2048, 4096] {
            for slots in [0, 16] {
                let single = [(keys - 1, 1)];
                all.push(case(7, shape, KvFormat::F16, 288, &single, mode(slots)));
            }
        }
        for chunk in [(0, 128), (384, 128)] {
            all.push(case(7, shape, KvFormat::F16, 288, &[chunk], mode(0)));
        }
    }
    let prompt = [(0, 512)];
    let shape = shape(9, 3, 64);
    all.push(case(7, shape, KvFormat::F16, 288, &prompt, mode(0)));
    all
}

/// One of `attention`, or where the mode has matrices of `attention_coop`, with the merge that follows.
pub(super) fn case(
    seed: u64,
    shape: AttentionShape,
    format: KvFormat,
    slab_pages: usize,
    sequences: &[(usize, usize)],
    mode: Mode,
) -> Case {
    let Mode {
        tuning,
        coop,
        output,
        partial_slots,
        window,
    } = mode;
    let geometry = PageGeometry::new(slab_pages.max(160), slab_pages);
    let mut batch = Batch::new(seed, shape, format, geometry, sequences);
    if coop.is_some() && format == KvFormat::F32 {
        batch.set_first_value(90_000.0); // beyond f16
    }
    let batch = batch.windowed(window);
    let (kernel, step, (values, bounds)) = planned(&batch, mode);
    let width = shape.num_heads * shape.head_dim;
    let first = |position| attention_plan::first_key(position, window);
    let keys: usize = sequences
        .iter()
        .map(|&(p, n)| (p..p + n).map(|p| p + 1 - first(p)).sum::<usize>())
        .sum();
    let contexts: usize = sequences.iter().map(|&(p, n)| p + n - first(p)).sum();
    let cap = match shape.score_cap {
        Some(cap) => format!(" cap={cap}"),
        None => String::new(),
    };
    let name = format!(
        "{}/{}x{}{cap} {} {sequences:?} {} slabs{} {}",
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        format.name(),
        geometry.num_slabs(),
        if partial_slots == 0 { "" } else { " merged" },
        mode.name()
    );
    let slots = partial_slots.max(1);
    let mut partials = CaseTensor::f32(
        "partials",
        &shape.partials_dims(slots),
        &vec![f32::NAN; shape.partials_dims(slots).iter().product()],
    );
    if partial_slots > 0 {
        partials = partials.judged(|_| Ok(())); // scratch
    }
    let kv_row = shape.num_kv_heads * shape.head_dim * format.dtype().bytes() as usize;
    let mut case = Case::new(kernel, name)
        .work(
            4.0 * (keys * width) as f64,
            (2 * contexts * kv_row + 8 * batch.q.len()) as f64,
        )
        .tensor(CaseTensor::f32("q", &[batch.num_tokens(), width], &batch.q))
        .tensor(CaseTensor::u32("step_meta", &[step.meta.len()], &step.meta))
        .tensor(partials)
        .tensor(output_tensor(mode, batch.num_tokens(), values, bounds))
        .needs(tuning);
    if let Some(coop) = coop {
        case = case.needs_coop(coop);
    }
    const NAMES: [[&str; 2]; 5] = [
        ["k0", "v0"],
        ["k1", "v1"],
        ["k2", "v2"],
        ["k3", "v3"],
        ["k4", "v4"],
    ];
    for (slab, names) in NAMES.iter().enumerate().take(geometry.num_slabs()) {
        for (which, &name) in names.iter().enumerate() {
            let (bytes, dims) = batch.slab_bytes(slab, which);
            case = case.tensor(CaseTensor::input(name, format.dtype(), &dims, bytes));
        }
    }
    case.record(move |rec, t| {
        let (q, meta, out) = (t.get("q"), t.get("step_meta"), t.get("out"));
        let partials = t.get("partials");
        for round in &step.rounds {
            for (slab, &items) in round.slabs.iter().enumerate() {
                let [k, v] = NAMES[slab].map(|name| t.get(name).clone());
                let pages = geometry.pages_of(slab);
                let slab = KvSlab {
                    first_page: pages.start,
                    num_pages: pages.len(),
                    k,
                    v,
                };
                match coop {
                    None => attention::record(
                        rec, &tuning, &shape, &slab, q, meta, items, window, partials, output, out,
                    ),
                    Some(coop) => attention_coop::record(
                        rec, coop, &shape, &slab, q, meta, items, window, partials, output, out,
                    ),
                }
            }
            let (rows_at, num_rows) = round.merge;
            attention_merge::record(
                rec, &tuning, &shape, meta, rows_at, num_rows, partials, output, out,
            );
        }
    })
}

/// The kernel of `mode`, its plan for `batch`, and by its twin what comes out, with the bounds.
fn planned(batch: &Batch, mode: Mode) -> (&'static Kernel, Step, (Vec<f64>, Vec<f64>)) {
    let slots = mode.partial_slots;
    let wanted = if slots == 0 { 0 } else { usize::MAX };
    match mode.coop {
        None => (&ATTENTION, batch.step(wanted, slots), batch.expected()),
        Some(_) => {
            let tiling = attention_coop::tiling(&batch.shape);
            let expected = batch.expected_by(|q, keys, values, scores| {
                attention_coop::reference(q, keys, values, scores, batch.format)
            });
            let step = batch.step_for(tiling, wanted, slots);
            (&ATTENTION_COOP, step, expected)
        }
    }
}

/// The result of `tokens` rows as a case's tensor, from exact values `[tokens, width]` and the bound
/// of each.
pub(super) fn output_tensor(
    mode: Mode,
    tokens: usize,
    values: Vec<f64>,
    bounds: Vec<f64>,
) -> CaseTensor {
    let width = values.len() / tokens;
    let activations = mode.tuning.activations;
    let dims = mode.output.dims(activations, tokens, width);
    let records = values.chunks(GROUP).zip(bounds.chunks(GROUP));
    match (mode.output, activations) {
        (Output::Rows, _) => CaseTensor::output_f32("out", &dims, values, bounds),
        (Output::Records, Activations::F32) => {
            let (mut all, mut all_bounds) = (Vec::new(), Vec::new());
            for (values, bounds) in records {
                all.extend(values.iter().chain(&[0.0; 4]));
                all_bounds.extend(bounds.iter().chain(&[0.0; 4]));
            }
            CaseTensor::output_f32("out", &dims, all, all_bounds)
        }
        (Output::Records, Activations::Q8) => {
            let words = vec![0; tokens * dims[1]];
            CaseTensor::output_u32("out", &dims, &words).judged(move |bytes| {
                let records = values.chunks(GROUP).zip(bounds.chunks(GROUP));
                for (at, (record, (values, bounds))) in bytes.chunks(48).zip(records).enumerate() {
                    judge_q8(record, values, bounds).map_err(|e| format!("record {at}: {e}"))?;
                }
                Ok(())
            })
        }
    }
}

/// A record's scale is that of its largest value, and no value is off by more than half of it.
fn judge_q8(record: &[u8], values: &[f64], bounds: &[f64]) -> Result<(), String> {
    let word = |i: usize| f32::from_le_bytes(record[4 * i..4 * i + 4].try_into().expect("a word"));
    let (scale, squares) = (f64::from(word(8)), word(9));
    let amax = values.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    let bound = bounds.iter().fold(0.0f64, |max, b| max.max(*b));
    let off = (scale - amax / 127.0).abs();
    if squares != 0.0 || off.is_nan() || off > (bound + 4.0 * U * amax) / 127.0 {
        return Err(format!(
            "scale {scale:e}, squares {squares:e}, amax {amax:e}"
        ));
    }
    for (i, (&byte, value)) in record.iter().zip(values).enumerate() {
        let found = f64::from(byte as i8) * scale;
        if (found - value).abs() > bound + scale * (0.5 + 256.0 * U) {
            return Err(format!("value {i} is {found:e}, expected {value:e}"));
        }
    }
    Ok(())
}
