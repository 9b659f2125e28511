//! What a model is said to take on the device, against what the allocator gave.

mod common;

use common::{answer, engine, gpu, model_path, request, tokens};
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::gpu::{Backend, OpenOptions};
use nelumbo::kv::pages_for;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{MemoryLimit, synthetic};
use nelumbo::{Error, LoadOptions, Model};

/// All that is declared of an engine, and the part that is no weight, cache or scratch.
fn declared(engine: &mut EngineCore) -> (u64, u64) {
    let other = engine.other_bytes();
    let decoder = engine.decoder();
    let parts = decoder.weights().size_bytes() + decoder.kv().size_bytes();
    (parts + decoder.scratch_bytes() + other, other)
}

/// Holds the declared sum against the allocator's, `base` bytes of which were there before.
fn agree(what: &str, engine: &mut EngineCore, base: u64) {
    let (declared, other) = declared(engine);
    let gpu = engine.decoder().gpu();
    let allocated = gpu.allocated_bytes().expect("it told before");
    let reserved = gpu.reserved_bytes().expect("it told before");
    println!(
        "{what}: {declared} bytes declared, {other} of them other; {allocated} allocated, {base} \
         before; {reserved} reserved"
    );
    let off = (allocated - base).abs_diff(declared);
    assert!(off * 50 <= declared, "{what}: {off} bytes of {declared}");
}

#[test]
fn what_is_declared_is_what_was_allocated() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let Some(base) = gpu.allocated_bytes() else {
        println!("{} does not tell", gpu.report().name);
        return;
    };
    let config = synthetic::tiny();
    let mut small = engine(&gpu, &config, &LoadOptions::default());
    agree("tiny", &mut small, base);
    // log-probabilities need one more buffer, and steps none
    let before = declared(&mut small).0;
    let text = tokens(2, 20, config.vocab_size);
    let mut asking = request(&text, 3, Sampling::default());
    asking.logprobs = 2;
    answer(&mut small, asking);
    assert!(declared(&mut small).0 > before);
    agree("tiny, with log-probabilities", &mut small, base);
    drop(small);
    gpu.wait().unwrap();
    let left = gpu.allocated_bytes().unwrap();
    assert!(left <= base, "{left} bytes left of {base}");
}

#[test]
fn the_real_model_takes_what_is_declared() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let Some(path) = model_path() else { return };
    let options = LoadOptions {
        max_running: 2,
        ..LoadOptions::default()
    };
    let model = Model::load(&path, &options, &mut |_, _| ()).unwrap();
    let mut engine = EngineCore::new(model.decoder).unwrap();
    if engine.decoder().gpu().allocated_bytes().is_some() {
        agree("the real model", &mut engine, 0);
    }
}

#[test]
fn what_there_is_is_told_where_somebody_knows() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let (heap, memory) = (gpu.heap_bytes(), gpu.memory_bytes());
    println!("heap {heap:?}, memory {memory:?}");
    if gpu.report().backend == Backend::Vulkan && cfg!(target_os = "linux") {
        assert!(heap.is_some_and(|bytes| bytes >= 64 << 20), "{heap:?}");
        assert!(memory.is_some_and(|bytes| bytes >= 64 << 20), "{memory:?}");
    }
}

#[test]
fn everything_keeps_to_the_memory_that_was_asked_for() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
    let load = |mib: u64, ctx_size| {
        let options = LoadOptions {
            gpu_memory: Some(MemoryLimit::Bytes(mib << 20)),
            ctx_size,
            ..LoadOptions::default()
        };
        decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options)
    };
    // refused, then a shorter context, then one whole context, then room for many
    let (mut context, mut pages, mut kinds) = (0, 0, [0; 4]);
    for mib in 1..=32 {
        let decoder = match load(mib, None) {
            Ok(decoder) => decoder,
            Err(error @ Error::DoesNotFit { .. }) => {
                assert_eq!(pages, 0, "{mib} MiB: {error}");
                kinds[0] += 1;
                continue;
            }
            Err(error) => panic!("{mib} MiB: {error}"),
        };
        let now = (decoder.max_model_len(), decoder.kv().geometry(0).num_pages);
        assert!(now.0 >= context && now.1 >= pages, "{mib} MiB: {now:?}");
        (context, pages) = now;
        assert!(pages >= pages_for(context));
        kinds[match context {
            2048 if pages == pages_for(context) => 2,
            2048 => 3,
            _ => 1,
        }] += 1;
        let mut engine = EngineCore::new(decoder).unwrap();
        let mut asking = request(&tokens(2, 20, config.vocab_size), 3, Sampling::default());
        asking.logprobs = 2;
        answer(&mut engine, asking);
        let taken = declared(&mut engine).0;
        assert!(taken <= mib << 20, "{mib} MiB: {taken} bytes");
    }
    assert_eq!((context, pages), (2048, 16 * 128), "all that is wanted");
    assert!(
        kinds[0] > 0 && kinds[1] + kinds[2] > 0 && kinds[3] > 0,
        "{kinds:?}"
    );
    // a context that was asked for is not made shorter
    let refused = load(6, Some(40_000)).map(drop).unwrap_err().to_string();
    for part in [
        "40000 tokens",
        "6291456 are available",
        "--ctx-size",
        "--gpu-memory",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
}
