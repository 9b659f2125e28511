//! Whole models on the device against the forward pass on the CPU in f64, over many shapes.

mod common;

use common::{argmax, gpu, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::EngineCore;
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Checkpoint, Encoding, Gguf};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kv::KvFormat;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::reference::Reference;
use nelumbo::model::rope::{Rope, RopeScaling};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, synthetic};
use nelumbo::quant::{FORMATS, Format};
use std::path::Path;
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
        ropes: vec![Rope {
            theta,
            scaling,
            ..Rope::default()
        }],
        ..heads(4, 2, 64)
    }
}

/// Holds every row of logits against the reference, for each format of weights.
fn compare(gpu: &Arc<Gpu>, name: &str, config: &Config, num_tokens: usize) {
    let checkpoint = synthetic::checkpoint(config, 21).unwrap();
    compare_weights(gpu, name, config, &checkpoint, num_tokens);
}

/// [`compare`] with these weights.
fn compare_weights(
    gpu: &Arc<Gpu>,
    name: &str,
    config: &Config,
    checkpoint: &Checkpoint,
    num_tokens: usize,
) {
    let map = TensorMap::new(config, &synthetic::NAMES, checkpoint).unwrap();
    let text = tokens(22, num_tokens, config.vocab_size);
    for &format in FORMATS {
        let options = LoadOptions {
            weights: format,
            kv_format: KvFormat::F32,
            ctx_size: Some(num_tokens + 1),
            ..LoadOptions::default()
        };
        let decoder =
            decoder_from_parts(gpu, config, &synthetic::NAMES, checkpoint, &options).unwrap();
        let mut engine = EngineCore::new(decoder).unwrap();
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
        norm_eps: 1e-6,
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

/// Rows of whole blocks of 256, for every matrix.
fn wide() -> Config {
    Config {
        hidden_size: 256,
        intermediate_size: 256,
        vocab_size: 128,
        ..heads(8, 4, 32)
    }
}

/// The matrices of a checkpoint encoded again, each as it is told by name, through a GGUF file; and
/// the size of what that changed in the matrices, as a share of theirs.
fn encoded_again(from: &Checkpoint, encoding: impl Fn(&str) -> Encoding) -> (Checkpoint, f64) {
    let (mut error, mut size) = (0.0, 0.0);
    let mut values = Vec::new();
    let mut file = GgufWriter::new();
    for info in from.tensors() {
        from.read_rows(info, 0..info.rows(), &mut values).unwrap();
        if let [_, _] = *info.shape {
            let encoding = encoding(&info.name);
            let bytes = encoding.encode(&values);
            let mut back = vec![0.0; values.len()];
            encoding.decode(&bytes, &mut back);
            error += distance(&values, &back);
            size += distance(&values, &vec![0.0; values.len()]);
            file = file.tensor(&info.name, &info.shape, encoding, &bytes);
        } else {
            let bytes = Encoding::F32.encode(&values);
            file = file.tensor(&info.name, &info.shape, Encoding::F32, &bytes);
        }
    }
    let gguf = Gguf::read(Path::new("encoded.gguf"), Arc::new(file.finish())).unwrap();
    (gguf.checkpoint, (error / size).sqrt())
}

/// The sum of squared differences.
fn distance<T: Copy + Into<f64>>(a: &[T], b: &[T]) -> f64 {
    let squares = a
        .iter()
        .zip(b)
        .map(|(&a, &b)| (a.into() - b.into()).powi(2));
    squares.sum()
}

/// Q4_K_M in small: what matters most has more bits.
fn mixed(name: &str) -> Encoding {
    match name.rsplit('.').next() {
        Some("v" | "down" | "embedding") => Encoding::Q6K,
        _ => Encoding::Q4K,
    }
}

#[test]
fn weights_from_every_encoding_of_files() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let (config, original) = (wide(), synthetic::checkpoint(&wide(), 21).unwrap());
    for encoding in Encoding::all() {
        let name = format!("{} in the file", encoding.name());
        let (checkpoint, _) = encoded_again(&original, |_| encoding);
        compare_weights(&gpu, &name, &config, &checkpoint, 12);
    }
    let (checkpoint, _) = encoded_again(&original, mixed);
    let found: Vec<_> = ["embedding", "layers.0.q", "layers.1.down", "norm"]
        .map(|name| checkpoint.require(name).unwrap().encoding)
        .into();
    let expected = [Encoding::Q6K, Encoding::Q4K, Encoding::Q6K, Encoding::F32];
    assert_eq!(found, expected);
    compare_weights(&gpu, "Q4_K and Q6_K in the file", &config, &checkpoint, 12);
}

/// What encoding does to logits is of the size of what it does to weights. A logit depends on 16
/// matrices (7 in each of two layers, embedding and head); errors that are independent add up to
/// four times that of one, and a little more where products of matrices meet, in gates and scores.
/// The logits of two unrelated models are 1.41 apart by this measure.
#[test]
fn a_model_encoded_again_stays_the_same_model() {
    let config = wide();
    let text = tokens(22, 12, config.vocab_size);
    let logits = |checkpoint: &Checkpoint| -> Vec<f64> {
        let map = TensorMap::new(&config, &synthetic::NAMES, checkpoint).unwrap();
        let format = Format::from_name("f16").unwrap();
        Reference::load(&config, &map, format)
            .unwrap()
            .logits(&text)
            .concat()
    };
    let original = synthetic::checkpoint(&config, 21).unwrap();
    let exact = logits(&original);
    let size = distance(&exact, &vec![0.0; exact.len()]);
    let held = |name: &str, encoding: &dyn Fn(&str) -> Encoding, weights_bound: f64| {
        let (checkpoint, weights) = encoded_again(&original, encoding);
        let change = (distance(&logits(&checkpoint), &exact) / size).sqrt();
        println!("{name}: weights change by {weights:.4}, logits by {change:.4}");
        assert!(
            weights <= weights_bound,
            "{name}: {weights} above {weights_bound}"
        );
        assert!(change <= 5.0 * weights, "{name}: {change} from {weights}");
    };
    for encoding in Encoding::all() {
        // Normal values reach about 2.5 times their size within 32, so that a step between n levels
        // is 5 / n, and the error 0.29 of that; a little more where scales are rounded as well.
        let levels = match encoding {
            Encoding::F32 | Encoding::F64 | Encoding::F16 => f64::INFINITY,
            Encoding::Bf16 | Encoding::Q8_0 | Encoding::Q8K => 200.0,
            Encoding::Q6K => 64.0,
            Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => 32.0,
            Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K => 16.0,
            Encoding::Q3K => 8.0,
            Encoding::Q2K => 4.0,
            other => panic!("{} is new here", other.name()),
        };
        held(encoding.name(), &|_| encoding, 1.8 / levels);
    }
    held("Q4_K and Q6_K", &mixed, 1.8 / 16.0);
}
