//! Every family on the device: against what transformers computes with f16 weights, against the pass on the
//! CPU with INT8 weights, and the same bits however a text is cut, in company, and where its beginning is
//! found in the cache.

#[path = "../common/mod.rs"]
mod common;
#[path = "../engine/serving.rs"]
mod serving;

use super::{Case, apart, cases, directory, fixtures, folder, json};
use common::{NAN, bits, fill_pages, gpu, request};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::{EngineCore, Request, Sampling};
use nelumbo::formats;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kv::{KvFormat, PAGE_SIZE};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::reference::Reference;
use nelumbo::model::roofline::ModelShape;
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Decoder, family};
use nelumbo::quant::Format;
use serving::{Company, Serving, alone};
use std::path::Path;
use std::sync::Arc;

/// The largest difference of a logit, as a share of the range of all.
const BOUND: f64 = 1e-3;

/// Steps into which a text is cut: single tokens, within a page, over its edge, and all at once.
const CHUNKS: [usize; 5] = [1, 7, 16, 33, 512];

fn options(weights: &str, context: usize) -> LoadOptions {
    LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        activations: Some(Activations::F32),
        kv_format: KvFormat::F32,
        ctx_size: Some(context),
        max_running: 1,
        ..LoadOptions::default()
    }
}

/// The model at `path` on a device that others share, so that kernels are compiled once.
fn decoder(gpu: &Arc<Gpu>, path: &Path, options: &LoadOptions) -> Decoder {
    let files = formats::open(path).unwrap();
    let family = family(&files).unwrap();
    let config = (family.config)(&files).unwrap();
    let names = (family.names)(&files);
    let decoder = decoder_from_parts(gpu, &config, &names, files.checkpoint(), options).unwrap();
    let planned = ModelShape::of(&decoder).weight_bytes().all;
    let real = decoder.weights().size_bytes();
    assert_eq!(real, planned, "{}: bytes of weights", path.display());
    decoder
}

fn engine(gpu: &Arc<Gpu>, path: &Path, options: &LoadOptions) -> EngineCore {
    EngineCore::new(decoder(gpu, path, options)).unwrap()
}

/// Logits of every position of `tokens`, in steps of at most `chunk`.
fn logits(engine: &mut EngineCore, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    fill_pages(engine.decoder(), NAN, &[]);
    let mut rows = Vec::new();
    let each = |_: usize, row: &[f32]| rows.push(row.to_vec());
    engine.evaluate(tokens, chunk, 0, each).unwrap();
    rows
}

fn exact(rows: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let row = |row: &Vec<f32>| row.iter().map(|&v| f64::from(v)).collect();
    rows.iter().map(row).collect()
}

fn context(case: &Case) -> usize {
    case.prompt.len() + case.greedy.len()
}

/// Holds the model at `path` against a case.
fn compare(gpu: &Arc<Gpu>, what: &str, path: &Path, case: &Case) {
    let mut engine = engine(gpu, path, &options("f16", context(case)));
    let found = logits(&mut engine, &case.prompt, 512);
    let apart = apart(&case.logits, &exact(&found));
    println!("{what}, {}: within {apart:.1e} of the range", case.name);
    assert!(apart <= BOUND, "{what}, {}: {apart:e}", case.name);
    let greedy = Sampling::default();
    let answer = common::answer(
        &mut engine,
        request(&case.prompt, case.greedy.len(), greedy),
    );
    assert_eq!(answer.tokens, case.greedy, "{what}, {}", case.name);
}

#[test]
fn f16_weights_give_the_logits_and_every_greedy_token() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for name in fixtures() {
        for case in cases(&name) {
            let made = directory(&name, &json(&folder(&name).join(&case.config)));
            compare(&gpu, &name, made.path(), &case);
            if case.is_in_gguf {
                let path = folder(&name).join("model.gguf");
                compare(&gpu, &format!("{name}.gguf"), &path, &case);
            }
        }
    }
}

/// The same weights, rounded, on the CPU.
#[test]
fn int8_weights_give_the_logits_of_the_rounded_weights() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for name in fixtures() {
        let (path, case) = (folder(&name), cases(&name).remove(1));
        let options = options("q8", context(&case));
        let files = formats::open(&path).unwrap();
        let family = family(&files).unwrap();
        let config = (family.config)(&files).unwrap();
        let config = config.for_context(context(&case));
        let names = (family.names)(&files);
        let map = TensorMap::new(&config, &names, files.checkpoint()).unwrap();
        let reference = Reference::load(&config, &map, options.weights).unwrap();
        let mut engine = engine(&gpu, &path, &options);
        let found = logits(&mut engine, &case.prompt, 512);
        let apart = apart(&reference.logits(&case.prompt), &exact(&found));
        println!("{name}, q8 weights: within {apart:.1e} of the range");
        assert!(apart <= BOUND, "{name}: {apart:e}");
    }
}

#[test]
fn no_cut_of_a_text_changes_a_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for name in fixtures() {
        let case = cases(&name).remove(1);
        for (weights, activations) in [("f16", Activations::F32), ("q8", Activations::Q8)] {
            let options = LoadOptions {
                activations: Some(activations),
                kv_format: KvFormat::F16,
                ..options(weights, context(&case))
            };
            let mut engine = engine(&gpu, &folder(&name), &options);
            let mut cut = |chunk| -> Vec<Vec<u32>> {
                let rows = logits(&mut engine, &case.prompt, chunk);
                rows.iter().map(|row| bits(row)).collect()
            };
            let singly = cut(CHUNKS[0]);
            for chunk in &CHUNKS[1..] {
                let rows = cut(*chunk);
                let first = rows.iter().zip(&singly).position(|(a, b)| a != b);
                assert_eq!(first, None, "{name}, {weights}, steps of {chunk}");
            }
        }
    }
}

/// Three requests that begin alike and one that does not.
fn requests(case: &Case) -> Vec<Request> {
    let (prompt, len) = (&case.prompt, case.prompt.len());
    let half = len / 2;
    let other = [&prompt[..half], &prompt[..half / 2]].concat();
    let reversed: Vec<u32> = prompt.iter().rev().copied().collect();
    [prompt.clone(), other, prompt[..len - 3].to_vec(), reversed]
        .iter()
        .map(|tokens| request(tokens, 6, Sampling::default()))
        .collect()
}

#[test]
fn neither_company_nor_a_prefix_changes_a_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for name in fixtures() {
        let case = cases(&name).remove(1);
        let requests = requests(&case);
        let options = LoadOptions {
            max_running: requests.len(),
            pool_tokens: Some(64 * PAGE_SIZE),
            ..options("q8", context(&case))
        };
        let mut runner = Runner::new(decoder(&gpu, &folder(&name), &options)).unwrap();
        let expected = alone(&mut runner, &requests);
        for budget in [5, 16, 90] {
            let company = Company {
                max_running: requests.len(),
                budget,
                num_pages: 40,
            };
            fill_pages(runner.decoder(), NAN, &[]);
            let mut serving = Serving::new(&mut runner, company, true);
            for found in ["nothing", "all"] {
                let rows = serving.serve(&requests);
                let differ = rows.iter().zip(&expected).position(|(a, b)| a != b);
                let what = format!("{name}, steps of {budget}, {found} in the cache");
                assert_eq!(differ, None, "{what}");
            }
            let idle = serving.scheduler.pages().num_idle();
            assert!(idle > 0 && serving.widest > 1, "{name}: {idle} pages kept");
        }
    }
}
