//! What the matmul's endings make of exact sums: the other half of its cases.

use super::case::{Case, CaseTensor, Data, Tensors};
use super::matmul::{Norm, record};
use super::matmul_cases::EPS;
use super::matmul_coop;
use super::matmul_output::{Ending, Kind, MlpKind, Out};
use super::pack::records;
use super::rope::RopeRows;
use super::rope_cases::{pages_tensor, some_angles, some_slots};
use super::tuning::Tuning;
use super::twin::endings::{Residual, biased, mlp, residual, turned};
use crate::gpu::{Coop, DType, Recorder, Tensor};
use crate::kv::{KvFormat, KvSlab, PAGE_SIZE};
use crate::quant::{Format, Shard, Weights};
use std::ops::Range;

/// Pages of the slab that keys and values go to; slots are in pages 3 to 9.
const PAGES: usize = 10;

/// Heads of a case: query heads, key heads, dims.
pub(super) type Heads = (usize, usize, usize);

/// How a case is dispatched.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub format: &'static Format,
    pub tuning: Tuning,
    /// By cooperative matrices, from halved rows.
    pub coop: Option<Coop>,
    pub kind: Kind,
    pub num_tokens: usize,
    pub rows: usize,
    pub columns: usize,
    /// Rows of the first of two shards, a multiple of 64; `None` where there is one.
    pub cut: Option<usize>,
}

impl Call {
    /// The case's weights. Of two shards the last comes first: what one leaves in another's place is still
    /// there in the end.
    fn weights(&self, t: &Tensors) -> Weights {
        let shard = |rows: Range<usize>| {
            let (w_at, scales_at) = self.format.matrix_bytes(rows.start, self.columns);
            let (w_bytes, scales_bytes) = self.format.matrix_bytes(rows.len(), self.columns);
            let part =
                |all: &Tensor, at: u64, bytes: u64| all.window(at, DType::I8, &[bytes as usize]);
            let scales = t.find("w_scales");
            let scales = scales.map(|all| part(all, scales_at, scales_bytes));
            let w = part(t.get("w"), w_at, w_bytes);
            Shard::new(rows.start, rows.len(), w, scales)
        };
        let cut = self.cut.unwrap_or(0);
        let mut shards = vec![shard(cut..self.rows)];
        shards.extend(self.cut.map(|cut| shard(0..cut)));
        Weights {
            format: self.format,
            rows: self.rows,
            columns: self.columns,
            shards,
        }
    }

    fn record(&self, rec: &mut Recorder, t: &Tensors, out: Out) {
        let (w, x, bias) = (self.weights(t), t.get("x"), t.find("bias"));
        if let Some(coop) = self.coop {
            matmul_coop::record(rec, coop, &w, x, self.num_tokens, bias, out);
            return;
        }
        let norm = self.kind.norm.then_some(Norm { eps: EPS });
        let tuning = &self.tuning;
        record(rec, tuning, &w, x, self.num_tokens, norm, bias, out);
    }
}

/// `case` with the tensors of its ending, which must hold what becomes of `out`.
pub(super) fn ending(
    mut case: Case,
    call: Call,
    heads: Heads,
    mut out: Vec<(f64, f64)>,
    data: &mut Data,
) -> Case {
    if call.kind.bias {
        let bias = data.normal(call.rows);
        out = biased(out, &bias);
        case = case.tensor(CaseTensor::f32("bias", &[call.rows], &bias));
    }
    match call.kind.ending {
        Ending::Store => store(case, call, out),
        Ending::Qkv(kv) => qkv(case, call, kv, heads, &out, data),
        Ending::Gated(kind) => packed(case, call, kind, &out),
        Ending::Residual => added(case, call, &out, data),
    }
}

fn store(case: Case, call: Call, out: Vec<(f64, f64)>) -> Case {
    let (values, bounds) = out.into_iter().unzip();
    let dims = [call.num_tokens, call.rows];
    case.tensor(CaseTensor::output_f32("y", &dims, values, bounds))
        .record(move |rec, t| call.record(rec, t, Out::Store { y: t.get("y") }))
}

fn added(case: Case, call: Call, out: &[(f64, f64)], data: &mut Data) -> Case {
    let Call {
        num_tokens, rows, ..
    } = call;
    // no model has both; here one case shows both
    let scale = if call.kind.bias { 0.22 } else { 1.0 };
    let before = data.normal(num_tokens * rows);
    let gamma = data.normal(rows);
    let Residual {
        hidden,
        normed,
        squares,
    } = residual(out, scale, &before, &gamma);
    let (values, bounds) = hidden.into_iter().unzip();
    let act = call.tuning.activations;
    case.tensor(
        CaseTensor::output_f32("hidden", &[num_tokens, rows], values, bounds)
            .starting_as(bytemuck::cast_slice(&before).to_vec()),
    )
    .tensor(CaseTensor::f32("gamma", &[rows], &gamma))
    .tensor(records(
        "act_out",
        act,
        num_tokens,
        rows,
        normed,
        Some(squares),
    ))
    .record(move |rec, t| {
        let out = Out::Residual {
            hidden: t.get("hidden"),
            gamma: t.get("gamma"),
            act: t.get("act_out"),
            scale,
        };
        call.record(rec, t, out);
    })
}

fn packed(case: Case, call: Call, kind: MlpKind, out: &[(f64, f64)]) -> Case {
    let act = call.tuning.activations;
    case.tensor(records(
        "act_out",
        act,
        call.num_tokens,
        call.kind.width(call.rows),
        mlp(kind, out),
        None,
    ))
    .record(move |rec, t| {
        let act = t.get("act_out");
        call.record(rec, t, Out::Gated { act, kind });
    })
}

fn qkv(
    case: Case,
    call: Call,
    kv: KvFormat,
    (num_heads, num_kv_heads, head_dim): Heads,
    out: &[(f64, f64)],
    data: &mut Data,
) -> Case {
    let num_tokens = call.num_tokens;
    let angles = some_angles(data, num_tokens * head_dim / 2);
    let slots = some_slots(data, num_tokens);
    let slots_at = 3;
    let rope_at = (slots_at + num_tokens + 2).next_multiple_of(4);
    let mut meta = vec![u32::MAX; rope_at];
    meta[slots_at..slots_at + num_tokens].copy_from_slice(&slots);
    meta.extend(angles.iter().flat_map(|&(c, s)| [c.to_bits(), s.to_bits()]));

    let mut q = Vec::new();
    let size = PAGES * num_kv_heads * PAGE_SIZE * head_dim;
    let mut pages = [vec![None; size], vec![None; size]];
    for (token, row) in out.chunks(call.rows).enumerate() {
        let angles = &angles[token * head_dim / 2..][..head_dim / 2];
        for (head, x) in row.chunks(head_dim).enumerate() {
            let is_value = head >= num_heads + num_kv_heads;
            let stored = if is_value {
                x.to_vec()
            } else {
                turned(x, angles)
            };
            if head < num_heads {
                q.extend(stored);
                continue;
            }
            let kv_head = (head - num_heads) % num_kv_heads;
            let (page, token_in_page) = (slots[token] as usize / 16, slots[token] as usize % 16);
            let at = ((page * num_kv_heads + kv_head) * PAGE_SIZE + token_in_page) * head_dim;
            for (i, element) in stored.into_iter().enumerate() {
                pages[usize::from(is_value)][at + i] = Some(element);
            }
        }
    }
    let (q_values, q_bounds) = q.into_iter().unzip();
    let q_dims = [num_tokens, num_heads * head_dim];
    let page_dims = [PAGES, num_kv_heads, PAGE_SIZE, head_dim];
    let [k, v] = pages;
    case.tensor(CaseTensor::u32("step_meta", &[meta.len()], &meta))
        .tensor(CaseTensor::output_f32("q", &q_dims, q_values, q_bounds))
        .tensor(pages_tensor("k", kv, page_dims, k))
        .tensor(pages_tensor("v", kv, page_dims, v))
        .record(move |rec, t| {
            let slab = KvSlab {
                first_page: 0,
                num_pages: PAGES,
                k: t.get("k").clone(),
                v: t.get("v").clone(),
            };
            let out = Out::Qkv {
                q: t.get("q"),
                slab: &slab,
                step_meta: t.get("step_meta"),
                rows: RopeRows { slots_at, rope_at },
            };
            call.record(rec, t, out);
        })
}
