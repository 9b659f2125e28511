//! Compiling ahead: several at a time, before the first step, and kept between runs.

mod common;

use common::{answer, engine, gpu, request, tokens};
use nelumbo::engine::Sampling;
use nelumbo::gpu::{Gpu, Kernel, OpenOptions, Part, PipelineFolder, Variant};
use nelumbo::model::synthetic;
use nelumbo::model::warm::shader_hash;
use nelumbo::{Error, LoadOptions, kernels, params};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn kept_in(folder: &Path) -> OpenOptions {
    OpenOptions {
        pipelines: Some(PipelineFolder {
            folder: folder.to_owned(),
            shaders: shader_hash(),
        }),
        ..OpenOptions::default()
    }
}

/// What a small model answers on `gpu`; all pipelines are kept then, if any are.
fn run(gpu: &Arc<Gpu>) -> Vec<u32> {
    let config = synthetic::tiny();
    let mut engine = engine(gpu, &config, &LoadOptions::default());
    let text = tokens(3, 40, config.vocab_size);
    answer(&mut engine, request(&text, 8, Sampling::default())).tokens
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|e| e.unwrap().path()).collect()
}

#[test]
fn e8_the_next_run_finds_what_was_compiled_unless_it_was_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("made/when/needed");
    let options = kept_in(&folder);
    let Some(first) = gpu(&options) else { return };
    let Some(recalled) = first.recalled_bytes() else {
        println!("{} keeps no pipelines", first.report().name);
        return;
    };
    assert_eq!(recalled, 0);
    let expected = run(&first);
    drop(first);
    let [file] = files(&folder).try_into().expect("one file");
    let whole = fs::read(&file).unwrap();
    let body = whole.len() - 32;
    assert!(body > 0);

    let second = Gpu::open(&options).unwrap();
    assert_eq!(second.recalled_bytes(), Some(body));
    assert_eq!(run(&second), expected);
    drop(second);

    // whatever is done to the file, it is not used, nothing fails, and it is whole again after a run
    let mut flipped = whole.clone();
    flipped[40] ^= 1;
    let longer = [&whole[..], b"x"].concat();
    for damaged in [
        &flipped,
        &whole[..whole.len() - 1],
        &whole[..7],
        b"",
        &longer,
    ] {
        fs::write(&file, damaged).unwrap();
        let gpu = Gpu::open(&options).unwrap();
        assert_eq!(gpu.recalled_bytes(), Some(0), "{} bytes", damaged.len());
        assert_eq!(run(&gpu), expected);
        drop(gpu);
        let again = Gpu::open(&options).unwrap();
        assert!(again.recalled_bytes() > Some(0), "the file was replaced");
    }

    // other shaders have a file of their own
    let mut others = options.clone();
    others.pipelines.as_mut().unwrap().shaders ^= 1;
    assert_eq!(Gpu::open(&others).unwrap().recalled_bytes(), Some(0));
}

#[test]
fn e9_a_folder_that_cannot_be_written_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let Some(open) = gpu(&kept_in(&file.join("pipelines"))) else {
        return;
    };
    let usual = Gpu::open(&OpenOptions::default()).unwrap();
    assert_eq!(run(&open), run(&usual));
    drop(open);
    assert_eq!(fs::read(&file).unwrap(), b"in the way");
}

#[test]
fn the_first_request_compiles_nothing() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &LoadOptions::default());
    let before = gpu.counters().pipelines;
    assert!(before > 8, "{before} pipelines");
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        ..Sampling::default()
    };
    for (length, sampling) in [(31, Sampling::default()), (128, drawn)] {
        let text = tokens(5, length, config.vocab_size);
        answer(&mut engine, request(&text, 4, sampling));
        assert_eq!(gpu.counters().pipelines, before, "{length} tokens");
    }
}

#[test]
fn many_threads_make_each_pipeline_once() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let variants: Vec<Variant> = kernels::ALL
        .iter()
        .flat_map(|entry| (entry.variants)().into_iter().take(3))
        .filter(|variant| !variant.all_parts().any(|part| part.subgroups))
        .collect();
    let twice = [&variants[..], &variants[..]].concat();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| gpu.prepare(&twice).unwrap());
        }
    });
    assert_eq!(gpu.counters().pipelines, variants.len() as u64);
    let made = variants.iter().map(|v| gpu.pipeline(v).unwrap());
    let again: Vec<_> = made.collect();
    assert_eq!(gpu.counters().pipelines, again.len() as u64);
}

params! {
    pub struct NoParams {
        pub unused: u32,
    }
}

/// The first line is right; what is wrong is in the second part.
static HEAD: Part = Part {
    name: "head.wgsl",
    source: "struct Params { unused: u32 }\n@group(1) @binding(0) var<uniform> params: Params;\n",
    subgroups: false,
    int64: false,
    coop: false,
};
static UNKNOWN_NAME: Part = Part {
    name: "unknown_name.wgsl",
    source: "@group(0) @binding(0) var<storage, read_write> y: array<u32>;\n@compute @workgroup_size(1)\nfn broken() {\n    y[0] = nowhere + params.unused;\n}\n",
    subgroups: false,
    int64: false,
    coop: false,
};
/// Parses, and is refused by the validator: a workgroup of no invocations.
static NO_RETURN: Part = Part {
    name: "no_return.wgsl",
    source: "@group(0) @binding(0) var<storage, read_write> y: array<u32>;\nfn f() -> u32 {\n}\n@compute @workgroup_size(1)\nfn broken() {\n    y[0] = f() + params.unused;\n}\n",
    subgroups: false,
    int64: false,
    coop: false,
};
static PARSER: Kernel = Kernel::new::<NoParams>("broken", &[]);

#[test]
fn e8_a_shader_that_does_not_compile_is_named_with_part_and_line() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let good: Vec<Variant> = (kernels::ALL[0].variants)();
    for (part, line) in [(&UNKNOWN_NAME, 4), (&NO_RETURN, 2)] {
        let broken = Variant::new(&PARSER).part(&HEAD).part(part);
        let all = [&good[..], &[broken]].concat();
        let error = gpu.prepare(&all).unwrap_err();
        let Error::Shader { shader, message } = &error else {
            panic!("{error:?}");
        };
        assert!(shader.starts_with("broken+head+"), "{shader}");
        let place = format!("shaders/{}:{line}:", part.name);
        assert!(message.starts_with(&place), "{place} in {message}");
        gpu.check().unwrap(); // the device is none the worse
        gpu.prepare(&good).unwrap();
    }
}
