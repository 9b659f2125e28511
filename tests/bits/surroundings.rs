//! What is around a text: the limits and the capabilities of the adapter, the pages of others.

use super::common::{NAN, answer, bits, decoder, engine, fill_pages, gpu, request, tokens};
use super::{LONGEST, options, ragged};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kv::{KvFormat, PageId, pages_for};
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, Decoder, synthetic};
use std::sync::Arc;

/// Logits' bits from `from` on, in steps of 64 where none are wanted.
fn evaluate(engine: &mut EngineCore, text: &[u32], from: usize) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    engine
        .evaluate(text, 64, from, |_, row| rows.push(bits(row)))
        .unwrap();
    assert_eq!(rows.len(), text.len() - from);
    rows
}

/// Opens with a binding limit, checks that it cuts the embedding and the KV cache as told, and
/// returns the logits' bits from `from` on.
fn under_limit(
    max_binding: Option<u64>,
    config: &Config,
    options: &LoadOptions,
    text: &[u32],
    from: usize,
    is_cut: impl Fn(&Decoder) -> bool,
) -> Option<Vec<Vec<u32>>> {
    let open = OpenOptions {
        max_binding,
        ..OpenOptions::default()
    };
    let mut engine = engine(&gpu(&open)?, config, options);
    assert_eq!(
        is_cut(engine.decoder()),
        max_binding.is_some(),
        "{max_binding:?}"
    );
    Some(evaluate(&mut engine, text, from))
}

#[test]
fn m33_a_binding_limit_of_4_mib_changes_no_bit() {
    let config = Config {
        hidden_size: 128,
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 64,
        intermediate_size: 160,
        vocab_size: 40_000,
        max_position_embeddings: 4096,
        ..synthetic::tiny()
    };
    let options = LoadOptions {
        ctx_size: Some(4096),
        batch_size: Some(64),
        ..options("q8", KvFormat::F32)
    };
    let text = tokens(5, LONGEST, config.vocab_size);
    let run = |max_binding| {
        under_limit(
            max_binding,
            &config,
            &options,
            &text,
            LONGEST - 36,
            |decoder| {
                let kv = decoder.kv().geometry(0);
                let shards = decoder.weights().embedding.shards.len();
                assert_eq!(shards > 1, kv.num_slabs() > 1, "{shards} shards, {kv:?}");
                shards > 1
            },
        )
    };
    let Some(whole) = run(None) else { return };
    assert!(run(Some(4 << 20)).unwrap() == whole);
}

#[test]
fn m33_a_binding_limit_of_64_mib_changes_no_bit() {
    let config = Config {
        num_layers: 1,
        hidden_size: 128,
        vocab_size: 270_000,
        ..synthetic::tiny()
    };
    let options = LoadOptions {
        batch_size: Some(16),
        ..options("f16", KvFormat::F16)
    };
    // from both shards of the embedding: the first ends at token 262,143
    let mut text = tokens(6, 12, config.vocab_size);
    text.extend([0, 262_143, 262_144, 269_999]);
    let run = |max_binding| {
        under_limit(max_binding, &config, &options, &text, 0, |decoder| {
            decoder.weights().embedding.shards.len() > 1
        })
    };
    let Some(whole) = run(None) else { return };
    assert!(run(Some(64 << 20)).unwrap() == whole);
}

#[test]
fn nan_in_pages_of_others_changes_no_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for kv_format in KvFormat::ALL {
        let config = synthetic::tiny();
        let decoder = decoder(&gpu, &config, &options("q8", kv_format));
        let mut runner = Runner::new(decoder).unwrap();
        let text = tokens(8, 300, config.vocab_size);
        // every other page, so that each own page has strangers on both sides
        let pages: Vec<PageId> = (0..pages_for(text.len()))
            .map(|i| 2 * i as PageId + 1)
            .collect();
        let mut run = |others: u32| {
            fill_pages(runner.decoder(), 0, &[]);
            fill_pages(runner.decoder(), others, &pages);
            let mut rows = Vec::new();
            let mut start = 0;
            for len in [250, 5, 29, 1, 1, 1, 13] {
                let span = Span {
                    tokens: &text[start..start + len],
                    first_position: start,
                    pages: std::slice::from_ref(&pages),
                    head_rows: HeadRows::Last(1),
                };
                rows.push(bits(&runner.logits(&[span]).unwrap()));
                start += len;
            }
            assert_eq!(start, text.len());
            rows
        };
        let clean = run(0);
        assert!(run(NAN) == clean, "{}", kv_format.name());
    }
}

/// Weights, activations, cache.
type Types = (&'static str, Activations, KvFormat);

const EXACT: Types = ("q8", Activations::F32, KvFormat::F16);
const INT8: Types = ("q8", Activations::Q8, KvFormat::F16);
const HALF: Types = ("f16", Activations::F32, KvFormat::F32);

/// The same model and text on two devices opened differently.
fn agrees_with_defaults(open: &OpenOptions, lanes: u32, types: &[Types]) {
    let Some(usual) = gpu(&OpenOptions::default()) else {
        return;
    };
    let other = gpu(open).expect("the adapter is there");
    for &(weights, activations, kv_format) in types {
        let options = LoadOptions {
            activations: Some(activations),
            lanes: Some(lanes),
            ..options(weights, kv_format)
        };
        let config = ragged();
        let text = tokens(9, 280, config.vocab_size);
        let run = |gpu: &Arc<Gpu>| {
            let mut engine = engine(gpu, &config, &options);
            println!("caps {}: {:?}", gpu.caps(), engine.decoder().tuning());
            let sampling = Sampling {
                temperature: 0.8,
                top_p: 0.9,
                repeat_penalty: 1.1,
                seed: 4,
                ..Sampling::default()
            };
            let rows = evaluate(&mut engine, &text, text.len() - 32);
            (rows, answer(&mut engine, request(&text, 8, sampling)))
        };
        assert!(
            run(&usual) == run(&other),
            "{weights} weights, {} activations, {} KV",
            activations.name(),
            kv_format.name()
        );
    }
}

#[test]
fn e3_capabilities_change_no_bit() {
    let none = OpenOptions {
        caps: Some("none".to_owned()),
        ..OpenOptions::default()
    };
    // as many lanes as subgroups of the software adapters can join
    agrees_with_defaults(&none, 1, &[EXACT, INT8, HALF]);
    agrees_with_defaults(&none, 4, &[INT8]);
    agrees_with_defaults(&none, 8, &[EXACT, HALF]);
}

#[test]
fn bounds_checks_change_no_bit() {
    let checked = OpenOptions {
        checked: true,
        ..OpenOptions::default()
    };
    agrees_with_defaults(&checked, 1, &[EXACT, INT8]);
    agrees_with_defaults(&checked, 8, &[INT8, HALF]);
}
