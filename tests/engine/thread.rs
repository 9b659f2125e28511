//! The engine behind its thread.

use super::common::{answer, engine, gpu, request, tokens};
use nelumbo::engine::{Engine, EngineHandle, Event, FinishReason, Generation, Sampling};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::model::synthetic;
use nelumbo::{Error, LoadOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The tokens up to the finish event, and the reason in it.
fn collect(generation: &Generation) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_event() {
        match event.unwrap() {
            Event::Token { id, token, .. } => {
                assert_eq!(id, generation.id());
                tokens.push(token);
            }
            Event::Finished { reason, .. } => {
                assert!(generation.next_event().is_none(), "nothing follows");
                return (tokens, reason);
            }
        }
    }
    panic!("the events ended without a finish");
}

#[test]
fn generations_are_streamed_cancelled_and_told_of_a_lost_device() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(51, 9, config.vocab_size);
    let ask = |max_tokens| request(&prompt, max_tokens, Sampling::default());
    let mut alone = engine(&gpu, &config, &LoadOptions::default());
    let expected = answer(&mut alone, ask(12)).tokens;

    let on_thread = gpu.clone();
    let (handle, told): (EngineHandle, std::sync::Arc<Gpu>) = EngineHandle::spawn(move || {
        let engine = engine(&on_thread, &synthetic::tiny(), &LoadOptions::default());
        Ok((engine, on_thread))
    })
    .unwrap();
    assert_eq!(told.report().name, gpu.report().name);

    // two at once: the second waits for its turn
    let (first, second) = (
        handle.generate(ask(12)).unwrap(),
        handle.generate(ask(5)).unwrap(),
    );
    assert_eq!(
        collect(&second),
        (expected[..5].to_vec(), FinishReason::Length)
    );
    assert_eq!(collect(&first), (expected.clone(), FinishReason::Length));

    // one that nobody listens to any more does not stand in the way, nor does a cancelled one
    drop(handle.generate(ask(1500)).unwrap());
    let cancelled = handle.generate(ask(1500)).unwrap();
    assert!(matches!(
        cancelled.next_event(),
        Some(Ok(Event::Token { .. }))
    ));
    cancelled.cancel();
    let (seen, reason) = collect(&cancelled);
    assert_eq!(reason, FinishReason::Cancelled);
    assert!(seen.len() < 1499);
    assert_eq!(
        collect(&handle.generate(ask(12)).unwrap()),
        (expected, FinishReason::Length)
    );

    assert!(
        handle.generate(ask(0)).is_err(),
        "refused, and the thread lives on"
    );
    let running = handle.generate(ask(1500)).unwrap();
    assert!(matches!(running.next_event(), Some(Ok(_))));
    gpu.destroy();
    let error = std::iter::from_fn(|| running.next_event()).find_map(Result::err);
    let error = error.expect("a lost device ends the events with an error");
    assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}");
    drop(handle);
}

#[test]
fn e16_a_thread_that_panics_while_loading_is_an_error_and_the_next_one_works() {
    let spawned = EngineHandle::spawn(|| -> nelumbo::Result<(Engine, ())> { panic!("injected") });
    let error = spawned.err().expect("there is no engine");
    assert!(matches!(error, Error::Device { .. }), "{error:?}");
    assert!(error.to_string().contains("ended while loading"), "{error}");

    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(52, 9, config.vocab_size);
    // also where the thread that panicked had the device: nothing of it is locked for ever
    let on_thread = gpu.clone();
    let spawned = EngineHandle::spawn(move || -> nelumbo::Result<(Engine, ())> {
        let _engine = engine(&on_thread, &synthetic::tiny(), &LoadOptions::default());
        panic!("injected")
    });
    assert!(matches!(spawned.err(), Some(Error::Device { .. })));
    let (handle, ()) = EngineHandle::spawn(move || {
        let engine = engine(&gpu, &synthetic::tiny(), &LoadOptions::default());
        Ok((engine, ()))
    })
    .unwrap();
    let request = request(&prompt, 3, Sampling::default());
    let (tokens, reason) = collect(&handle.generate(request).unwrap());
    assert_eq!((tokens.len(), reason), (3, FinishReason::Length));
}

/// What a driver clears up at the end of a thread has to be done before the caller goes on.
#[test]
fn a_failed_start_waits_for_its_thread() {
    static CLEARED: AtomicBool = AtomicBool::new(false);
    struct Clears;
    impl Drop for Clears {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(100));
            CLEARED.store(true, Ordering::SeqCst);
        }
    }
    thread_local!(static OF_THE_DRIVER: Clears = const { Clears });
    let spawned = EngineHandle::spawn(|| -> nelumbo::Result<(Engine, ())> {
        OF_THE_DRIVER.with(|_| ());
        Err(Error::request("model", "there is none"))
    });
    assert!(matches!(spawned.err(), Some(Error::Request { .. })));
    assert!(CLEARED.load(Ordering::SeqCst));
}
