//! The kernels of a step's attention, layer by layer as far as tokens see: everything before them, or a window.

use super::sizes::ModelShape;
use super::step::{ChunkShape, Division, KernelWork, Kind, StepShape};
use crate::kernels::attention_output::Output;
use crate::kv::{PAGE_SIZE, SPLIT_SIZE};

impl StepShape {
    /// As if sequences were no longer than what a token sees.
    fn within(&self, window: Option<usize>) -> StepShape {
        let most = window.map_or(usize::MAX, |window| window - 1);
        let chunk = |chunk: &ChunkShape| ChunkShape {
            first_position: chunk.first_position.min(most),
            ..*chunk
        };
        StepShape {
            decodes: self.decodes.iter().map(|&depth| depth.min(most)).collect(),
            chunks: self.chunks.iter().map(chunk).collect(),
            head_rows: self.head_rows,
        }
    }

    /// Over all tokens that attend to several splits, how many; of the sequences, by how long they are, that
    /// `counts` says.
    fn parts_of_several_splits(&self, counts: impl Fn(usize) -> bool) -> usize {
        let one = |depth: &usize| (*depth, 1);
        let chunks = self.chunks.iter().map(|c| (c.first_position, c.tokens));
        let runs = self.decodes.iter().map(one).chain(chunks);
        let parts = |(first, tokens): (usize, usize)| {
            let end = first + tokens;
            let own = |split: usize| {
                let range = first.max(split * SPLIT_SIZE)..end.min((split + 1) * SPLIT_SIZE);
                range.len() * (split + 1)
            };
            let from = (first / SPLIT_SIZE).max(1);
            (from..end.div_ceil(SPLIT_SIZE)).map(own).sum::<usize>()
        };
        runs.filter(|(first, tokens)| counts(first + tokens))
            .map(parts)
            .sum()
    }
}

impl ModelShape {
    /// Tokens whose keys, or values, of a layer a binding holds.
    fn tokens_of_a_slab(&self) -> usize {
        let layers = 2 * self.config.num_layers.max(1) as u64;
        let token = (self.kv_bytes_per_token() / layers).max(1);
        (self.max_binding / token) as usize
    }

    pub(super) fn push_attention(
        &self,
        step: &StepShape,
        division: &Division,
        all: &mut Vec<KernelWork>,
    ) {
        let c = &self.config;
        for window in c.windows() {
            let own = (0..c.num_layers).filter(|&layer| c.layer_kind(layer).window == window);
            self.push_attention_of(own.count(), window, step, division, all);
        }
        if !Output::of(&self.attention()).records() {
            all.push(KernelWork {
                name: "pack",
                times: c.num_layers,
                dispatches: 1,
                kind: Kind::Memory,
                bytes: 8.0 * (step.tokens() * c.q_width()) as f64,
                ops: 0.0,
            });
        }
    }

    /// Attention of so many layers, whose tokens see a window.
    fn push_attention_of(
        &self,
        layers: usize,
        window: Option<usize>,
        step: &StepShape,
        division: &Division,
        all: &mut Vec<KernelWork>,
    ) {
        let (c, shape) = (&self.config, self.attention());
        let tiling = shape.tiling();
        let of_chunk = |chunk: &ChunkShape| chunk.tokens.div_ceil(tiling.tile_tokens);
        let tiles = step.decodes.len() + step.chunks.iter().map(of_chunk).sum::<usize>();
        let folds = tiles * tiling.item_teams >= division.wanted_teams;
        // a product with each key, and one with each value
        let row_ops = |rows: usize, keys: f64| {
            4.0 * (shape.num_kv_heads * c.head_dim * rows) as f64 * keys.max(1.0)
        };
        // keys that neighbours up to the one before `end` see between them
        let seen = |end: usize, tokens: usize| match window {
            None => end,
            Some(window) => end.min(window - 1 + tokens),
        };
        let token_bytes = self.kv_bytes_per_token() as f64 / c.num_layers.max(1) as f64;
        let slabs = self.slabs_of(step);
        let mut push = |kind, keys: f64, tokens: usize, ops: f64| {
            all.push(KernelWork {
                name: "attention",
                times: layers,
                dispatches: slabs,
                kind,
                bytes: token_bytes * (keys + tokens as f64),
                ops,
            });
        };
        if !step.decodes.is_empty() {
            let keys = |depth: &usize| seen(depth + 1, 1).next_multiple_of(PAGE_SIZE) as f64;
            let keys: f64 = step.decodes.iter().map(keys).sum();
            let ops = row_ops(shape.padded_rows(1), keys);
            push(Kind::AttentionOfOne, keys, step.decodes.len(), ops);
        }
        if !step.chunks.is_empty() {
            let (mut keys, mut tokens, mut ops) = (0.0, 0, 0.0);
            for chunk in &step.chunks {
                let (first, n, tile) = (chunk.first_position, chunk.tokens, tiling.tile_tokens);
                let (whole, rest) = (n / tile, n % tile);
                let ends = (1..=whole).map(|i| seen(first + i * tile, tile) as f64);
                if whole > 0 {
                    ops += row_ops(shape.padded_rows(tile), ends.sum());
                }
                if rest > 0 {
                    let last = seen(first + n, rest) as f64;
                    ops += row_ops(shape.padded_rows(rest), last);
                }
                keys += seen(first + n, n) as f64;
                tokens += n;
            }
            push(Kind::AttentionOfMany, keys, tokens, ops);
        }
        // whose splits lie in one slab is merged only where teams are few
        let slab = self.tokens_of_a_slab();
        let within = step.within(window);
        let apart = within.parts_of_several_splits(|end| !folds || end > slab);
        if apart > 0 {
            all.push(KernelWork {
                name: "attention_merge",
                times: layers,
                dispatches: 1,
                kind: Kind::Memory,
                bytes: 4.0 * apart as f64 * (c.num_heads * (c.head_dim + 4)) as f64,
                ops: 0.0,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sizes::tests::tiny;
    use super::*;
    use crate::model::config::LayerKind;

    const DIVISION: Division = Division {
        tile_tokens: 8,
        wanted_teams: 2,
    };

    #[test]
    fn each_token_has_its_own_splits() {
        // whoever is longer
        let step = StepShape {
            decodes: vec![1000, 255, 256],
            ..StepShape::chunk(250, 10, false)
        };
        assert_eq!(step.parts_of_several_splits(|_| true), 4 + 2 + 4 * 2);
        let far = StepShape::chunk(500, 600, false);
        assert_eq!(
            far.parts_of_several_splits(|_| true),
            12 * 2 + 256 * 3 + 256 * 4 + 76 * 5
        );
    }

    #[test]
    fn attention_grows_with_the_context_by_line_and_with_a_prompt_by_square() {
        let ops = |step: StepShape| {
            let kernels = tiny().kernels(&step, &DIVISION);
            kernels.iter().find(|k| k.name == "attention").unwrap().ops
        };
        let decode = |depth| ops(StepShape::decode(depth));
        assert_eq!(decode(1023), 2.0 * decode(511));
        assert_eq!(decode(0), decode(15), "pages are whole");
        let prompt = |n| ops(StepShape::chunk(0, n, false));
        let ratio = prompt(4096) / prompt(2048);
        assert!((3.9..4.0).contains(&ratio), "{ratio}");
        // the exact sum over tokens, but for what tiles add
        let (c, n) = (tiny().config, 4096.0);
        let exact = 4.0 * c.q_width() as f64 * n * (n + 1.0) / 2.0;
        let over = prompt(4096) / exact;
        assert!((1.0..1.35).contains(&over), "{over}");
        let later = ops(StepShape::chunk(4096, 256, false));
        assert!(later > 256.0 * decode(4095) / 2.0 && later < 256.0 * decode(4400));
    }

    #[test]
    fn a_window_bounds_what_attention_takes() {
        let mut shape = tiny();
        let kind = |window| LayerKind { window, rope: 0 };
        shape.config.layer_kinds = vec![kind(Some(64)), kind(None)];
        let attention = |step: &StepShape| -> Vec<(usize, f64)> {
            let kernels = shape.kernels(step, &DIVISION);
            let own = kernels.iter().filter(|k| k.name == "attention");
            own.map(|k| (k.times, k.ops)).collect()
        };
        let plain = |step: &StepShape| {
            let kernels = tiny().kernels(step, &DIVISION);
            kernels.iter().find(|k| k.name == "attention").unwrap().ops
        };
        let far = StepShape::decode(999);
        let near = StepShape::decode(63);
        assert_eq!(attention(&near), [(1, plain(&near)), (1, plain(&near))]);
        assert_eq!(attention(&far), [(1, plain(&near)), (1, plain(&far))]);
        let prompt = StepShape::chunk(0, 512, false);
        let ops = attention(&prompt);
        assert!(ops[0].1 < 0.3 * ops[1].1 && ops[1].1 == plain(&prompt));
    }
}
