//! Tuning by measurement, on the adapter there is: what is kept, what is left out, and that no bit
//! depends on it but through activations and lanes.

mod common;

use common::{bits, decoder, engine, gpu, tokens};
use nelumbo::engine::EngineCore;
use nelumbo::gpu::{Gpu, OpenOptions, PipelineFolder};
use nelumbo::kernels::{Activations, Tuning};
use nelumbo::model::tune::search::{Change, Pins, Progress, Search, changes};
use nelumbo::model::tune::{Shape, Source, kept, walk};
use nelumbo::model::warm::shader_hash;
use nelumbo::model::{Tuned, synthetic};
use nelumbo::quant::Format;
use nelumbo::{Error, LoadOptions};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

fn kept_in(folder: &Path) -> OpenOptions {
    OpenOptions {
        pipelines: Some(PipelineFolder {
            folder: folder.to_owned(),
            shaders: shader_hash(),
        }),
        ..OpenOptions::default()
    }
}

fn measured() -> LoadOptions {
    LoadOptions {
        autotune: true,
        ..LoadOptions::default()
    }
}

/// What loading a small model chooses.
fn load(open: &OpenOptions, options: &LoadOptions) -> Option<Tuned> {
    let gpu = gpu(open)?;
    Some(*decoder(&gpu, &synthetic::tiny(), options).tuned())
}

/// Loads until a search has come to its end, and returns what it chose: where compilation is slow
/// that takes several runs, never more than three for each change.
fn load_to_the_end(open: &OpenOptions, options: &LoadOptions) -> Option<Tuned> {
    for _ in 0..3 * changes(false, Pins::default()).len() + 1 {
        let tuned = load(open, options)?;
        println!("{tuned:?}");
        // a thread that is woken late on a busy machine has half a second
        assert!(tuned.ms < 3500.0, "{tuned:?}");
        if tuned.source == Source::Cached {
            return Some(tuned);
        }
        assert_eq!(tuned.source, Source::Measured);
    }
    panic!("the search does not end");
}

fn tiny_shape() -> Shape {
    let config = synthetic::tiny();
    Shape {
        hidden: config.hidden_size,
        intermediate: config.intermediate_size,
        vocab: config.vocab_size,
        layers: config.num_layers,
        format: Format::from_name("q8").unwrap(),
    }
}

fn tuning_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries
        .filter(|path| path.extension().is_some_and(|e| e == "tuning"))
        .collect()
}

fn logits(engine: &mut EngineCore, text: &[u32], chunk: usize) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    engine
        .evaluate(text, chunk, 0, |_, row| rows.push(bits(row)))
        .unwrap();
    rows
}

#[test]
fn what_was_measured_is_found_again_and_computes_the_bits_of_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let open = kept_in(folder.path());
    let Some(tuned) = load_to_the_end(&open, &measured()) else {
        return;
    };
    let again = load(&open, &measured()).unwrap();
    assert_eq!((again.source, again.tuning), (Source::Cached, tuned.tuning));
    assert!(again.ms < 100.0, "{again:?}");
    let [file] = tuning_files(folder.path()).try_into().expect("one file");

    let gpu = Gpu::open(&open).unwrap();
    let config = synthetic::tiny();
    let text = tokens(3, 40, config.vocab_size);
    let same_numerics = LoadOptions {
        activations: Some(tuned.tuning.activations),
        lanes: Some(tuned.tuning.lanes),
        ..LoadOptions::default()
    };
    let before = gpu.counters().pipelines;
    let mut own = engine(&gpu, &config, &measured());
    assert_eq!(own.decoder().tuned().tuning, tuned.tuning);
    let mut usual = engine(&gpu, &config, &same_numerics);
    assert!(gpu.counters().pipelines > before);
    for chunk in [1, 40] {
        let expected = logits(&mut usual, &text, chunk);
        assert!(
            logits(&mut own, &text, chunk) == expected,
            "steps of {chunk}"
        );
    }

    // whatever is done to the file, it is not used, and replaced
    let whole = fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() - 1], &whole[..9], b""] {
        fs::write(&file, damaged).unwrap();
        let tuned = load(&open, &measured()).unwrap();
        assert_eq!(tuned.source, Source::Measured, "{} bytes", damaged.len());
        assert_ne!(fs::read(&file).unwrap(), damaged);
    }
}

#[test]
fn a_kept_tuning_that_is_none_is_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let open = kept_in(folder.path());
    let Some(gpu) = gpu(&open) else { return };
    let base = Tuning::for_gpu(&gpu);
    let file = kept::file(&gpu, &tiny_shape(), base, Pins::default()).unwrap();
    let over = |best| {
        kept::to_text(&Progress {
            best,
            next: usize::MAX >> 32,
            late: 0,
        })
    };
    file.write(over(base).as_bytes());
    let tuned = load(&open, &measured()).unwrap();
    assert_eq!((tuned.source, tuned.tuning), (Source::Cached, base));
    let out_of_range = Tuning {
        workgroup: 512,
        ..base
    };
    for text in [over(out_of_range).as_str(), "", "{}", "[1, 2]"] {
        file.write(text.as_bytes());
        let tuned = load(&open, &measured()).unwrap();
        assert_eq!(tuned.source, Source::Measured, "{text}");
        assert!(kept::from_text(&file.read().unwrap()).is_some(), "{text}");
    }
}

#[test]
fn each_shape_and_each_pin_has_a_file_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let open = kept_in(folder.path());
    let Some(first) = load(&open, &measured()) else {
        return;
    };
    assert_eq!(first.source, Source::Measured);
    let none = OpenOptions {
        caps: Some("none".to_owned()),
        ..open.clone()
    };
    let f32 = LoadOptions {
        activations: Some(Activations::F32),
        ..measured()
    };
    let f16 = LoadOptions {
        weights: Format::from_name("f16").unwrap(),
        ..measured()
    };
    let lanes = LoadOptions {
        lanes: Some(2),
        ..measured()
    };
    for (i, (open, options)) in [
        (&none, &measured()),
        (&open, &f32),
        (&open, &f16),
        (&open, &lanes),
    ]
    .into_iter()
    .enumerate()
    {
        let tuned = load(open, options).unwrap();
        assert_eq!(tuned.source, Source::Measured);
        assert_eq!(tuning_files(folder.path()).len(), i + 2);
        let tuning = tuned.tuning;
        if i == 0 {
            assert!(!tuning.subgroups && !tuning.wide, "{tuning:?}");
        } else if i < 3 {
            assert_eq!(tuning.activations, Activations::F32);
        } else {
            assert_eq!(tuning.lanes, 2);
        }
    }
}

#[test]
fn without_measurement_everything_is_as_it_suits_the_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let open = kept_in(folder.path());
    let Some(gpu) = gpu(&open) else { return };
    let tuned = load(&open, &LoadOptions::default()).unwrap();
    assert_eq!((tuned.source, tuned.ms), (Source::Default, 0.0));
    assert_eq!(tuned.tuning, Tuning::for_gpu(&gpu));
    assert_eq!(tuned.tuning.activations, Activations::F32);
    let pinned = LoadOptions {
        activations: Some(Activations::Q8),
        lanes: Some(4),
        ..LoadOptions::default()
    };
    let tuned = load(&open, &pinned).unwrap();
    assert_eq!(tuned.source, Source::Pinned);
    let expected = Tuning {
        activations: Activations::Q8,
        ..Tuning::with_lanes(&gpu, 4)
    };
    assert_eq!(tuned.tuning, expected);
    drop(gpu);
    assert!(tuning_files(folder.path()).is_empty());
}

#[test]
fn a_candidate_that_does_not_compile_is_left_out_and_takes_nothing_along() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let shape = tiny_shape();
    let base = Tuning {
        subgroups: false,
        wide: false,
        ..Tuning::for_gpu(&gpu)
    };
    // no adapter has as many invocations in a workgroup
    let impossible = vec![Change::Workgroup(1 << 20), Change::TileTokens(4)];
    let mut progress = Progress::from(base);
    for _ in 0..6 {
        let search = Search::new(progress, impossible.clone(), Arc::new(|_| true));
        let (found, straggler) = walk::measure(&gpu, shape, search, Instant::now());
        drop(straggler);
        progress = found.unwrap();
        if progress.next == 2 {
            break;
        }
    }
    assert_eq!(progress.next, 2);
    assert_eq!(progress.best.workgroup, base.workgroup);
    // the model's own device has seen none of it
    gpu.check().unwrap();
    assert_eq!(gpu.counters().pipelines, 0);
}

#[test]
fn lanes_that_do_not_exist_are_refused_with_measurement_as_without() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for autotune in [false, true] {
        let options = LoadOptions {
            lanes: Some(3),
            autotune,
            ..LoadOptions::default()
        };
        let refused = nelumbo::model::tune::choose(&gpu, &synthetic::tiny(), &options);
        assert!(matches!(refused.map(|_| ()), Err(Error::Request { .. })));
    }
}
