//! Devices that are not there, go away, or are asked for too much.

use super::common::gpu;
use super::refused;
use nelumbo::engine::EngineCore;
use nelumbo::gpu::adapter::{self, Backend};
use nelumbo::gpu::{DType, Gpu, OpenOptions, Readback, Selection};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::{Config, MemoryLimit, synthetic};
use nelumbo::{Error, LoadOptions};
use std::time::{Duration, Instant};

/// A device that goes while the weights are filled in, at whatever moment.
#[test]
fn e5_a_device_lost_while_loading_is_told_without_a_hang() {
    let config = synthetic::tiny();
    let checkpoint = synthetic::checkpoint(&config, 1).unwrap();
    let options = LoadOptions::default();
    let mut lost = 0;
    for wait in [0, 1, 2, 4, 8, 16, 32] {
        let Some(gpu) = gpu(&OpenOptions::default()) else {
            return;
        };
        // less than the library itself waits for a device that does not answer
        let patience = Duration::from_secs(if gpu.is_software() { 250 } else { 25 });
        let start = Instant::now();
        let result = std::thread::scope(|scope| {
            let destroyer = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(wait));
                gpu.destroy();
            });
            if wait == 0 {
                destroyer.join().unwrap();
            }
            decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options)
                .and_then(EngineCore::new)
        });
        if let Err(error) = result {
            assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}");
            lost += 1;
        }
        assert!(start.elapsed() < patience, "{wait} ms");
    }
    assert!(lost > 0);
}

#[test]
fn e5_a_device_lost_before_a_result_is_read_back_names_that() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let readback = Readback::new(&gpu, 16).unwrap();
    gpu.destroy();
    let read = readback.wait(&gpu, |_| panic!("there is nothing to read"));
    let error = refused(read, &["lost", "while reading results back"]);
    assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}");
}

#[test]
fn e6_more_than_a_binding_or_a_buffer_can_hold_is_refused() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let error = refused(
        gpu.tensor("a huge one", DType::F32, &[1 << 20, 1 << 20])
            .map(drop),
        &["a huge one"],
    );
    assert!(matches!(error, Error::DoesNotFit { .. }), "{error:?}");
    let error = refused(
        Readback::new(&gpu, 1 << 60).map(drop),
        &["out of memory", "1152921504606846976"],
    );
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
    // the device is as good as before
    gpu.check().unwrap();
    let tensor = gpu.tensor("a small one", DType::U32, &[3]).unwrap();
    assert_eq!(gpu.download_as::<u32>(&tensor).unwrap(), [0, 0, 0]);
}

#[test]
fn e6_a_context_that_no_device_holds_is_refused() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let checkpoint = synthetic::checkpoint(&config, 1).unwrap();
    for ctx_size in [1 << 31, 1 << 40, usize::MAX] {
        let options = LoadOptions {
            ctx_size: Some(ctx_size),
            ..LoadOptions::default()
        };
        let decoder = decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options);
        refused(decoder, &["ctx"]);
    }
    // one that could be, and is over what may be used
    let options = LoadOptions {
        ctx_size: Some(1 << 24),
        gpu_memory: Some(MemoryLimit::Bytes(1 << 30)),
        ..LoadOptions::default()
    };
    let decoder = decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options);
    let error = refused(
        decoder,
        &[
            "16777216 tokens",
            "1073741824 are available",
            "--ctx-size",
            "--gpu-memory",
        ],
    );
    assert!(matches!(error, Error::DoesNotFit { .. }), "{error:?}");
}

#[test]
fn e3_m33_a_model_too_wide_for_a_binding_is_refused() {
    let open = OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    };
    let Some(gpu) = gpu(&open) else { return };
    // one row of logits is over the limit
    let config = Config {
        hidden_size: 4,
        vocab_size: (1 << 18) + 4,
        ..synthetic::tiny()
    };
    let checkpoint = synthetic::checkpoint(&config, 1).unwrap();
    let options = LoadOptions::default();
    let decoder = decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options);
    let error = refused(decoder, &["one token", "binding"]);
    assert!(matches!(error, Error::DoesNotFit { .. }), "{error:?}");
}

#[test]
fn a_backend_without_adapters_is_no_reason_to_take_another() {
    let there: Vec<Backend> = adapter::list().iter().map(|a| a.backend).collect();
    let absent = Backend::NATIVE.into_iter().filter(|b| !there.contains(b));
    let mut tried = 0;
    for backend in absent {
        let open = OpenOptions {
            selection: Selection {
                backend: Some(backend),
                ..Selection::default()
            },
            ..OpenOptions::default()
        };
        let error = refused(
            Gpu::open(&open).map(drop),
            &["no usable GPU adapter", backend.name()],
        );
        assert!(matches!(error, Error::NoAdapter { .. }), "{error:?}");
        tried += 1;
    }
    assert!(
        tried > 0,
        "no machine has Metal and DX12 at once: {there:?}"
    );
    let open = OpenOptions {
        selection: Selection {
            device: Some(99),
            ..Selection::default()
        },
        ..OpenOptions::default()
    };
    let error = refused(Gpu::open(&open).map(drop), &["--device 99"]);
    assert!(matches!(error, Error::NoAdapter { .. }), "{error:?}");
}

#[test]
fn nonsense_in_the_switches_for_tests_is_named() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let caps = OpenOptions {
        caps: Some("f16,quantum".to_owned()),
        ..OpenOptions::default()
    };
    refused(
        Gpu::open(&caps).map(drop),
        &["NELUMBO_CAPS", "quantum", "subgroup"],
    );
    let binding = OpenOptions {
        max_binding: Some(1000),
        ..OpenOptions::default()
    };
    refused(
        Gpu::open(&binding).map(drop),
        &["NELUMBO_MAX_BINDING", "1048576"],
    );
}
