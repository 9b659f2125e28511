//! One layer of the forward pass, recorded as dispatches.

use super::config::{Config, LayerKind, NormKind};
use super::scratch::Scratch;
use super::step::{AttentionRound, Step};
use super::weights::LayerWeights;
use crate::gpu::{Coop, Recorder, Tensor};
use crate::kernels::attention::{self, AttentionShape};
use crate::kernels::attention_output::Output;
use crate::kernels::matmul::{self, Norm};
use crate::kernels::matmul_output::Out;
use crate::kernels::rope::{self, QkNormWeights, RopeRows};
use crate::kernels::{
    Tuning, add_norm, attention_coop, attention_merge, halve, layer_norm, matmul_coop, pack,
};
use crate::kv::KvSlab;
use crate::quant::Weights;

/// What every layer of a step needs.
pub(super) struct LayerPass<'a> {
    pub rec: &'a mut Recorder,
    pub config: &'a Config,
    pub tuning: &'a Tuning,
    /// What this step is computed by, where it is long and the mode is fast.
    pub coop: Option<Coop>,
    pub shape: AttentionShape,
    pub step: &'a Step,
    pub s: &'a Scratch,
}

/// The norm that a matmul applies to what it reads: none where a kernel before it did, or nobody does.
pub(super) fn norm_before(config: &Config) -> Option<Norm> {
    let is_applied = config.norm == NormKind::Rms && config.norm_places.before;
    is_applied.then_some(Norm {
        eps: config.norm_eps,
    })
}

impl LayerPass<'_> {
    /// Records layer `index`, of a group of the cache: attention and the MLP, each added to the residual stream. `next_norm` is the
    /// weight of the norm that follows it.
    pub fn record(
        &mut self,
        index: usize,
        layer: &LayerWeights,
        group: usize,
        slabs: &[KvSlab],
        next_norm: &Tensor,
    ) {
        let (s, norm) = (self.s, norm_before(self.config));
        let kind = self.config.layer_kind(index);
        self.rec.at_op("qkv");
        self.normalise(&layer.attn_norm, layer.attn_norm_bias.as_ref());
        self.project(layer, kind, group, slabs);
        self.rec.at_op("attention");
        for round in &self.step.attention[group] {
            self.attention(slabs, kind.window, round);
        }
        if let Some(attended) = &s.attended {
            let n = self.step.num_tokens;
            pack::record(self.rec, self.tuning, attended, n, &s.act_attended);
        }
        self.rec.at_op("o");
        let after = layer.attn_norm_after.as_ref();
        let (w, bias) = (&layer.o, layer.o_bias.as_ref());
        self.add(w, &s.act_attended, bias, after, &layer.mlp_norm);

        self.rec.at_op("gate_up");
        self.normalise(&layer.mlp_norm, layer.mlp_norm_bias.as_ref());
        let out = Out::Gated {
            act: &s.act_gated,
            kind: self.config.mlp,
        };
        let bias = layer.gate_up_bias.as_ref();
        self.matmul(&layer.gate_up, &s.act, norm, bias, out);
        self.rec.at_op("down");
        let after = layer.mlp_norm_after.as_ref();
        let (w, bias) = (&layer.down, layer.down_bias.as_ref());
        self.add(w, &s.act_gated, bias, after, next_norm);
    }

    /// The residual stream as activations, where the norm is one that the next matmul cannot apply.
    pub fn normalise(&mut self, weight: &Tensor, bias: Option<&Tensor>) {
        if let (NormKind::Layer, Some(bias)) = (self.config.norm, bias) {
            let (n, eps, s) = (self.step.num_tokens, self.config.norm_eps, self.s);
            let rec = &mut *self.rec;
            layer_norm::record(rec, self.tuning, &s.hidden, n, weight, bias, eps, &s.act);
        }
    }

    /// Queries, and keys and values on their way into the cache.
    fn project(&mut self, layer: &LayerWeights, kind: LayerKind, group: usize, slabs: &[KvSlab]) {
        let (step, s, norm) = (self.step, self.s, norm_before(self.config));
        let rows = RopeRows {
            slots_at: step.slots_at[group],
            rope_at: step.rope_at[kind.rope],
        };
        let bias = layer.qkv_bias.as_ref();
        let qk_norm = self.config.qk_norm.map(|kind| QkNormWeights {
            kind,
            q: layer.q_norm.as_ref().expect("the norm of queries"),
            k: layer.k_norm.as_ref().expect("the norm of keys"),
            eps: self.config.norm_eps,
        });
        match (slabs, qk_norm, &s.qkv) {
            ([slab], None, _) => {
                let out = Out::Qkv {
                    q: &s.q,
                    slab,
                    step_meta: &s.meta,
                    rows,
                };
                self.matmul(&layer.qkv, &s.act, norm, bias, out);
            }
            (slabs, qk_norm, Some(y)) => {
                self.matmul(&layer.qkv, &s.act, norm, bias, Out::Store { y });
                let n = step.num_tokens;
                rope::record(self.rec, slabs, y, n, &s.meta, rows, qk_norm, &s.q);
            }
            (slabs, _, None) => panic!("no room for qkv of a cache in {} slabs", slabs.len()),
        }
    }

    /// A matmul whose result, after a norm where there is one, is added to the residual stream; what is
    /// packed of that is times `gamma`.
    fn add(
        &mut self,
        w: &Weights,
        x: &Tensor,
        bias: Option<&Tensor>,
        after: Option<&Tensor>,
        gamma: &Tensor,
    ) {
        let (s, scale) = (self.s, self.config.residual_scale);
        let (hidden, act) = (&s.hidden, &s.act);
        match (after, &s.added) {
            (None, _) => {
                let out = Out::Residual {
                    hidden,
                    gamma,
                    act,
                    scale,
                };
                self.matmul(w, x, None, bias, out);
            }
            (Some(weight), Some(y)) => {
                self.matmul(w, x, None, bias, Out::Store { y });
                let (n, eps) = (self.step.num_tokens, self.config.norm_eps);
                let (rec, tuning) = (&mut *self.rec, self.tuning);
                add_norm::record(rec, tuning, y, n, weight, eps, scale, hidden, gamma, act);
            }
            (Some(_), None) => panic!("no room for what is normalised before it is added"),
        }
    }

    /// A matmul of all tokens of the step, by cooperative matrices where the mode and their number ask
    /// for it.
    fn matmul(
        &mut self,
        w: &Weights,
        x: &Tensor,
        norm: Option<Norm>,
        bias: Option<&Tensor>,
        out: Out,
    ) {
        let (n, rec) = (self.step.num_tokens, &mut *self.rec);
        match (self.coop, &self.s.halves) {
            (Some(coop), Some(halves)) => {
                halve::record(rec, self.tuning, x, n, w.columns, norm, halves);
                matmul_coop::record(rec, coop, w, halves, n, bias, out);
            }
            _ => matmul::record(rec, self.tuning, w, x, n, norm, bias, out),
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
