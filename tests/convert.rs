//! Models written as other files, and loaded from there: what is lost, and that nothing else changes.

mod common;
#[path = "faults/tiny_llama.rs"]
mod tiny_llama;

use common::{bits, gpu, model_path, tokens};
use nelumbo::engine::EngineCore;
use nelumbo::formats::{self, ModelFiles};
use nelumbo::gpu::OpenOptions;
use nelumbo::kv::KvFormat;
use nelumbo::model::convert::{Conversion, Layout, SHARD_BYTES, Target, TensorReport};
use nelumbo::model::tensors::{Rows, TensorMap};
use nelumbo::model::{Config, Texts, family};
use nelumbo::quant::q8::Q8;
use nelumbo::quant::{Format, GROUP};
use nelumbo::{Error, LoadOptions, Model, Result};
use std::fs;
use std::path::{Path, PathBuf};
use tiny_llama::TinyLlama;

const CHANNEL: Target = Target::Int8 { group: None };
const GROUPS: Target = Target::Int8 { group: Some(GROUP) };

/// A folder with the small model in both layouts.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new(model: &TinyLlama) -> World {
        let world = World {
            folder: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(world.path("dir")).unwrap();
        model.write_directory(&world.path("dir"));
        let named = world.path("dir").join(formats::hf::TEMPLATES_NAME);
        fs::create_dir(&named).unwrap();
        fs::write(named.join("tool_use.jinja"), "{{ tools | tojson }}").unwrap();
        let template = |file: formats::write::GgufWriter| {
            file.string("tokenizer.chat_template", "{{ messages[0].content }}")
        };
        fs::write(world.path("m.gguf"), model.gguf(template).finish()).unwrap();
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `from` as `to`, which tells the layout.
    fn convert(&self, from: &str, to: &str, target: Target) -> Result<Vec<TensorReport>> {
        convert(&self.path(from), &self.path(to), target, SHARD_BYTES)
    }
}

fn convert(from: &Path, to: &Path, target: Target, shard: u64) -> Result<Vec<TensorReport>> {
    let layout = match to.extension() {
        Some(_) => Layout::Gguf,
        None => Layout::Directory,
    };
    let files = formats::open(from)?;
    let plan = Conversion::plan(&files, target, layout, shard)?;
    let (mut last, all) = (0, plan.tensor_bytes().1);
    let reports = plan.write(to, &mut |done, of| {
        assert!(done > last && of == all);
        last = done;
    })?;
    assert_eq!(last, all);
    assert_eq!(plan.bytes(), size(to), "{}", to.display());
    Ok(reports)
}

/// Bytes of a file, or of all files in a folder and the folders in it.
fn size(path: &Path) -> u64 {
    if path.is_file() {
        return path.metadata().unwrap().len();
    }
    let entries = fs::read_dir(path).unwrap();
    entries.map(|entry| size(&entry.unwrap().path())).sum()
}

fn open(path: &Path) -> (ModelFiles, Config) {
    let files = formats::open(path).unwrap();
    let config = (family(&files).unwrap().config)(&files).unwrap();
    (files, config)
}

/// Calls `each` with the name and the values of every matrix, as they are packed into memory.
fn matrices(path: &Path, mut each: impl FnMut(String, Vec<f32>, usize)) {
    let (files, config) = open(path);
    let names = (family(&files).unwrap().names)(&files);
    let map = TensorMap::new(&config, &names, files.checkpoint()).unwrap();
    let mut read = |name: String, rows: &Rows| {
        let mut values = Vec::new();
        rows.for_each(map.checkpoint, |_, piece| {
            values.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        each(name, values, rows.shape().1);
    };
    for (i, layer) in map.layers.iter().enumerate() {
        read(format!("qkv {i}"), &layer.qkv);
        read(format!("o {i}"), &layer.o);
        read(format!("gate_up {i}"), &layer.gate_up);
        read(format!("down {i}"), &layer.down);
    }
    read("embedding".to_owned(), &map.embedding);
    if let Some(head) = &map.head {
        read("head".to_owned(), head);
    }
}

/// All matrices of a model by name.
fn all_matrices(path: &Path) -> Vec<(String, Vec<f32>, usize)> {
    let mut all = Vec::new();
    matrices(path, |name, values, columns| {
        all.push((name, values, columns))
    });
    all
}

/// That the layers' matrices of both are the same bytes in memory; of so many matrices.
fn same_in_memory(a: &Path, b: &Path) -> usize {
    let theirs = all_matrices(b);
    let mut index = 0;
    matrices(a, |name, values, columns| {
        let (other, found, _) = &theirs[index];
        assert_eq!(&name, other);
        if !["embedding", "head"].contains(&&*name) {
            let packed = Q8.pack_rows(&values, columns);
            assert!(packed == Q8.pack_rows(found, columns), "{name}");
        }
        index += 1;
    });
    assert_eq!(index, theirs.len());
    index
}

#[test]
fn int8_directories_are_within_half_a_step_of_what_they_are_made_from() {
    let world = World::new(&TinyLlama::new());
    let before = all_matrices(&world.path("dir"));
    for (i, (from, target)) in [
        ("dir", CHANNEL),
        ("dir", GROUPS),
        ("m.gguf", CHANNEL),
        ("m.gguf", GROUPS),
    ]
    .into_iter()
    .enumerate()
    {
        let to = format!("int8-{i}");
        let reports = world.convert(from, &to, target).unwrap();
        let after = all_matrices(&world.path(&to));
        assert_eq!(before.len(), after.len());
        let mut lost = 0.0f32;
        for ((name, before, columns), (_, after, _)) in before.iter().zip(&after) {
            if ["embedding", "head"].contains(&name.as_str()) {
                assert!(before == after, "{name} stays as it was: f32");
                continue;
            }
            let group = if target == CHANNEL { *columns } else { GROUP };
            for (before, after) in before.chunks(group).zip(after.chunks(group)) {
                let largest = before.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                // half a step, and of a scale that was rounded to f16 what the largest lost by it
                let step = largest / 127.0;
                let slack = 0.5 * step + largest / 2048.0 * f32::from(target == GROUPS);
                for (before, after) in before.iter().zip(after) {
                    let apart = (before - after).abs();
                    assert!(
                        apart <= 1.001 * slack,
                        "{name}: {before} became {after}, step {step}"
                    );
                    lost = lost.max(apart);
                }
            }
        }
        // what is reported is what was lost
        let reported = reports.iter().map(|r| r.max_abs).fold(0.0, f64::max);
        assert!(
            (reported - f64::from(lost)).abs() < 1e-6,
            "{reported} {lost}"
        );
        for report in &reports {
            let is_norm = report.shape.len() == 1;
            let is_table = ["model.embed_tokens.weight", "lm_head.weight"].contains(&&*report.name);
            assert_eq!(
                report.relative_rms == 0.0,
                is_norm || is_table,
                "{report:?}"
            );
            assert!(report.relative_rms < 0.01, "{report:?}");
            assert_eq!(
                report.encodings.1.starts_with("INT8"),
                !is_norm && !is_table
            );
        }
    }
}

#[test]
fn groups_of_32_are_in_memory_what_the_source_would_be() {
    let world = World::new(&TinyLlama::new());
    for from in ["dir", "m.gguf"] {
        let to = format!("groups-of-{}", from.replace('.', "-"));
        world.convert(from, &to, GROUPS).unwrap();
        assert_eq!(same_in_memory(&world.path(from), &world.path(&to)), 10);
        // and as blocks of a GGUF file, also from the directory of codes
        world
            .convert(&to, &format!("{to}.gguf"), Target::Q8_0)
            .unwrap();
        same_in_memory(&world.path(from), &world.path(&format!("{to}.gguf")));
    }
    // a real model has weights of all sizes
    let Some(model) = model_path() else { return };
    let to = world.path("real");
    convert(&model, &to, GROUPS, SHARD_BYTES).unwrap();
    assert!(same_in_memory(&model, &to) > 100);
}

fn logits(path: &Path, weights: &str) -> Vec<f32> {
    let options = LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        kv_format: KvFormat::F32,
        ctx_size: Some(64),
        max_running: 1,
        ..LoadOptions::default()
    };
    let model = Model::load(path, &options, &mut |_, _| ()).unwrap();
    let mut engine = EngineCore::new(model.decoder).unwrap();
    let mut all = Vec::new();
    engine
        .evaluate(&tokens(5, 40, 257), 16, 0, |_, row| {
            all.extend_from_slice(row)
        })
        .unwrap();
    all
}

#[test]
fn logits_are_those_of_the_source_as_near_as_the_weights_are() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let world = World::new(&TinyLlama::new());
    world.convert("dir", "groups", GROUPS).unwrap();
    world.convert("m.gguf", "rows", CHANNEL).unwrap();
    world.convert("groups", "half.gguf", Target::F16).unwrap();
    let (q8, f16) = (
        logits(&world.path("dir"), "q8"),
        logits(&world.path("dir"), "f16"),
    );
    let largest = f16.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let apart = |a: &[f32], b: &[f32]| {
        let apart = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        apart / largest
    };
    assert_eq!(bits(&logits(&world.path("groups"), "q8")), bits(&q8));
    for (name, allowed) in [("rows", 0.1), ("half.gguf", 0.05)] {
        let apart = apart(&logits(&world.path(name), "f16"), &f16);
        println!("{name}: {apart:.5} of the largest logit");
        assert!(apart > 1e-5 && apart < allowed, "{name}: {apart}");
    }
}

/// What is beside the weights.
fn same_beside(a: &Path, b: &Path) {
    let ((a_files, a), (b_files, b)) = (open(a), open(b));
    let name = String::new;
    assert_eq!(
        Config {
            architecture: name(),
            ..a
        },
        Config {
            architecture: name(),
            ..b
        }
    );
    let (a, b) = (
        Texts::load(&a_files).unwrap(),
        Texts::load(&b_files).unwrap(),
    );
    assert_eq!(a.end_tokens, b.end_tokens);
    for text in [
        "oh, hi there",
        "hi<|im_end|>hi",
        "한 글 \u{1F338}\n\n 12 'll",
    ] {
        let ids = a.tokenizer.encode_raw(text).unwrap();
        assert_eq!(ids, b.tokenizer.encode_raw(text).unwrap(), "{text}");
        assert_eq!(
            a.tokenizer.encode_plain(text).unwrap(),
            b.tokenizer.encode_plain(text).unwrap()
        );
        for id in ids {
            assert_eq!(
                a.tokenizer.token_bytes(id),
                b.tokenizer.token_bytes(id),
                "{id}"
            );
        }
    }
    let templates = |files: &ModelFiles| Texts::template_sources(files).unwrap();
    assert_eq!(templates(&a_files), templates(&b_files));
}

#[test]
fn settings_tokenizer_and_template_go_along_in_every_direction() {
    for untied in [true, false] {
        let mut model = TinyLlama::new();
        model.untied = untied;
        let world = World::new(&model);
        for (from, to, target) in [
            ("dir", "a", CHANNEL),
            ("a", "b.gguf", Target::Q8_0),
            ("b.gguf", "c", GROUPS),
            ("c", "d", Target::F16),
            ("m.gguf", "e", CHANNEL),
            ("e", "f.gguf", Target::F16),
            ("f.gguf", "g.gguf", Target::Q8_0),
        ] {
            world.convert(from, to, target).unwrap();
            same_beside(&world.path(from), &world.path(to));
            // f16 is rounded to once, and rows come back to their places
            if (from, to) == ("m.gguf", "e") || target == Target::F16 {
                let apart = all_matrices(&world.path(from))
                    .into_iter()
                    .zip(all_matrices(&world.path(to)));
                for ((name, a, _), (_, b, _)) in apart {
                    let most = a.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                    let near = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= most / 200.0);
                    assert!(near, "{from} to {to}: {name}");
                }
            }
        }
        same_beside(&world.path("dir"), &world.path("d"));
    }
}

#[test]
fn large_models_are_split_over_files_with_an_index() {
    let world = World::new(&TinyLlama::new());
    let (whole, split) = (world.path("whole"), world.path("split"));
    convert(&world.path("dir"), &whole, GROUPS, SHARD_BYTES).unwrap();
    convert(&world.path("dir"), &split, GROUPS, 60_000).unwrap();
    let shards = fs::read_dir(&split).unwrap();
    let shards: Vec<_> = shards
        .map(|e| e.unwrap())
        .filter(|e| e.file_name().to_string_lossy().starts_with("model-0000"))
        .collect();
    assert!(shards.len() > 2, "{shards:?}");
    for shard in &shards {
        // the embedding is larger than a file may be
        assert!(shard.metadata().unwrap().len() < 70_000, "{shard:?}");
    }
    assert!(split.join("model.safetensors.index.json").is_file());
    assert_eq!(same_in_memory(&whole, &split), 10);
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let world = World::new(&TinyLlama::new());
    let refused = |from: &str, to: &str, target, parts: &[&str]| {
        let error = world.convert(from, to, target).unwrap_err();
        for part in parts {
            assert!(error.to_string().contains(part), "{error}: {part}");
        }
        assert!(!world.path(to).exists());
        error
    };
    refused("dir", "x.gguf", CHANNEL, &["int8-channel", "q8_0"]);
    refused("dir", "x", Target::Q8_0, &["q8_0", "int8-channel"]);
    let by_128 = Target::Int8 { group: Some(128) };
    let error = refused(
        "dir",
        "x",
        by_128,
        &["q_proj", "rows of 64", "groups of 128"],
    );
    assert!(matches!(error, Error::Tensor { .. }));
    // there already
    fs::write(world.path("there.gguf"), "x").unwrap();
    let error = world.convert("dir", "there.gguf", Target::F16).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert_eq!(fs::read(world.path("there.gguf")).unwrap(), b"x");
}

#[test]
fn weights_that_are_no_numbers_end_it_and_what_there_is_is_no_model() {
    let mut model = TinyLlama::new();
    model.set("model.layers.1.mlp.down_proj.weight", 7, f32::NAN);
    let world = World::new(&model);
    let error = world.convert("dir", "x", CHANNEL).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("layers.1.mlp.down_proj") && text.contains("NaN"),
        "{text}"
    );
    let error = formats::open(&world.path("x")).unwrap_err();
    assert!(error.to_string().contains("without config.json"), "{error}");
}
