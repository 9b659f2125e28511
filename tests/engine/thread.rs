//! The engine behind its thread.

use super::common::{answer, engine, gpu, request, tokens};
use nelumbo::engine::{Engine, EngineCore, Event, FinishReason, RequestHandle, Sampling};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::model::synthetic;
use nelumbo::{Error, LoadOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The tokens up to the finish event, and the reason in it.
fn collect(generation: &RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    while let Some(event) = generation.next_event() {
        match event.unwrap() {
            Event::Token { id, token, .. } => {
                assert_eq!(id, generation.id());
                tokens.push(token);
            }
            Event::Failed { .. } => panic!("told as an error"),
            Event::Finished { reason, .. } => {
                assert!(generation.next_event().is_none(), "nothing follows");
                return (tokens, reason);
            }
        }
    }
    panic!("the events ended without a finish");
}

#[test]
fn answers_are_streamed_cancelled_and_go_on_after_a_lost_device() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(51, 9, config.vocab_size);
    let ask = |max_tokens| request(&prompt, max_tokens, Sampling::default());
    let mut alone = engine(&gpu, &config, &LoadOptions::default());
    let expected = answer(&mut alone, ask(12)).tokens;

    let on_thread = gpu.clone();
    let (handle, told): (Engine, std::sync::Arc<Gpu>) = Engine::spawn(move || {
        let engine = engine(&on_thread, &synthetic::tiny(), &LoadOptions::default());
        Ok((engine, on_thread))
    })
    .unwrap();
    assert_eq!(told.report().name, gpu.report().name);

    // two at once: the second waits for its turn
    let (first, second) = (
        handle.submit(ask(12)).unwrap(),
        handle.submit(ask(5)).unwrap(),
    );
    assert_eq!(
        collect(&second),
        (expected[..5].to_vec(), FinishReason::Length)
    );
    assert_eq!(collect(&first), (expected.clone(), FinishReason::Length));

    // one that nobody listens to any more does not stand in the way, nor does a cancelled one
    drop(handle.submit(ask(1500)).unwrap());
    let cancelled = handle.submit(ask(1500)).unwrap();
    assert!(matches!(
        cancelled.next_event(),
        Some(Ok(Event::Token { .. }))
    ));
    cancelled.cancel();
    let (seen, reason) = collect(&cancelled);
    assert_eq!(reason, FinishReason::Cancelled);
    assert!(seen.len() < 1499);
    assert_eq!(
        collect(&handle.submit(ask(12)).unwrap()),
        (expected.clone(), FinishReason::Length)
    );

    assert!(
        handle.submit(ask(0)).is_err(),
        "refused, and the thread lives on"
    );
    let running = handle.submit(ask(12)).unwrap();
    let Some(Ok(Event::Token { token, .. })) = running.next_event() else {
        panic!("no first token");
    };
    gpu.destroy(); // the engine opens another, and the stream goes on
    let (rest, reason) = collect(&running);
    assert_eq!(
        ([&[token], &rest[..]].concat(), reason),
        (expected, FinishReason::Length)
    );
    drop(handle);
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
    let spawned = Engine::spawn(|| -> nelumbo::Result<(EngineCore, ())> {
        OF_THE_DRIVER.with(|_| ());
        Err(Error::request("model", "there is none"))
    });
    assert!(matches!(spawned.err(), Some(Error::Request { .. })));
    assert!(CLEARED.load(Ordering::SeqCst));
}
