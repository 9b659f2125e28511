//! Models as files: the two layouts against each other, and what is wrong in a file.

use super::common::{Answer, answer, gpu, request};
use super::logs::{told, warnings};
use super::refused;
use super::tiny_llama::TinyLlama;
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::gpu::OpenOptions;
use nelumbo::kv::KvFormat;
use nelumbo::quant::Format;
use nelumbo::{Error, LoadOptions, Model, Result};
use std::fs;
use std::path::{Path, PathBuf};

fn load(path: &Path, weights: &str) -> Result<Model> {
    let options = LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        kv_format: KvFormat::F32,
        ..LoadOptions::default()
    };
    Model::load(path, &options, &mut |_, _| ())
}

/// What a model answers, and the bits of the logits of all positions of a text.
fn run(path: &Path, weights: &str) -> (Answer, Vec<u32>) {
    let model = load(path, weights).unwrap();
    let prompt = model.texts.tokenizer.encode_raw("oh, hi there").unwrap();
    assert_eq!(prompt.len(), 11, "two letters are one token");
    assert_eq!(model.texts.end_tokens, [257]);
    let mut engine = EngineCore::new(model.decoder).unwrap();
    let mut bits = Vec::new();
    let keep = |_: usize, logits: &[f32]| bits.extend(logits.iter().map(|l| l.to_bits()));
    engine.evaluate(&prompt, 16, 0, keep).unwrap();
    let mut request = request(&prompt, 40, Sampling::default());
    request.logprobs = 3;
    (answer(&mut engine, request), bits)
}

#[test]
fn both_layouts_hold_the_same_model() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    for untied in [true, false] {
        let mut model = TinyLlama::new();
        model.untied = untied;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tiny.gguf");
        fs::write(&file, model.gguf(|file| file).finish()).unwrap();
        let dir = folder.path().join("tiny");
        fs::create_dir(&dir).unwrap();
        model.write_directory(&dir);
        for weights in ["q8", "f16"] {
            let (from_file, file_bits) = run(&file, weights);
            let (from_dir, dir_bits) = run(&dir, weights);
            assert_eq!(from_file, from_dir, "{weights}, untied: {untied}");
            assert!(file_bits == dir_bits, "{weights}, untied: {untied}");
            let distinct: std::collections::BTreeSet<_> = from_dir.tokens.iter().collect();
            assert!(
                distinct.len() > 1,
                "a model that says one thing proves little"
            );
        }
    }
}

/// A file in a folder of its own.
fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("flawed.gguf");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn m31_an_unknown_architecture_is_named_with_those_that_would_work() {
    let mut model = TinyLlama::new();
    model.architecture = ("mamba", "MambaForCausalLM");
    let (_folder, path) = written(&model.gguf(|file| file).finish());
    let error = refused(
        load(&path, "q8"),
        &[
            "flawed.gguf",
            "general.architecture",
            "\"mamba\"",
            "supported: llama",
        ],
    );
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");

    let folder = tempfile::tempdir().unwrap();
    model.write_directory(folder.path());
    let error = refused(
        load(folder.path(), "q8"),
        &[
            "config.json",
            "architectures",
            "\"MambaForCausalLM\"",
            "LlamaForCausalLM",
        ],
    );
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
}

#[test]
fn m28_an_unknown_quantisation_is_named_with_those_that_would_work() {
    // type 16: 2 bits a weight, with a codebook
    let file = TinyLlama::new().gguf(|file| file);
    let file = file.raw_tensor("blk.2.attn_q.weight", &[256, 1], 16, 1 << 20, &[0; 66]);
    let (_folder, path) = written(&file.finish());
    let error = refused(
        load(&path, "q8"),
        &[
            "flawed.gguf",
            "blk.2.attn_q.weight",
            "IQ2_XXS",
            "Q8_0",
            "Q4_0",
            "BF16",
        ],
    );
    println!("{error}");
}

#[test]
fn m18_a_tensor_of_the_wrong_shape_is_named() {
    let mut model = TinyLlama::new();
    model.shorten("model.layers.1.mlp.down_proj.weight");
    let folder = tempfile::tempdir().unwrap();
    model.write_directory(folder.path());
    let error = refused(
        load(folder.path(), "q8"),
        &[
            "model.safetensors",
            "model.layers.1.mlp.down_proj.weight",
            "[63, 96]",
            "[64, 96]",
        ],
    );
    assert!(matches!(error, Error::WeightShape { .. }), "{error:?}");
    let (_folder, path) = written(&model.gguf(|file| file).finish());
    let error = refused(
        load(&path, "q8"),
        &[
            "flawed.gguf",
            "blk.1.ffn_down.weight",
            "[63, 96]",
            "[64, 96]",
        ],
    );
    assert!(matches!(error, Error::WeightShape { .. }), "{error:?}");
}

#[test]
fn a_model_that_ends_early_or_is_none_is_named() {
    let whole = TinyLlama::new().gguf(|file| file).finish();
    let (_folder, path) = written(&whole[..whole.len() - 5000]);
    refused(load(&path, "q8"), &["flawed.gguf"]);
    let (_folder, path) = written(b"PK\x03\x04 not a model at all, but long enough");
    refused(load(&path, "q8"), &["flawed.gguf", "GGUF"]);
    let folder = tempfile::tempdir().unwrap();
    let error = refused(load(folder.path(), "q8"), &["safetensors", "gguf"]);
    assert!(matches!(error, Error::ModelNotFound { .. }), "{error:?}");
    let error = refused(
        load(&folder.path().join("nothing.gguf"), "q8"),
        &["nothing.gguf"],
    );
    assert!(matches!(error, Error::ModelNotFound { .. }), "{error:?}");
}

#[test]
fn c8_a_tokenizer_larger_than_the_vocabulary_is_refused() {
    let mut model = TinyLlama::new();
    model.untied = false;
    model.shorten("model.embed_tokens.weight");
    let (_folder, path) = written(&model.gguf(|file| file).finish());
    refused(
        load(&path, "q8"),
        &[
            "flawed.gguf",
            "vocab_size",
            "token_embd.weight",
            "257",
            "258",
        ],
    );
    let folder = tempfile::tempdir().unwrap();
    model.write_directory(folder.path());
    refused(
        load(folder.path(), "q8"),
        // the one without a row is a special token, which could be done without if it did not end answers
        &["config.json: eos_token_id: is 257", "vocabulary of 257"],
    );
}

#[test]
fn c8_padding_beyond_the_tokenizer_is_never_drawn_and_has_no_probability() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    for untied in [true, false] {
        let mut model = TinyLlama::new();
        model.untied = untied;
        model.lengthen("model.embed_tokens.weight", 30);
        model.lengthen("lm_head.weight", 30);
        let folder = tempfile::tempdir().unwrap();
        model.write_directory(folder.path());
        let (_kept, file) = written(&model.gguf(|file| file).finish());
        // each layout once
        let path = if untied { folder.path() } else { &file };
        let model = load(path, "f16").unwrap();
        assert_eq!(model.texts.tokenizer.vocab_size(), 258);
        let mut engine = EngineCore::new(model.decoder).unwrap();
        for seed in 0..3 {
            let sampling = Sampling {
                temperature: 50.0 * seed as f32,
                seed,
                ..Sampling::default()
            };
            let mut request = request(&[104, 105], 30, sampling);
            request.logprobs = 20;
            let answer = answer(&mut engine, request);
            assert!(answer.tokens.iter().all(|&t| t < 258));
            let reported = answer.top_logprobs.iter().flatten();
            let mut count = 0;
            for entry in reported {
                assert!(entry.token < 258, "{entry:?}");
                count += 1;
            }
            assert_eq!(count, 20 * answer.tokens.len());
        }
        let rows = |_: usize, logits: &[f32]| assert_eq!(logits.len(), 258);
        engine.evaluate(&[1, 2, 3], 3, 0, rows).unwrap();
    }
}

#[test]
fn c10_a_context_below_what_the_model_was_made_for_is_told() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    TinyLlama::new().write_directory(folder.path());
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let large = text.replace(
        "\"max_position_embeddings\":256",
        "\"max_position_embeddings\":1000000",
    );
    assert_ne!(text, large);
    fs::write(&config, large).unwrap();
    let (model, heard) = warnings(|| load(folder.path(), "q8").unwrap());
    let engine = EngineCore::new(model.decoder).unwrap();
    assert_eq!(engine.servable_len(), 8192);
    told(
        &heard,
        &["max_position_embeddings", "1000000", "8192", "--ctx-size"],
    );
    fs::write(&config, text).unwrap();
    let (_, heard) = warnings(|| load(folder.path(), "q8").unwrap());
    assert_eq!(heard, [""; 0]);
}

/// What is computed is what was read, whatever lies there now; reading again tells the difference.
#[test]
fn e15_a_model_file_that_is_replaced_changes_nothing_before_it_is_loaded_again() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let model = TinyLlama::new();
    let bytes = model.gguf(|file| file).finish();
    let (folder, path) = written(&bytes);
    let mut other = TinyLlama::new();
    other.copy_embedding_to_head();
    let others = other.gguf(|file| file).finish();
    let expected = run(&path, "q8");

    let loaded = load(&path, "q8").unwrap();
    let prompt = loaded.texts.tokenizer.encode_raw("oh, hi there").unwrap();
    let mut engine = EngineCore::new(loaded.decoder).unwrap();
    let mut ask = || {
        let mut request = request(&prompt, 40, Sampling::default());
        request.logprobs = 3;
        answer(&mut engine, request)
    };
    assert_eq!(ask(), expected.0);
    // another file under the name, the same file with other bytes, cut, and none at all
    let beside = folder.path().join("beside");
    fs::write(&beside, &others).unwrap();
    fs::rename(&beside, &path).unwrap();
    assert_eq!(ask(), expected.0);
    assert_ne!(run(&path, "q8").0, expected.0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(run(&path, "q8"), expected);
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(ask(), expected.0);
    fs::remove_file(&path).unwrap();
    assert_eq!(ask(), expected.0);
}

#[test]
fn m19_weights_that_are_no_numbers_are_told_or_refused() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let mut model = TinyLlama::new();
    let names = ["self_attn.k_proj", "mlp.up_proj", "mlp.down_proj"]
        .map(|name| format!("model.layers.1.{name}.weight"));
    for (count, name) in (1..).zip(&names) {
        for at in 0..count {
            model.set(name, 40 * at, f32::NAN);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    model.write_directory(folder.path());
    let (result, heard) = warnings(|| load(folder.path(), "f16").map(drop));
    result.unwrap();
    for (count, name) in (1..).zip(&names) {
        let count = format!("{count} values are NaN");
        told(&heard, &["model.safetensors", name, &count]);
    }
    let strict = LoadOptions {
        strict_weights: true,
        ..LoadOptions::default()
    };
    refused(
        Model::load(folder.path(), &strict, &mut |_, _| ()).map(drop),
        &[
            "model.safetensors",
            &names[0],
            "1 values are NaN or infinite",
        ],
    );
}
