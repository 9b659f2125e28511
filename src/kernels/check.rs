//! The cases that tell whether an adapter computes a model's kernels right: the model's own columns,
//! heads and dims, with few rows and tokens, so that they take a second or two.
//!
//! Unlike a kernel's own `cases`, which go through every variant, these are of the variants that a
//! model of that shape dispatches, and of no others.

use super::attention::AttentionShape;
use super::attention_cases::{self, Mode};
use super::attention_output::Output;
use super::case::{Case, Data};
use super::matmul_output::{Ending, Kind, MlpKind};
use super::rope::QkNorm;
use super::{Tuning, argmax, attention_merge_cases, embedding, gather_rows, halve, matmul_cases};
use super::{add_norm, add_positions, finish_logits, layer_norm};
use super::{matmul_coop_cases, pack, penalties, rope_cases, sample};
use crate::gpu::Coop;
use crate::kv::KvFormat;
use crate::quant::{Format, GROUP};

/// Key heads at most: what is wrong with many is wrong with three.
const MOST_KV_HEADS: usize = 3;
/// Rows of logits are no longer.
const MOST_VOCAB: usize = 1 << 17;
/// Nor, with drafted tokens, than this: there is nothing in them that begins later.
const MOST_DRAFTED_VOCAB: usize = 1 << 12;
/// Tokens of a step, for each tile of a matmul: one and a ragged rest of eight among them.
const TOKENS: [usize; 4] = [1, 2, 3, 9];

/// What the kernels of a model depend on.
#[derive(Clone, Copy)]
pub struct CheckShape {
    /// How weights are packed.
    pub format: &'static Format,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// How kernels divide their work.
    pub tuning: Tuning,
    /// What multiplies long steps, in the fast mode.
    pub coop: Option<Coop>,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between gate and down.
    pub intermediate: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads.
    pub num_kv_heads: usize,
    /// Dims of a head.
    pub head_dim: usize,
    /// What is computed between the matrices of the MLP.
    pub mlp: MlpKind,
    /// Norms are of the mean and the deviation, by a kernel of their own.
    pub layer_norm: bool,
    /// Matmuls apply the norm of what they read.
    pub norm_before: bool,
    /// What is added to the residual stream goes through a norm.
    pub norm_after: bool,
    /// Queries and keys go through one.
    pub qk_norm: Option<QkNorm>,
    /// Biases of queries, keys and values; of the output; of the MLP.
    pub biases: [bool; 3],
    /// Rows of a table are added by position.
    pub positions: bool,
    /// Factor and cap of logits, where there are any.
    pub logits: Option<(f32, Option<f32>)>,
    /// Attention scores have this cap.
    pub score_cap: Option<f32>,
    /// Tokens of some layers see a window of keys.
    pub windowed: bool,
    /// Logits of a row.
    pub vocab: usize,
    /// The cache of a layer is in several pieces.
    pub several_slabs: bool,
    /// Several rows of logits may be asked for in a step.
    pub many_rows: bool,
}

impl CheckShape {
    /// Everything in words: what the result of the cases depends on, beside the adapter.
    pub fn describe(&self) -> String {
        let coop = self.coop.map_or(0, |coop| coop.size);
        let beside = (self.layer_norm, self.norm_before, self.norm_after);
        let mut attention = format!(
            " mlp={:?} norms={beside:?} qk={:?} biases={:?} positions={} logits={:?}",
            self.mlp, self.qk_norm, self.biases, self.positions, self.logits
        );
        if let Some(cap) = self.score_cap {
            attention.push_str(&format!(" cap={cap}"));
        }
        if self.windowed {
            attention.push_str(" windowed");
        }
        format!(
            "{} kv={} {} coop={coop} hidden={} intermediate={} heads={}/{}x{}{attention} vocab={} slabs={} rows={}",
            self.format.name,
            self.kv_format.name(),
            self.tuning.describe(),
            self.hidden,
            self.intermediate,
            self.num_heads,
            self.num_kv_heads,
            self.head_dim,
            self.vocab,
            self.several_slabs,
            self.many_rows,
        )
    }

    /// The cases, those first that others build on.
    pub fn cases(&self) -> Vec<Case> {
        let mut all = self.merges();
        all.extend(self.matmuls());
        all.extend(self.attention());
        all.extend(self.beside());
        if let Some(coop) = self.coop {
            all.extend(self.coop(coop));
        }
        all
    }

    /// Heads of a case of queries, keys and values: some of each.
    fn qkv_heads(&self) -> (usize, usize, usize) {
        let kv_heads = self.num_kv_heads.min(2);
        (self.num_heads.min(3), kv_heads, self.head_dim)
    }

    /// Queries and keys are rotated by a kernel of its own.
    fn rotates_apart(&self) -> bool {
        self.several_slabs || self.qk_norm.is_some()
    }

    /// Rows and columns of each matrix of a layer, and of the head, with what becomes of the result.
    fn matrices(&self) -> [(Kind, usize, usize); 5] {
        let qkv = match self.rotates_apart() {
            false => Ending::Qkv(self.kv_format),
            true => Ending::Store,
        };
        let added = match self.norm_after {
            false => Ending::Residual,
            true => Ending::Store,
        };
        let kind = |ending: Ending, norm: bool, bias: bool| Kind { ending, norm, bias };
        let [qkv_bias, o_bias, mlp_bias] = self.biases;
        let (before, mlp) = (self.norm_before, Ending::Gated(self.mlp));
        [
            (kind(qkv, before, qkv_bias), 70, self.hidden),
            (
                kind(added, false, o_bias),
                36,
                self.num_heads * self.head_dim,
            ),
            (kind(mlp, before, mlp_bias), 72, self.hidden),
            (kind(added, false, mlp_bias), 68, self.intermediate),
            (
                kind(Ending::Store, !self.layer_norm, false),
                70,
                self.hidden,
            ),
        ]
    }

    fn matmuls(&self) -> Vec<Case> {
        let mut all = Vec::new();
        for (i, (kind, rows, columns)) in self.matrices().into_iter().enumerate() {
            let is_head = i == 4;
            for tokens in TOKENS {
                if is_head && tokens > 1 && !self.many_rows {
                    continue;
                }
                let shape = (tokens, rows, columns);
                let seed = (10 * i + tokens) as u64;
                let (format, tuning) = (self.format, self.tuning);
                let heads = self.qkv_heads();
                let case = matmul_cases::case_of;
                all.push(case(format, tuning, kind, shape, heads, seed, None));
            }
        }
        all
    }

    /// The ratio of query to key heads and the dims of the model, and not all of its heads.
    fn heads(&self) -> AttentionShape {
        let kv_heads = self.num_kv_heads.min(MOST_KV_HEADS);
        let group = self.num_heads / self.num_kv_heads;
        AttentionShape {
            score_cap: self.score_cap,
            ..attention_cases::shape(group * kv_heads, kv_heads, self.head_dim)
        }
    }

    fn mode(&self, coop: Option<Coop>, partial_slots: usize) -> Mode {
        Mode {
            tuning: self.tuning,
            coop,
            output: Output::of(&self.heads()),
            partial_slots,
            window: None,
        }
    }

    /// All that a token may see of keys: windows are no other kernel, and one stands for all.
    fn windows(&self) -> &'static [Option<usize>] {
        match self.windowed {
            false => &[None],
            true => &[None, Some(75)],
        }
    }

    /// Pages of a slab in the cases.
    fn slab_pages(&self) -> usize {
        if self.several_slabs { 48 } else { 160 }
    }

    /// Single tokens at the ends of pages and splits, and chunks across them; folded in place, which a
    /// context in several slabs never is, and by partial results.
    fn attention(&self) -> Vec<Case> {
        let single = [(0, 1), (15, 1), (16, 1), (255, 1), (256, 1), (599, 1)];
        let chunks = [(0, 17), (239, 17), (250, 9), (511, 2)];
        // those of one split
        let in_place = match self.several_slabs {
            true => [&single[..4], &chunks[..2]],
            false => [&single[..], &chunks],
        };
        let mut all = Vec::new();
        for (seed, sequences) in [single.as_slice(), &chunks].into_iter().enumerate() {
            for (slots, sequences) in [(0, in_place[seed]), (24, sequences)] {
                let (shape, pages) = (self.heads(), self.slab_pages());
                let seed = seed as u64;
                let (format, case) = (self.kv_format, attention_cases::case);
                for &window in self.windows() {
                    let mode = Mode {
                        window,
                        ..self.mode(None, slots)
                    };
                    all.push(case(seed, shape, format, pages, sequences, mode));
                }
            }
        }
        all
    }

    fn merges(&self) -> Vec<Case> {
        let heads = self.heads();
        let mode = self.mode(None, 0);
        let (count, dim) = (heads.num_heads, heads.head_dim);
        vec![attention_merge_cases::merge_case(1, 3, count, dim, 5, mode)]
    }

    /// What stands before, between and after the matrices.
    fn beside(&self) -> Vec<Case> {
        let (tuning, vocab) = (self.tuning, self.vocab.min(MOST_VOCAB));
        let mut all = vec![embedding::case(
            self.format,
            tuning,
            (9, 70, self.hidden, 64),
            1,
        )];
        if !self.head_dim.is_multiple_of(GROUP) {
            all.push(pack::case(tuning, (3, self.num_heads * self.head_dim), 1));
        }
        if self.norm_after {
            all.push(add_norm::case(tuning, (3, self.hidden), 1));
        }
        if self.layer_norm {
            all.push(layer_norm::case(tuning, (3, self.hidden), 1));
        }
        if self.positions {
            all.push(add_positions::case((5, 40, self.hidden), 1));
        }
        if let Some((scale, cap)) = self.logits {
            all.push(finish_logits::case((3, vocab), scale, cap, 1));
        }
        if self.rotates_apart() {
            let AttentionShape {
                num_heads,
                num_kv_heads,
                head_dim,
                ..
            } = self.heads();
            let shape = (17, num_heads, num_kv_heads, head_dim);
            all.push(rope_cases::case(1, self.kv_format, self.qk_norm, shape));
        }
        all.extend(gather_rows::cases());
        // the best of each row is somewhere else
        let logits = Data::new(1).normal(12 * vocab);
        all.push(argmax::case(format!("12x{vocab}"), 12, &logits));
        let rows: Vec<sample::Row> = sample::settings().into_iter().step_by(3).collect();
        let logits = Data::new(2).normal(rows.len() * vocab);
        let logits = logits.iter().map(|l| l * 3.0).collect();
        all.push(sample::case(vocab.to_string(), logits, rows));
        all.push(sample::draft_case(vocab.min(MOST_DRAFTED_VOCAB)));
        all.extend(penalties::cases());
        all
    }

    fn coop(&self, coop: Coop) -> Vec<Case> {
        let lanes = self.tuning.lanes;
        let mut all = Vec::new();
        for (i, (kind, rows, columns)) in self.matrices().into_iter().take(4).enumerate() {
            let seed = 50 + i as u64;
            all.push(halve::case(lanes, kind.norm, (5, columns), seed));
            // halves have the norm in them
            let kind = Kind {
                norm: false,
                ..kind
            };
            let shape = (65, rows, columns);
            let heads = self.qkv_heads();
            all.push(matmul_coop_cases::case_of(
                self.format,
                coop,
                kind,
                shape,
                heads,
                seed,
                None,
            ));
        }
        let slots = if self.several_slabs { 256 } else { 0 };
        let sequences = [(0, 33), (250, 9), (511, 2)];
        let (shape, pages) = (self.heads(), self.slab_pages());
        let case = attention_cases::case;
        for &window in self.windows() {
            let mode = Mode {
                window,
                ..self.mode(Some(coop), slots)
            };
            all.push(case(3, shape, self.kv_format, pages, &sequences, mode));
        }
        all
    }
}
