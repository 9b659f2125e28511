//! Whole models on the device against the forward pass on the CPU in f64, over many shapes.

mod common;

use common::{argmax, gpu, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::Engine;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kv::KvFormat;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::reference::Reference;
use nelumbo::model::rope::{Rope, RopeScaling};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::FORMATS;
use std::sync::Arc;

/// The largest error permitted, as a share of the range of a row of logits.
const BOUND: f64 = 1e-4;

/// `tiny` with these heads.
fn heads(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Config {
    Config {
        num_heads,
        num_kv_heads,
        head_dim,
        ..synthetic::tiny()
    }
}

fn scaled(theta: f64, scaling: RopeScaling) -> Config {
    Config {
        rope: Rope { theta, scaling },
        ..heads(4, 2, 64)
    }
}

/// Holds every row of logits against the reference, for each format of weights.
fn compare(gpu: &Arc<Gpu>, name: &str, config: &Config, num_tokens: usize) {
    let checkpoint = synthetic::checkpoint(config, 21).unwrap();
    let map = TensorMap::new(config, &synthetic::NAMES, &checkpoint).unwrap();
    let text = tokens(22, num_tokens, config.vocab_size);
    for &format in FORMATS {
        let options = LoadOptions {
            weights: format,
            kv_format: KvFormat::F32,
            ctx_size: Some(num_tokens + 1),
            ..LoadOptions::default()
        };
        let decoder =
            decoder_from_parts(gpu, config, &synthetic::NAMES, &checkpoint, &options).unwrap();
        let mut engine = Engine::new(decoder).unwrap();
        let expected = Reference::load(config, &map, format).unwrap().logits(&text);
        let (mut worst, mut rows) = (0.0f64, 0);
        let each = |position: usize, logits: &[f32]| {
            let expected = &expected[position];
            let error = row_error(name, position, expected, logits);
            worst = worst.max(error);
            rows += 1;
        };
        engine.evaluate(&text, 64, 0, each).unwrap();
        println!(
            "{name}, {} weights: logits within {worst:.2e} of their range",
            format.name
        );
        assert_eq!(rows, num_tokens);
        assert!(worst <= BOUND, "{name}, {}: {worst:e}", format.name);
    }
}

/// The largest error of a row as a share of the exact row's range. The best token has to be the
/// exact one unless the exact row holds another within twice that error.
fn row_error(name: &str, position: usize, exact: &[f64], logits: &[f32]) -> f64 {
    let (low, high) = exact
        .iter()
        .fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let errors = exact
        .iter()
        .zip(logits)
        .map(|(e, &l)| (e - f64::from(l)).abs());
    // unlike max, this keeps a NaN
    let largest = errors.fold(0.0, |a, b| if b <= a { a } else { b });
    let best = exact[argmax(logits) as usize];
    assert!(
        high - best <= 2.0 * largest,
        "{name}, position {position}: the best token is {:e} under the exact one, errors are {largest:e}",
        high - best
    );
    largest / (high - low)
}

fn compare_all(shapes: &[(&str, Config, usize)]) {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for (name, config, num_tokens) in shapes {
        compare(&gpu, name, config, *num_tokens);
    }
}

#[test]
fn heads_of_any_width_and_ratio() {
    compare_all(&[
        ("1 query head a key head, 32 wide", heads(4, 4, 32), 40),
        ("3 query heads a key head, 64 wide", heads(6, 2, 64), 40),
        ("4 query heads a key head, 80 wide", heads(8, 2, 80), 40),
        ("8 query heads a key head, 128 wide", heads(8, 1, 128), 40),
        ("2 query heads a key head, 256 wide", heads(2, 1, 256), 40),
        ("5 query heads a key head, 40 wide", heads(5, 1, 40), 40),
    ]);
}

#[test]
fn ragged_widths_and_an_untied_head() {
    let ragged = Config {
        hidden_size: 100,
        intermediate_size: 36 * 4,
        vocab_size: 301,
        tied_head: false,
        ..heads(3, 1, 56)
    };
    let odd = Config {
        num_layers: 3,
        hidden_size: 132,
        intermediate_size: 100,
        vocab_size: 97,
        rms_norm_eps: 1e-6,
        ..heads(4, 2, 40)
    };
    compare_all(&[("hidden 100, untied", ragged, 33), ("hidden 132", odd, 33)]);
}

#[test]
fn every_scaling_of_rope() {
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original: 64.0, // short, so that a short text is beyond it
    };
    let factors = (0..32).map(|i| 1.0 + i as f32 / 8.0).collect();
    compare_all(&[
        ("llama3 scaling", scaled(500_000.0, llama3), 96),
        (
            "linear scaling",
            scaled(10_000.0, RopeScaling::Linear { factor: 4.0 }),
            96,
        ),
        (
            "a factor a frequency",
            scaled(10_000.0, RopeScaling::Factors(factors)),
            96,
        ),
    ]);
}

#[test]
fn texts_over_several_splits() {
    let config = Config {
        vocab_size: 128,
        ..heads(6, 2, 32)
    };
    compare_all(&[("530 tokens", config, 530)]);
}
