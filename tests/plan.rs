//! What is planned against what loading takes; and the roofline that speeds are planned with, as it is
//! measured on a device and kept.

mod common;

use common::{decoder, gpu, model_path};
use nelumbo::engine::EngineCore;
use nelumbo::gpu::{Gpu, OpenOptions, PipelineFolder};
use nelumbo::kernels::Activations;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::kv::KvFormat;
use nelumbo::model::config::LayerKind;
use nelumbo::model::plan::{Plan, Wanted};
use nelumbo::model::roofline::{ModelShape, Roofline, StepShape, Subject, WeightForm};
use nelumbo::model::warm::shader_hash;
use nelumbo::model::{Bounds, Config, Decoder, synthetic};
use nelumbo::quant::FORMATS;
use nelumbo::{LoadOptions, Model};
use std::sync::Arc;

/// The plan of a model that is to be loaded with `options`.
fn plan(gpu: &Gpu, config: &Config, options: &LoadOptions) -> Plan {
    let wanted = Wanted {
        model: "planned".to_owned(),
        shape: ModelShape::new(
            config.clone(),
            WeightForm::from_name(options.weights.name).unwrap(),
            options.kv_format.into(),
            gpu.max_binding_bytes(),
        ),
        ctx_size: options.ctx_size,
        users: options.max_running,
        activations: options.activations.unwrap_or(Activations::F32),
        bounds: Bounds::of(gpu),
        memory: None,
        prompt: 16,
        roofline: None,
    };
    wanted.plan().unwrap()
}

/// Holds a plan against what was loaded: weights and cache to the byte, scratch within 1 %.
fn agrees(what: &str, plan: &Plan, decoder: &Decoder) {
    let (weights, kv) = (decoder.weights().size_bytes(), decoder.kv().size_bytes());
    let scratch = decoder.scratch_bytes();
    println!(
        "{what}: weights {} {weights}, cache {} {kv}, scratch {} {scratch}",
        plan.weight_bytes, plan.pages_bytes, plan.scratch_bytes
    );
    assert_eq!(plan.weight_bytes, weights, "{what}: weights");
    assert_eq!(plan.pages_bytes, kv, "{what}: cache");
    let off = plan.scratch_bytes.abs_diff(scratch);
    assert!(off * 100 <= scratch, "{what}: scratch");
    assert_eq!(plan.ctx_size, decoder.max_model_len(), "{what}: context");
    let groups = decoder.kv().groups();
    let slabs = groups.iter().map(|group| group.geometry.num_slabs()).max();
    assert_eq!(plan.kv_slabs_per_layer, slabs, "{what}: slabs");
    let pages = groups
        .iter()
        .map(|g| (g.window, g.geometry.num_pages as u64));
    let planned = plan.kv_groups.iter().map(|g| (g.window, g.pages));
    assert!(
        planned.eq(pages),
        "{what}: {:?}, {groups:?}",
        plan.kv_groups
    );
    let weights = decoder.weights();
    let layers = weights.layers.iter();
    let matrices = layers.flat_map(|l| [&l.qkv, &l.o, &l.gate_up, &l.down]);
    let shards = matrices.chain([&weights.embedding]).map(|w| w.shards.len());
    assert_eq!(Some(plan.weight_shards), shards.max(), "{what}: shards");
    assert_eq!(plan.params, decoder.config().num_params(), "{what}");
}

#[test]
fn small_models_take_what_was_planned_in_every_format() {
    let Some(whole) = gpu(&OpenOptions::default()) else {
        return;
    };
    let narrow = gpu(&OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    });
    let tiny = synthetic::tiny();
    let ragged = Config {
        num_layers: 3,
        hidden_size: 100,
        num_heads: 5,
        num_kv_heads: 1,
        head_dim: 40,
        intermediate_size: 212,
        vocab_size: 1003,
        tied_head: false,
        ..synthetic::tiny()
    };
    let wide = Config {
        num_layers: 1,
        hidden_size: 1024,
        num_heads: 8,
        num_kv_heads: 8,
        head_dim: 128,
        intermediate_size: 1536,
        vocab_size: 4096,
        ..synthetic::tiny()
    };
    // in the shorter context the wider window is none
    let kind = |window| LayerKind { window, rope: 0 };
    let windows = Config {
        num_layers: 5,
        layer_kinds: vec![kind(Some(24)), kind(None), kind(Some(120))],
        ..synthetic::tiny()
    };
    let configs = [
        ("tiny", &tiny),
        ("ragged", &ragged),
        ("wide", &wide),
        ("windows", &windows),
    ];
    for (gpu, bindings) in [(whole, "whole"), (narrow.expect("as above"), "narrow")] {
        for (name, config) in configs {
            for (&weights, kv_format) in FORMATS.iter().zip(KvFormat::ALL) {
                for (ctx_size, max_running) in [(Some(100), 5), (None, 16)] {
                    if bindings == "narrow" && ["tiny", "windows"].contains(&name) {
                        continue; // nothing of it is over a binding
                    }
                    let options = LoadOptions {
                        weights,
                        kv_format,
                        ctx_size,
                        max_running,
                        ..LoadOptions::default()
                    };
                    let format = weights.name;
                    let what = format!("{name} {format} {ctx_size:?} x{max_running} {bindings}");
                    let planned = plan(&gpu, config, &options);
                    agrees(&what, &planned, &decoder(&gpu, config, &options));
                }
            }
        }
    }
}

#[test]
fn the_real_model_takes_what_was_planned_and_a_quarter_of_f32() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let Some(path) = model_path() else { return };
    for &weights in FORMATS {
        let options = LoadOptions {
            weights,
            ctx_size: Some(1000),
            max_running: 2,
            ..LoadOptions::default()
        };
        let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
        let planned = plan(&gpu, model.decoder.config(), &options);
        agrees(weights.name, &planned, &model.decoder);
        let by_format = planned.weight_bytes_by_format;
        let share = by_format.q8 as f64 / by_format.f32 as f64;
        assert!(share <= 0.266, "{share}");
        let mut engine = EngineCore::new(model.decoder).unwrap();
        let other = engine.other_bytes();
        // that of log-probabilities is planned for, and made only when somebody asks
        assert!(other <= planned.other_bytes, "{other} of {planned:?}");
        // of all buffers that were ever created: no copy in another format was among them
        let created = engine.decoder().gpu().counters().buffer_bytes;
        assert!(created <= planned.total_bytes, "{created} of {planned:?}");
    }
}

/// A device with a folder for what is kept.
fn keeping(folder: &tempfile::TempDir) -> Option<Arc<Gpu>> {
    gpu(&OpenOptions {
        pipelines: Some(PipelineFolder {
            folder: folder.path().to_owned(),
            shaders: shader_hash(),
        }),
        ..OpenOptions::default()
    })
}

#[test]
fn a_roofline_is_measured_once_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let Some(gpu) = keeping(&folder) else { return };
    let options = LoadOptions {
        open: gpu.options().clone(),
        ..LoadOptions::default()
    };
    // every look at this clock finds as much gone as is measured at once: nothing of the machine is in
    // the result
    let mut time = 0.0;
    let mut looks = 0;
    let mut clock = || {
        looks += 1;
        time += 0.01;
        time
    };
    assert_eq!(Peaks::kept(&gpu), None);
    assert!(Roofline::kept(&gpu, options.weights, options.kv_format).is_none());
    let config = synthetic::tiny();
    let measured = Roofline::kept_or_measured(&gpu, &config, &options, &mut clock).unwrap();
    assert!(measured.dispatch_s > 0.0 && measured.step_s >= 0.0);
    assert_eq!(measured.shares.matmul.len(), 5);
    assert_eq!(measured.shares.attention.len(), 2);
    assert!(looks > 100, "{looks}");
    let kept = Peaks::kept(&gpu).expect("kept with it");
    let off = kept.stream_bytes_s / measured.peaks.stream_bytes_s - 1.0;
    assert!(off.abs() < 1e-9, "{kept:?} {measured:?}");
    let mut stopped = || panic!("it is there already");
    let again = Roofline::kept_or_measured(&gpu, &config, &options, &mut stopped).unwrap();
    let kv = options.kv_format.into();
    let max_binding = gpu.max_binding_bytes();
    let shape = ModelShape::new(config.clone(), WeightForm::Q8, kv, max_binding);
    for step in [StepShape::decode(700), StepShape::chunk(3, 40, true)] {
        let seconds = again.step_seconds(&shape, &step);
        assert!(seconds > 0.0 && seconds.is_finite());
        let off = (seconds - measured.step_seconds(&shape, &step)).abs();
        assert!(off <= 1e-6 * seconds + 2e-9, "{off} of {seconds}");
    }
    // another format is another file, and a device without a folder keeps nothing
    assert!(Roofline::kept(&gpu, options.weights, KvFormat::F32).is_none());
    let other = common::gpu(&OpenOptions::default()).expect("as above");
    assert_eq!(Peaks::kept(&other), None);
    let subject = Subject {
        tuning: nelumbo::kernels::Tuning::for_gpu(&other),
        weights: options.weights,
        kv: options.kv_format,
    };
    again.keep(&other, subject);
    assert!(Roofline::kept(&other, options.weights, options.kv_format).is_none());
}
