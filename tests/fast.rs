//! The fast mode against the canonical one where an adapter has cooperative matrices, and its refusal
//! where there are none. The kernels themselves are held against their twins by `tests/kernels`.

mod common;

use common::{bits, gpu, model_path, tokens};
use nelumbo::engine::EngineCore;
use nelumbo::engine::runner::Runner;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kv::{KvFormat, PagePool, pages_for};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, Decoder, Numerics, synthetic};
use nelumbo::quant::{FORMATS, Format};
use nelumbo::{Error, LoadOptions, Model, Result};
use serde_json::Value;
use std::sync::Arc;

/// How far logits may move, as a share of the largest: operands are rounded by 2^-11 each, and what a
/// few layers make of that stays well below a hundredth.
const TOLERANCE: f32 = 0.01;

/// Tokens of a step: more than a tile, and not a multiple of one.
const TOKENS: usize = 83;

fn with_coop() -> OpenOptions {
    OpenOptions {
        coop: true,
        ..OpenOptions::default()
    }
}

/// A small model's options.
fn options(weights: &'static Format, numerics: Numerics) -> LoadOptions {
    LoadOptions {
        weights,
        activations: Some(Activations::F32),
        numerics,
        ctx_size: Some(384),
        batch_size: Some(128),
        ..LoadOptions::default()
    }
}

fn load(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions) -> Result<Decoder> {
    let checkpoint = synthetic::checkpoint(config, 7)?;
    decoder_from_parts(gpu, config, &synthetic::NAMES, &checkpoint, options)
}

/// Logits of the last positions of `tokens`, fed in steps of `chunk`.
fn logits(decoder: Decoder, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut pages = Vec::new();
    let mut pool = PagePool::new(decoder.kv().geometry(0));
    assert!(pool.extend(&mut pages, pages_for(tokens.len())));
    let mut runner = Runner::new(decoder).unwrap();
    let mut last = Vec::new();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        let (before, rows) = tokens.split_at(tokens.len().saturating_sub(8));
        let span = |tokens, first, head_rows| Span {
            tokens,
            first_position: i * chunk + first,
            pages: std::slice::from_ref(&pages),
            head_rows,
        };
        let spans = [
            span(before, 0, HeadRows::None),
            span(rows, before.len(), HeadRows::All),
        ];
        let first = usize::from(before.is_empty());
        last = runner.logits(&spans[first..]).unwrap();
    }
    last
}

/// How far the second of two results is from the first, and the largest of the first.
fn moved(canonical: &[f32], fast: &[f32]) -> (f32, f32) {
    assert_eq!(canonical.len(), fast.len());
    assert!(fast.iter().all(|v| v.is_finite()));
    let largest = canonical.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let moved = canonical.iter().zip(fast).map(|(c, f)| (c - f).abs());
    (moved.fold(0.0f32, f32::max), largest)
}

/// Says why a test on fast models does not run; its adapter is what it is.
fn skip(gpu: &Gpu) {
    println!(
        "skipped: {} has no cooperative matrices of f16 with f32 sums",
        gpu.report().name
    );
}

/// The model of the tests on bits, with widths that fill neither groups nor tiles.
fn ragged() -> Config {
    Config {
        hidden_size: 100,
        num_heads: 4,
        num_kv_heads: 1,
        head_dim: 40,
        intermediate_size: 132,
        vocab_size: 203,
        ..synthetic::tiny()
    }
}

#[test]
fn long_steps_agree_within_the_tolerance_and_short_ones_bit_for_bit() {
    let Some(gpu) = gpu(&with_coop()) else {
        return;
    };
    let Some(coop) = gpu.caps().coop else {
        skip(&gpu);
        return;
    };
    for config in [synthetic::tiny(), ragged()] {
        let text = tokens(3, TOKENS, config.vocab_size);
        for format in FORMATS {
            let run = |numerics, chunk| {
                let decoder = load(&gpu, &config, &options(format, numerics)).unwrap();
                logits(decoder, &text, chunk)
            };
            let canonical = run(Numerics::Canonical, TOKENS);
            let fast = run(Numerics::Fast, TOKENS);
            let (most, largest) = moved(&canonical, &fast);
            println!(
                "{} weights, hidden {}, {coop:?}: logits within {most:.6} of {largest:.3}",
                format.name, config.hidden_size
            );
            assert!(
                most <= TOLERANCE * largest,
                "{} weights: logits moved by {most} of {largest}",
                format.name
            );
            assert_ne!(bits(&canonical), bits(&fast), "the mode changed nothing");
            // steps of eight are the canonical kernel's in both modes
            let short = run(Numerics::Fast, 8);
            assert_eq!(bits(&run(Numerics::Canonical, 8)), bits(&short));
        }
    }
}

/// Logits cannot tell whose attention it was, a profile can.
#[test]
fn attention_of_long_steps_is_by_matrices_and_of_short_ones_canonical() {
    let Some(gpu) = gpu(&with_coop()) else {
        return;
    };
    if gpu.caps().coop.is_none() {
        skip(&gpu);
        return;
    }
    for config in [synthetic::tiny(), ragged()] {
        let layers = config.num_layers as u64;
        for numerics in [Numerics::Canonical, Numerics::Fast] {
            let decoder = load(&gpu, &config, &options(FORMATS[0], numerics)).unwrap();
            let mut engine = EngineCore::new(decoder).unwrap();
            for (num_tokens, long) in [(8, false), (9, true), (TOKENS, true)] {
                let mut trial = engine.trial(num_tokens).unwrap();
                let text = tokens(3, num_tokens, config.vocab_size);
                let profile = trial.profile(|t| t.feed(&text).map(|_| ())).unwrap();
                let count = |kernel: &str| -> u64 {
                    let rows = profile.rows();
                    let of = rows.iter().filter(|row| row.variant.kernel.name == kernel);
                    of.map(|row| row.count).sum()
                };
                let expected = match numerics == Numerics::Fast && long {
                    true => [0, layers, 4 * layers],
                    false => [layers, 0, 0],
                };
                assert_eq!(
                    ["attention", "attention_coop", "matmul_coop"].map(count),
                    expected,
                    "{num_tokens} tokens, {numerics:?}"
                );
            }
        }
    }
}

/// Steps that attend to the pages of earlier ones, over a split; and with an f32 cache in two slabs,
/// whose partial results are merged.
#[test]
fn attention_over_pages_splits_and_slabs_agrees_within_the_tolerance() {
    // a page takes 64 KiB, so that a slab of 1 MiB is one split
    let wide = Config {
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 128,
        ..synthetic::tiny()
    };
    let cases = [
        (synthetic::tiny(), KvFormat::F16, None, 1),
        (ragged(), KvFormat::F32, None, 1),
        (wide, KvFormat::F32, Some(1 << 20), 2),
    ];
    for (config, kv_format, max_binding, num_slabs) in cases {
        let open = OpenOptions {
            max_binding,
            ..with_coop()
        };
        let Some(gpu) = gpu(&open) else { return };
        if gpu.caps().coop.is_none() {
            skip(&gpu);
            return;
        }
        let text = tokens(5, 300, config.vocab_size);
        let run = |numerics| {
            let options = LoadOptions {
                kv_format,
                ..options(FORMATS[0], numerics)
            };
            let decoder = load(&gpu, &config, &options).unwrap();
            assert_eq!(decoder.kv().geometry(0).num_slabs(), num_slabs);
            logits(decoder, &text, 60)
        };
        let (canonical, fast) = (run(Numerics::Canonical), run(Numerics::Fast));
        let (most, largest) = moved(&canonical, &fast);
        println!(
            "heads of {} dims, {num_slabs} slabs: logits within {most:.6} of {largest:.3}",
            config.head_dim
        );
        assert!(
            most <= TOLERANCE * largest,
            "logits moved by {most} of {largest}"
        );
        assert_ne!(bits(&canonical), bits(&fast), "the mode changed nothing");
    }
}

#[test]
fn the_real_model_agrees_within_the_tolerance() {
    let Some(gpu) = gpu(&with_coop()) else {
        return;
    };
    if gpu.caps().coop.is_none() {
        skip(&gpu);
        return;
    }
    let Some(path) = model_path() else {
        return;
    };
    let golden = include_str!("fixtures/golden/golden-smollm2.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let ids = |prompt: &Value| -> Vec<u32> {
        serde_json::from_value(prompt["token_ids"].clone()).unwrap()
    };
    let prompts = golden["prompts"].as_array().unwrap().iter().map(ids);
    let mut text = prompts.max_by_key(Vec::len).unwrap();
    assert!(text.len() > 150, "{} tokens", text.len());
    text.truncate(150);
    let run = |numerics| {
        let options = LoadOptions {
            activations: Some(Activations::F32),
            numerics,
            ctx_size: Some(256),
            batch_size: Some(256),
            ..LoadOptions::default()
        };
        let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
        assert_eq!(model.decoder.numerics(), numerics);
        logits(model.decoder, &text, text.len())
    };
    let (canonical, fast) = (run(Numerics::Canonical), run(Numerics::Fast));
    let (most, largest) = moved(&canonical, &fast);
    println!(
        "{} tokens: logits within {most:.5} of {largest:.3}",
        text.len()
    );
    assert!(
        most <= TOLERANCE * largest,
        "logits moved by {most} of {largest}"
    );
    assert_ne!(bits(&canonical), bits(&fast), "the mode changed nothing");
}

/// Never silently: not where the adapter has none, not where they were not asked for, and not with
/// activations that it does not read.
#[test]
fn what_cannot_be_fast_says_so() {
    let Some(plain) = gpu(&OpenOptions::default()) else {
        return;
    };
    assert_eq!(plain.caps().coop, None, "nobody asked for it");
    let config = synthetic::tiny();
    let error = load(&plain, &config, &options(FORMATS[0], Numerics::Fast))
        .err()
        .expect("no cooperative matrices, no fast mode");
    let text = error.to_string();
    assert!(matches!(error, Error::AdapterLacks { .. }), "{text}");
    for word in [&*plain.report().name, "--numerics fast", "8x8x8"] {
        assert!(text.contains(word), "{text}");
    }

    let without = OpenOptions {
        caps: Some("subgroup,f16,dot4,int64".to_owned()),
        ..with_coop()
    };
    assert_eq!(gpu(&without).unwrap().caps().coop, None);

    let asked = gpu(&with_coop()).unwrap();
    assert_eq!(asked.caps().coop, asked.report().caps.coop);
    if asked.caps().coop.is_some() {
        let options = LoadOptions {
            activations: Some(Activations::Q8),
            numerics: Numerics::Fast,
            ..LoadOptions::default()
        };
        let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
        let error = decoder_from_parts(&asked, &config, &synthetic::NAMES, &checkpoint, &options);
        let text = error.err().expect("q8 activations").to_string();
        assert!(text.starts_with("activations:"), "{text}");
    }
}
