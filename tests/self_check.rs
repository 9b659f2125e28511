//! The self-check: it knows every variant that a model dispatches, notices every planted fault, is
//! kept only where all is right, and a model comes to the same text in spite of what is wrong.

mod common;

use common::{Answer, answer, decoder, engine, gpu, request, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::{EngineCore, Request, Sampling};
use nelumbo::gpu::faults::{FAULTS, ShaderFault, named};
use nelumbo::gpu::{Gpu, OpenOptions, PipelineFolder};
use nelumbo::kernels::Activations;
use nelumbo::model::self_check::{self, Checked, Instead, Safety};
use nelumbo::model::warm::shader_hash;
use nelumbo::model::{Config, synthetic};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Heads whose dims do not fill records.
fn odd() -> Config {
    Config {
        num_heads: 3,
        num_kv_heads: 1,
        head_dim: 40,
        intermediate_size: 100,
        ..synthetic::tiny()
    }
}

/// The shape of a small chat model, with fewer layers.
fn small() -> Config {
    Config {
        hidden_size: 576,
        num_heads: 9,
        num_kv_heads: 3,
        head_dim: 64,
        intermediate_size: 1536,
        vocab_size: 49152,
        ..synthetic::tiny()
    }
}

/// How a fault is brought to show: model, options, tokens of the prompt.
struct Scene {
    config: Config,
    load: LoadOptions,
    max_binding: Option<u64>,
    prompt: usize,
    sampling: Sampling,
}

impl Scene {
    fn new() -> Scene {
        Scene {
            config: synthetic::tiny(),
            load: LoadOptions {
                max_running: 4,
                ..LoadOptions::default()
            },
            max_binding: None,
            prompt: 30,
            sampling: Sampling::default(),
        }
    }

    /// By what the table says of when it shows.
    fn of(fault: &ShaderFault) -> Scene {
        let mut scene = Scene::new();
        match fault.name {
            "lane-join" => scene.load.lanes = Some(8),
            "act-round" | "act-scale" => scene.load.activations = Some(Activations::Q8),
            "rope-slab" => {
                scene.max_binding = Some(1 << 20);
                scene.load.ctx_size = Some(2048);
                // 2048 tokens of 2 heads of 256 dims in f16 are 2 MiB
                scene.config.head_dim = 256;
            }
            "softmax-fold" => scene.prompt = 300,
            "merge-split" => {
                scene.prompt = 300;
                scene.config.num_kv_heads = 1;
                scene.config.num_heads = 1;
            }
            "pack-tail" => scene.config = odd(),
            "penalties-turned" => scene.sampling.repeat_penalty = 1.5,
            "sample-temperature" => scene.sampling.temperature = 0.3,
            "sample-position" => scene.sampling.temperature = 1.0,
            _ => {}
        }
        scene
    }

    fn open(&self, faults: &[&'static ShaderFault]) -> Option<Arc<Gpu>> {
        gpu(&OpenOptions {
            faults: faults.to_vec(),
            max_binding: self.max_binding,
            ..OpenOptions::default()
        })
    }

    fn engine(&self, gpu: &Arc<Gpu>, self_check: bool) -> EngineCore {
        let load = LoadOptions {
            self_check,
            ..self.load.clone()
        };
        engine(gpu, &self.config, &load)
    }

    /// What is answered: as the scene draws tokens, and with many of them likely enough to be drawn.
    fn answers(&self, engine: &mut EngineCore) -> [Answer; 2] {
        let ids = tokens(5, self.prompt, self.config.vocab_size);
        let drawn = Sampling {
            temperature: 1.0,
            seed: 3,
            ..self.sampling.clone()
        };
        [self.sampling.clone(), drawn].map(|sampling| {
            let asked = Request {
                logprobs: 2,
                ..request(&ids, 24, sampling)
            };
            answer(engine, asked)
        })
    }
}

#[test]
fn every_variant_that_a_model_dispatches_is_checked() {
    // a row of logits has to fit a binding for each of the sequences
    for (config, binding) in [
        (synthetic::tiny(), 1 << 20),
        (odd(), 1 << 20),
        (small(), 4 << 20),
    ] {
        for (activations, max_binding) in
            [(Activations::Q8, None), (Activations::F32, Some(binding))]
        {
            let mut scene = Scene::new();
            scene.config = config.clone();
            scene.load.activations = Some(activations);
            scene.max_binding = max_binding;
            scene.load.max_running = 16;
            let Some(first) = scene.open(&[]) else {
                return;
            };
            let shape = decoder(&first, &scene.config, &scene.load).check_shape();
            let fresh = scene.open(&[]).unwrap();
            let checked = self_check::check(&fresh, &shape).unwrap();
            println!(
                "{}: {} cases, {} variants, {:?}, compilation {:?}",
                shape.describe(),
                checked.cases,
                checked.variants.len(),
                checked.time,
                checked.compile_time
            );
            assert!(checked.is_right() && !checked.cached, "{:?}", checked.wrong);
            // other programs only ever slow one down: the best of some counts
            let again = || self_check::check(&fresh, &shape).unwrap().time;
            let limit = Duration::from_secs(2);
            let quick = checked.time < limit || (0..5).any(|_| again() < limit);
            assert!(quick, "{:?}", checked.time);
            let made = fresh.counters().pipelines;
            let mut core = scene.engine(&fresh, false);
            for (i, length) in [3, 40, 1, 600, 7].into_iter().enumerate() {
                let ids = tokens(i as u64, length, config.vocab_size);
                let sampling = Sampling {
                    temperature: i as f32 / 2.0,
                    repeat_penalty: 1.3,
                    ..Sampling::default()
                };
                core.submit(request(&ids, 5, sampling)).unwrap();
            }
            while !core.is_idle() {
                core.step().unwrap();
            }
            let more = fresh.counters().pipelines - made;
            assert_eq!(more, 0, "variants that nobody checked");
        }
    }
}

fn kept_in(folder: &Path, faults: &[&str]) -> OpenOptions {
    OpenOptions {
        faults: named(faults.iter().copied()).unwrap(),
        pipelines: Some(PipelineFolder {
            folder: folder.to_owned(),
            shaders: shader_hash(),
        }),
        ..OpenOptions::default()
    }
}

#[test]
fn that_all_is_right_is_kept_and_that_something_is_wrong_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::new();
    let checked = |faults: &[&str]| {
        let gpu = gpu(&kept_in(folder.path(), faults))?;
        let decoder = decoder(&gpu, &scene.config, &scene.load);
        Some(self_check::check(&gpu, &decoder.check_shape()).unwrap())
    };
    let Some(first) = checked(&[]) else {
        return;
    };
    assert!(first.is_right() && !first.cached && first.cases > 0);
    let second = checked(&[]).unwrap();
    assert!(second.is_right() && second.cached && second.cases == 0);
    for _ in 0..2 {
        let faulty = checked(&["residual-lost"]).unwrap();
        assert!(!faulty.is_right() && !faulty.cached);
    }
    // and the result of one is not that of the other
    assert!(checked(&[]).unwrap().cached);
}

/// Whether a fault is in what was dispatched: what an adapter does not run is not there to be noticed.
fn is_struck(fault: &ShaderFault, checked: &Checked) -> bool {
    checked.variants.iter().any(|variant| {
        let mut parts = variant.all_parts();
        parts.any(|part| fault.edits.iter().any(|edit| edit.part == part.name))
    })
}

/// Plants each fault, and tells what `Instead` of it there is, and whether the host computes anything.
/// `None` where the adapter does not run what it strikes.
fn in_spite_of(fault: &'static ShaderFault, healthy: &mut Healthy) -> Option<Safety> {
    let scene = Scene::of(fault);
    let faulty = scene.open(&[fault])?;
    let mut safe = scene.engine(&faulty, true);
    let safety = safe.decoder().safety().clone();
    let checked = safety.checked.as_ref().unwrap();
    let wrong = checked.wrong_kernels();
    println!("{}: {wrong:?}, {:?}", fault.name, checked.time);
    assert_eq!(
        !wrong.is_empty(),
        is_struck(fault, checked),
        "{}",
        fault.name
    );
    for kernel in &wrong {
        assert!(fault.kernels.contains(kernel), "{}: {kernel}", fault.name);
    }
    assert_eq!(safety.findings.len(), wrong.len(), "a finding for each");
    if wrong.is_empty() {
        println!("{}: not on this adapter", fault.name);
        return None;
    }
    let expected = scene.answers(&mut scene.engine(&healthy.gpu(&scene)?, false));
    let damaged = scene.answers(&mut scene.engine(&faulty, false));
    assert_ne!(damaged, expected, "{} changes nothing", fault.name);
    // rounded once instead of step by step, so that the last digits of probabilities may differ
    for (found, expected) in scene.answers(&mut safe).iter().zip(&expected) {
        assert_eq!(found.tokens, expected.tokens, "{}", fault.name);
    }
    Some(safety)
}

/// Devices without faults, each opened once: what they compile serves many scenes.
#[derive(Default)]
struct Healthy(Vec<(Option<u64>, Arc<Gpu>)>);

impl Healthy {
    fn gpu(&mut self, scene: &Scene) -> Option<Arc<Gpu>> {
        let of = |(binding, _): &&(Option<u64>, Arc<Gpu>)| *binding == scene.max_binding;
        if let Some((_, gpu)) = self.0.iter().find(of) {
            return Some(gpu.clone());
        }
        let gpu = scene.open(&[])?;
        self.0.push((scene.max_binding, gpu.clone()));
        Some(gpu)
    }
}

/// Faults in what there is another way for.
const ONE_WAY: [&str; 3] = ["quant-wide", "share-x", "team-heard"];

/// What is wrong with one way of several is computed another way, to the same bits.
#[test]
fn another_way_is_taken_where_one_is_right() {
    let mut healthy = Healthy::default();
    for fault in named(ONE_WAY).unwrap() {
        let Some(safety) = in_spite_of(fault, &mut healthy) else {
            continue;
        };
        for finding in &safety.findings {
            let instead = finding.instead;
            assert!(
                matches!(instead, Instead::OtherWay(_)),
                "{}: {instead:?}",
                fault.name
            );
        }
        assert!(
            safety.replaced.is_empty(),
            "{}: {:?}",
            fault.name,
            safety.replaced
        );
    }
}

/// What is wrong with every way is computed on the host. One fault for each shader; all of them where
/// `NELUMBO_ALL_FAULTS` is set, which takes minutes.
#[test]
fn in_safe_mode_the_text_is_that_of_a_healthy_adapter() {
    let mut healthy = Healthy::default();
    if healthy.gpu(&Scene::new()).is_none() {
        return;
    }
    let mut on_host = 0;
    let all = std::env::var_os("NELUMBO_ALL_FAULTS").is_some();
    let mut shaders = HashSet::new();
    for fault in FAULTS.iter().filter(|f| !ONE_WAY.contains(&f.name)) {
        if !shaders.insert(fault.edits[0].part) && !all {
            continue;
        }
        if let Some(safety) = in_spite_of(fault, &mut healthy) {
            assert!(!safety.replaced.is_empty(), "{}", fault.name);
            on_host += 1;
        }
    }
    assert!(
        on_host >= 10,
        "{on_host} faults were worked around on the host"
    );
}
