//! Fixtures written again: converted, and with the names that other releases give their tensors.

use super::{BOUND, apart, both, cases, directory, fixtures, folder, json, open};
use nelumbo::formats::write::write_safetensors;
use nelumbo::formats::{self, Encoding, ModelFiles};
use nelumbo::model::convert::{Conversion, Layout, SHARD_BYTES, Target};
use serde_json::{Value, json};
use std::path::Path;

/// Writes the tensors of a fixture under other names, `more` beside them; those without a name are left
/// out.
fn renamed(
    fixture: &str,
    to: &Path,
    name: impl Fn(&str) -> Option<String>,
    more: &[(&str, &[usize])],
) {
    let ModelFiles::HuggingFace(dir) = formats::open(&folder(fixture)).unwrap() else {
        panic!("{fixture} is a directory");
    };
    let mut tensors = Vec::new();
    for info in dir.checkpoint.tensors() {
        let mut values = Vec::new();
        let rows = 0..info.rows();
        dir.checkpoint.read_rows(info, rows, &mut values).unwrap();
        if let Some(name) = name(&info.name) {
            let bytes = Encoding::F16.encode(&values);
            tensors.push((name, info.shape.clone(), bytes));
        }
    }
    for &(name, shape) in more {
        let bytes = vec![0; 2 * shape.iter().product::<usize>()];
        tensors.push((name.to_owned(), shape.to_vec(), bytes));
    }
    let parts: Vec<_> = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.as_str(), &shape[..], Encoding::F16, &bytes[..]))
        .collect();
    write_safetensors(&to.join("model.safetensors"), &parts).unwrap();
}

/// That the model at `path` computes what that of the fixture should.
fn same(fixture: &str, path: &Path) {
    for case in cases(fixture).iter().filter(|c| c.config == "config.json") {
        let (_, reference) = open(path, case.prompt.len());
        let apart = apart(&case.logits, &reference.logits(&case.prompt));
        assert!(apart <= BOUND, "{fixture}, {}: {apart:e}", case.name);
    }
}

#[test]
fn a_model_converted_in_its_own_layout_stays_the_same() {
    for name in fixtures() {
        for files in both(&name) {
            let (layout, to) = match files {
                ModelFiles::Gguf(_) => (Layout::Gguf, "m.gguf"),
                ModelFiles::HuggingFace(_) => (Layout::Directory, "dir"),
            };
            let made = tempfile::tempdir().unwrap();
            let to = made.path().join(to);
            let plan = Conversion::plan(&files, Target::F16, layout, SHARD_BYTES).unwrap();
            let reports = plan.write(&to, &mut |_, _| ()).unwrap();
            let lost = reports.iter().map(|r| r.max_abs).fold(0.0, f64::max);
            assert_eq!(lost, 0.0, "{name}: weights are f16");
            let written = formats::open(&to).unwrap();
            assert_eq!(
                written.checkpoint().tensors().len(),
                files.checkpoint().tensors().len(),
                "{name}: tensors"
            );
            let context = 100;
            let text = &cases(&name)[0].prompt;
            let [before, after] = [files.checkpoint().path(), &to].map(|path| {
                let (config, reference) = open(path, context);
                (config, reference.logits(text))
            });
            assert!(before == after, "{name}: {}", to.display());
        }
    }
}

#[test]
fn the_other_layout_is_refused_where_it_is_not_known() {
    for name in fixtures() {
        let files = both(&name);
        let plans = [
            Conversion::plan(&files[0], Target::F16, Layout::Gguf, SHARD_BYTES),
            Conversion::plan(&files[1], Target::F16, Layout::Directory, SHARD_BYTES),
        ];
        let is_llama = |files: &ModelFiles| match files {
            ModelFiles::Gguf(gguf) => gguf.metadata.architecture().unwrap() == "llama",
            ModelFiles::HuggingFace(dir) => dir.config["architectures"][0] == "LlamaForCausalLM",
        };
        for (files, plan) in files.iter().zip(plans) {
            // factors that no release has cannot be told in a directory
            let is_known = is_llama(files) && name != "llama-rope";
            let Err(error) = plan else {
                assert!(is_llama(files), "{name}");
                continue;
            };
            assert!(!is_known, "{name}: {error}");
            let (path, text) = (files.checkpoint().path(), error.to_string());
            assert!(text.contains(&path.display().to_string()), "{text}");
            assert!(text.contains("layout") || is_llama(files), "{text}");
        }
    }
}

#[test]
fn transposed_matrices_get_no_codes() {
    let [directory, _] = both("gpt2");
    let target = Target::Int8 { group: None };
    let plan = Conversion::plan(&directory, target, Layout::Directory, SHARD_BYTES);
    let error = plan.map(drop).unwrap_err().to_string();
    assert!(
        error.contains("int8-channel") && error.contains("transposed"),
        "{error}"
    );
}

/// The text part of a model that sees pictures tells only what differs from its defaults.
#[test]
fn gemma3_is_found_in_a_larger_model() {
    let mut text = json(&folder("gemma3").join("config.json"));
    for field in [
        "hidden_activation",
        "hidden_act",
        "tie_word_embeddings",
        "rms_norm_eps",
    ] {
        text.as_object_mut().unwrap().shift_remove(field);
    }
    let whole = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": text, "vision_config": {"hidden_size": 8}, "eos_token_id": 157,
    });
    for (prefix, vision) in [
        ("language_model.model.", "vision_tower.patch.weight"),
        ("model.language_model.", "model.vision_tower.patch.weight"),
    ] {
        let made = directory("gemma3", &whole);
        let name = |name: &str| Some(format!("{prefix}{}", name.strip_prefix("model.").unwrap()));
        renamed("gemma3", made.path(), name, &[(vision, &[8, 4])]);
        same("gemma3", made.path());
    }
    // an error names the field from the whole of the file
    let mut wrong = whole.clone();
    wrong["text_config"]["hidden_size"] = json!("big");
    let made = directory("gemma3", &wrong);
    let files = formats::open(made.path()).unwrap();
    let family = nelumbo::model::family(&files).unwrap();
    let error = (family.config)(&files).unwrap_err().to_string();
    assert!(
        error.contains("config.json: text_config.hidden_size: is \"big\""),
        "{error}"
    );
}

/// The first releases have no prefix, and store the mask of what is before.
#[test]
fn gpt2_without_its_prefix_is_the_same() {
    let made = directory("gpt2", &json(&folder("gpt2").join("config.json")));
    let name = |name: &str| Some(name.strip_prefix("transformer.").unwrap_or(name).to_owned());
    let mask: (&str, &[usize]) = ("h.0.attn.bias", &[1, 1, 8, 8]);
    renamed("gpt2", made.path(), name, &[mask]);
    same("gpt2", made.path());
}

#[test]
fn a_bias_that_nobody_computes_is_refused() {
    let made = directory("qwen3", &json(&folder("qwen3").join("config.json")));
    let bias: (&str, &[usize]) = ("model.layers.0.self_attn.o_proj.bias", &[64]);
    renamed("qwen3", made.path(), |name| Some(name.to_owned()), &[bias]);
    let error = super::refusals::map_error(made.path());
    assert!(
        error.contains("o_proj.bias") && error.contains("Qwen3ForCausalLM"),
        "{error}"
    );
}

/// A head that says nothing of its own keeps its default.
#[test]
fn a_tied_head_needs_no_field_where_the_family_ties_it() {
    for name in ["gemma2", "gemma3", "smollm3", "gpt2"] {
        let mut config: Value = json(&folder(name).join("config.json"));
        let fields = config.as_object_mut().unwrap();
        assert_eq!(
            fields.shift_remove("tie_word_embeddings"),
            Some(json!(true))
        );
        let made = directory(name, &config);
        same(name, made.path());
    }
}
