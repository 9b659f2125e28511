//! How steps are cut, so that nothing holds a device for long: other programs, and the screen, wait for
//! it meanwhile, and systems reset a device that does not answer. Pure: times are data.

use super::config::Config;
use super::step::{AttentionRound, Step};

/// Seconds that a dispatch may take; nothing can interrupt it.
pub const DISPATCH_SECONDS: f64 = 0.1;
/// Seconds that a submit should take. It may take half a second: what is expected is no promise.
const SUBMIT_SECONDS: f64 = 0.2;
/// Where nobody knows how long a step will take, one of more tokens is cut...
const WHOLE_SUBMIT_TOKENS: usize = 64;
/// ... after so many layers.
const LAYERS_PER_SUBMIT: usize = 4;

/// Dispatches of a part of a step.
const MOST_DISPATCHES: usize = 2048;
/// Dispatches that a recorder has room for, but for those beside the layers.
const ROOM: usize = 4064;
/// Of a layer beside its attention, and some to spare for matrices in several pieces.
const LAYER_DISPATCHES: usize = 24;

/// After how many layers of `num_layers` a step is submitted each time. Where everybody gets one token it
/// is not cut, as long as a submit holds it.
pub(super) fn layers_per_submit(num_layers: usize, step: &Step) -> usize {
    let attention = |round: &AttentionRound| round.items.len() + 1;
    let of_window = step
        .attention
        .iter()
        .map(|rounds| rounds.iter().map(attention).sum());
    let of_layer = LAYER_DISPATCHES + of_window.max().unwrap_or(0);
    if step.longest_span <= 1 {
        return num_layers.min(ROOM / of_layer).max(1);
    }
    let layers = match step.expected_seconds {
        Some(seconds) => (num_layers as f64 * SUBMIT_SECONDS / seconds) as usize,
        None if step.num_tokens > WHOLE_SUBMIT_TOKENS => LAYERS_PER_SUBMIT,
        None => num_layers,
    };
    layers
        .min(MOST_DISPATCHES / of_layer)
        .clamp(1, num_layers.max(1))
}

impl Config {
    /// Seconds that the longest dispatch of a step takes: of `tokens` tokens and `head_rows` rows of
    /// logits, with so many seconds for all matrices and for all of attention.
    pub fn longest_dispatch(
        &self,
        tokens: usize,
        head_rows: usize,
        (matrices, attention): (f64, f64),
    ) -> f64 {
        let (hidden, tokens) = (self.hidden_size as f64, tokens as f64);
        let gate_up = 2.0 * self.intermediate_size as f64 * hidden * tokens;
        let qkv = self.qkv_rows() as f64 * hidden * tokens;
        let head = (self.vocab_size * head_rows) as f64 * hidden;
        let layers = (self.num_layers * self.layer_params()) as f64 * tokens;
        let longest = gate_up.max(qkv).max(head);
        (matrices * longest / (layers + head)).max(attention / self.num_layers as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::synthetic;

    fn step(num_tokens: usize, longest_span: usize, expected_seconds: Option<f64>) -> Step {
        Step {
            words: Vec::new(),
            num_tokens,
            ids_at: 0,
            slots_at: Vec::new(),
            rope_at: Vec::new(),
            positions_at: None,
            head_rows_at: 0,
            head_rows: 0,
            head_in_order: false,
            longest_span,
            expected_seconds,
            attention: Vec::new(),
        }
    }

    #[test]
    fn parts_are_as_long_as_expected_and_decoding_is_one() {
        let layers =
            |tokens, longest, seconds| layers_per_submit(30, &step(tokens, longest, seconds));
        assert_eq!(layers(64, 64, None), 30);
        assert_eq!(layers(65, 64, None), 4);
        assert_eq!(layers(65, 1, None), 30, "decoding");
        assert_eq!(layers(16, 1, Some(9.0)), 30, "slow decoding");
        for seconds in [0.001, 0.19, 0.2, 0.21, 0.7, 3.0, 5.9] {
            let layers = layers(512, 508, Some(seconds));
            let part = seconds * layers as f64 / 30.0;
            assert!(part <= SUBMIT_SECONDS + 1e-9, "{layers} layers, {part} s");
            assert!(
                layers == 30 || part > SUBMIT_SECONDS / 2.0,
                "{layers} layers"
            );
        }
        assert_eq!(layers(512, 508, Some(600.0)), 1);
        // many rounds of attention are many dispatches
        let mut many = step(512, 508, Some(0.01));
        let rounds = |count| {
            let round = |_| AttentionRound {
                items: Vec::new(),
                merge_at: 0,
                merge_rows: 0,
            };
            (0..count).map(round).collect::<Vec<_>>()
        };
        // a layer has one of the plans
        many.attention.extend([rounds(30), rounds(100)]);
        assert_eq!(layers_per_submit(30, &many), 2048 / 124);
        // decoding is cut only where it does not fit: its dispatches would be refused
        many.longest_span = 1;
        assert_eq!(layers_per_submit(30, &many), 30);
        assert_eq!(layers_per_submit(126, &many), 4064 / 124);
    }

    #[test]
    fn the_longest_dispatch_is_a_share_of_what_it_is_part_of() {
        let config = Config {
            num_layers: 30,
            hidden_size: 576,
            num_heads: 9,
            num_kv_heads: 3,
            head_dim: 64,
            intermediate_size: 1536,
            vocab_size: 49152,
            ..synthetic::tiny()
        };
        // gate and up are half of a layer's weights
        let of_layers = config.longest_dispatch(512, 1, (3.0, 0.0));
        assert!((0.04..0.052).contains(&of_layers), "{of_layers}");
        // a head for each token is a fifth of all weights
        let of_head = config.longest_dispatch(4, 4, (1.0, 0.0));
        assert!((0.20..0.22).contains(&of_head), "{of_head}");
        assert_eq!(config.longest_dispatch(4, 1, (0.0, 6.0)), 0.2);
    }
}
