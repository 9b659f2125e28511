//! One layer of the forward pass, recorded as dispatches.

use super::config::LayerKind;
use super::scratch::Scratch;
use super::step::{AttentionRound, Step};
use super::weights::LayerWeights;
use crate::gpu::{Coop, Recorder, Tensor};
use crate::kernels::attention::{self, AttentionShape};
use crate::kernels::attention_output::Output;
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_output::{MlpKind, Out};
use crate::kernels::{Tuning, attention_coop, attention_merge, halve, matmul_coop, pack, rope};
use crate::kv::KvSlab;
use crate::quant::Weights;

/// What every layer of a step needs.
pub(super) struct LayerPass<'a> {
    pub rec: &'a mut Recorder,
    pub tuning: &'a Tuning,
    /// What this step is computed by, where it is long and the mode is fast.
    pub coop: Option<Coop>,
    pub norm: Norm,
    pub shape: AttentionShape,
    /// Those that the step has plans for.
    pub windows: &'a [Option<usize>],
    pub step: &'a Step,
    pub s: &'a Scratch,
}

impl LayerPass<'_> {
    /// Records a layer of a kind: attention and the gated MLP, each added to the residual stream.
    /// `next_norm` is the weight of the norm that follows it.
    pub fn record(
        &mut self,
        layer: &LayerWeights,
        kind: LayerKind,
        slabs: &[KvSlab],
        next_norm: &Tensor,
    ) {
        let (step, s, norm) = (self.step, self.s, Some(self.norm));
        let n = step.num_tokens;
        let rope_rows = step.rope_rows[kind.rope];
        self.rec.at_op("qkv");
        match (slabs, &s.qkv) {
            ([slab], _) => {
                let out = Out::Qkv {
                    q: &s.q,
                    slab,
                    step_meta: &s.meta,
                    rows: rope_rows,
                };
                self.matmul(&layer.qkv, &s.act, norm, out);
            }
            (slabs, Some(y)) => {
                let out = Out::Store { y };
                self.matmul(&layer.qkv, &s.act, norm, out);
                rope::record(self.rec, slabs, y, n, &s.meta, rope_rows, None, &s.q);
            }
            (slabs, None) => panic!("no room for qkv of a cache in {} slabs", slabs.len()),
        }
        self.rec.at_op("attention");
        let plan = self.windows.iter().position(|&w| w == kind.window);
        for round in &step.attention[plan.expect("a plan for each window")] {
            self.attention(slabs, kind.window, round);
        }
        if let Some(attended) = &s.attended {
            pack::record(self.rec, self.tuning, attended, n, &s.act_attended);
        }
        self.rec.at_op("o");
        let out = Out::Residual {
            hidden: &s.hidden,
            gamma: &layer.mlp_norm,
            act: &s.act,
            scale: 1.0,
        };
        self.matmul(&layer.o, &s.act_attended, None, out);

        self.rec.at_op("gate_up");
        let out = Out::Gated {
            act: &s.act_gated,
            kind: MlpKind::SwiGlu,
        };
        self.matmul(&layer.gate_up, &s.act, norm, out);
        self.rec.at_op("down");
        let out = Out::Residual {
            hidden: &s.hidden,
            gamma: next_norm,
            act: &s.act,
            scale: 1.0,
        };
        self.matmul(&layer.down, &s.act_gated, None, out);
    }

    /// A matmul of all tokens of the step, by cooperative matrices where the mode and their number ask
    /// for it.
    fn matmul(&mut self, w: &Weights, x: &Tensor, norm: Option<Norm>, out: Out) {
        let (n, rec) = (self.step.num_tokens, &mut *self.rec);
        match (self.coop, &self.s.halves) {
            (Some(coop), Some(halves)) => {
                halve::record(rec, self.tuning, x, n, w.columns, norm, halves);
                matmul_coop::record(rec, coop, w, halves, n, None, out);
            }
            _ => matmul::record(rec, self.tuning, w, x, n, norm, None, out),
        }
    }

    /// A round of attention, planned for the kernel that the same choice leads to.
    fn attention(&mut self, slabs: &[KvSlab], window: Option<usize>, round: &AttentionRound) {
        let (rec, s, shape) = (&mut *self.rec, self.s, &self.shape);
        let (q, meta, partials) = (&s.q, &s.meta, &s.partials);
        let output = Output::of(shape);
        let out = s.attended.as_ref().unwrap_or(&s.act_attended);
        for &(slab, items) in &round.items {
            let slab = &slabs[slab];
            match self.coop {
                Some(coop) => attention_coop::record(
                    rec, coop, shape, slab, q, meta, items, window, partials, output, out,
                ),
                None => attention::record(
                    rec,
                    self.tuning,
                    shape,
                    slab,
                    q,
                    meta,
                    items,
                    window,
                    partials,
                    output,
                    out,
                ),
            }
        }
        let (rows_at, num_rows) = (round.merge_at, round.merge_rows);
        attention_merge::record(
            rec,
            self.tuning,
            shape,
            meta,
            rows_at,
            num_rows,
            partials,
            output,
            out,
        );
    }
}
