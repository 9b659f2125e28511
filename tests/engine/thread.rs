//! The engine behind its thread: events by waiting and async, cancelling, the end, and faults.

use super::common::{answer, decoder, engine, gpu, request, tokens};
use nelumbo::engine::{
    Engine, EngineCore, EngineOptions, Event, FinishReason, PageUse, Pooling, RequestHandle,
    Sampling,
};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::model::synthetic;
use nelumbo::{Error, LoadOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

/// An engine with a tiny model on `gpu`.
pub fn start(gpu: &Arc<Gpu>, load: LoadOptions, options: EngineOptions) -> Engine {
    let gpu = gpu.clone();
    let make = move |_: &EngineOptions| Ok((engine(&gpu, &synthetic::tiny(), &load), ()));
    Engine::start_with(options, make).unwrap().0
}

/// The tokens up to the finish event, and the reason in it.
pub fn collect(handle: &RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    for event in handle {
        match event.unwrap() {
            Event::Token { id, token, .. } => {
                assert_eq!(id, handle.id());
                tokens.push(token);
            }
            Event::Failed { .. } => panic!("told as an error"),
            Event::Finished { reason, .. } => {
                assert!(handle.next_event().is_none(), "nothing follows");
                return (tokens, reason);
            }
        }
    }
    panic!("the events ended without a finish");
}

/// The same without a thread that waits.
async fn collect_async(mut handle: RequestHandle) -> (Vec<u32>, FinishReason) {
    let mut tokens = Vec::new();
    while let Some(event) = handle.next().await {
        match event.unwrap() {
            Event::Token { token, .. } => tokens.push(token),
            Event::Failed { .. } => panic!("told as an error"),
            Event::Finished { reason, .. } => {
                assert!(handle.next().await.is_none(), "nothing follows");
                return (tokens, reason);
            }
        }
    }
    panic!("the events ended without a finish");
}

fn is_token(event: Option<nelumbo::Result<Event>>) -> bool {
    matches!(event, Some(Ok(Event::Token { .. })))
}

/// Nothing runs, nobody waits, and no page has an owner.
fn assert_at_rest(engine: &Engine) {
    let pages = engine.pages().unwrap();
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.pages.used), (0, 0, 0));
    assert_eq!(stats.pages.total(), pages.len());
    let count = |what: &PageUse| pages.iter().filter(|&page| page == what).count();
    assert_eq!(count(&PageUse::Free), stats.pages.free);
    assert_eq!(count(&PageUse::Cached), stats.pages.cached);
}

#[test]
fn answers_are_streamed_to_threads_and_to_wakers() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(51, 9, config.vocab_size);
    let ask = |max_tokens| request(&prompt, max_tokens, Sampling::default());
    let mut alone = engine(&gpu, &config, &LoadOptions::default());
    let expected = answer(&mut alone, ask(12)).tokens;

    let engine = start(&gpu, LoadOptions::default(), EngineOptions::default());
    // two at once, and the one that was asked first is heard last
    let (first, second) = (
        engine.submit(ask(12)).unwrap(),
        engine.submit(ask(5)).unwrap(),
    );
    assert!(second.stats().is_none(), "before the end");
    assert_eq!(
        collect(&second),
        (expected[..5].to_vec(), FinishReason::Length)
    );
    assert_eq!(second.stats().unwrap().generated_tokens(), 5);
    assert_eq!(collect(&first), (expected.clone(), FinishReason::Length));

    let (first, second) = (
        engine.submit(ask(12)).unwrap(),
        engine.submit(ask(5)).unwrap(),
    );
    assert_eq!(
        pollster::block_on(collect_async(first)),
        (expected.clone(), FinishReason::Length)
    );
    assert_eq!(
        pollster::block_on(collect_async(second)),
        (expected[..5].to_vec(), FinishReason::Length)
    );

    // a moment without an event is no end
    let slow = engine.submit(ask(400)).unwrap();
    while slow.next_event_within(Duration::ZERO).is_pending() {}
    let rest = std::iter::from_fn(|| match slow.next_event_within(Duration::from_secs(60)) {
        Poll::Ready(event) => event,
        Poll::Pending => panic!("nothing within a minute"),
    });
    assert_eq!(rest.count(), 400, "all but one token, and the end");

    assert!(engine.submit(ask(0)).is_err(), "refused");
    let options = EngineOptions {
        max_waiting: 1,
        ..EngineOptions::default()
    };
    let narrow = decoder(&gpu, &config, &LoadOptions::default());
    let mut narrow = EngineCore::with_options(narrow, &options).unwrap();
    narrow.submit(ask(1)).unwrap();
    let full = narrow.submit(ask(1)).unwrap_err().to_string();
    assert_eq!(full, "queue: is full with 1 requests");
    // however many are asked for: nothing is made for them before they are accepted
    for count in [0, 10_000, usize::MAX] {
        let refused = engine.submit_several(ask(3), count);
        let refused = refused.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.starts_with(&format!("n: is {count}")), "{refused}");
    }
    assert_at_rest(&engine);
    let stats = engine.stats();
    assert_eq!((stats.finished.length, stats.finished.total()), (5, 5));
    assert_eq!(stats.generated_tokens, 12 + 5 + 12 + 5 + 400);
    engine.shutdown().unwrap();
}

#[test]
fn several_answers_have_events_of_their_own() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let prompt = tokens(52, 40, config.vocab_size);
    let ask = |seed| {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::default()
        };
        request(&prompt, 7, sampling)
    };
    let mut alone = engine(&gpu, &config, &LoadOptions::default());
    let engine = start(&gpu, LoadOptions::default(), EngineOptions::default());
    let handles = engine.submit_several(ask(3), 3).unwrap();
    for (handle, seed) in handles.iter().zip(3..) {
        let expected = answer(&mut alone, ask(seed)).tokens;
        assert_eq!(collect(handle), (expected, FinishReason::Length));
        let stats = handle.stats().unwrap();
        assert_eq!((stats.prompt_tokens, stats.generated_tokens()), (40, 7));
        assert!(stats.prefill > Duration::ZERO);
    }
    let computed = engine.stats().computed_tokens;
    assert_eq!(
        computed,
        40 + 3 * 6,
        "the prompt once, and all but the last"
    );

    // whoever asks again finds the prompt's full pages
    let again = engine.submit(ask(9)).unwrap();
    collect(&again);
    assert_eq!(again.stats().unwrap().counts.cached_tokens, 32);
    assert_eq!(engine.stats().cached_tokens, 32);
    assert_at_rest(&engine);
}

#[test]
fn who_is_not_heard_any_more_leaves_at_once() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let vocab_size = synthetic::tiny().vocab_size;
    let load = LoadOptions {
        batch_size: Some(16),
        pool_tokens: Some(2048),
        ..LoadOptions::default()
    };
    let engine = start(&gpu, load, EngineOptions::default());
    let ask = |seed, len, max_tokens| {
        request(
            &tokens(seed, len, vocab_size),
            max_tokens,
            Sampling::default(),
        )
    };
    // in prefill: a prompt of many steps, left before its first token
    let prefill = engine.submit(ask(1, 1500, 100)).unwrap();
    while engine.stats().steps < 2 {
        std::thread::yield_now();
    }
    drop(prefill);
    assert_at_rest(&engine);
    // in decode
    let decode = engine.submit(ask(2, 5, 1500)).unwrap();
    assert!(is_token(decode.next_event()));
    drop(decode);
    assert_at_rest(&engine);
    // waiting: the first takes nearly every page there is
    let running = engine.submit(ask(3, 2000, 20)).unwrap();
    let waiting = engine.submit(ask(4, 2000, 20)).unwrap();
    let (id, before) = (waiting.id(), engine.stats().steps);
    while engine.stats().steps == before {
        std::thread::yield_now();
    }
    let owners = engine.pages().unwrap();
    let owned_by = |id| {
        let mine = |page: &&PageUse| **page == PageUse::Owned(vec![id]);
        owners.iter().filter(mine).count()
    };
    assert_eq!((owned_by(running.id()), owned_by(id)), (126, 0));
    assert_eq!(engine.stats().waiting, 1);
    drop(waiting);
    engine.look(|_| ()).unwrap();
    assert_eq!(engine.stats().waiting, 0);
    running.cancel();
    let (seen, reason) = collect(&running);
    assert_eq!(reason, FinishReason::Cancelled);
    assert!(seen.len() < 20);
    assert_at_rest(&engine);
    assert_eq!(engine.stats().finished.cancelled, 4);
}

#[test]
fn a_shutdown_cancels_and_a_drain_waits() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let prompt = tokens(53, 9, synthetic::tiny().vocab_size);
    let ask = |max_tokens| request(&prompt, max_tokens, Sampling::default());
    let start = || start(&gpu, LoadOptions::default(), EngineOptions::default());

    let engine = start();
    let handles = [
        engine.submit(ask(1900)).unwrap(),
        engine.submit(ask(1900)).unwrap(),
    ];
    assert!(is_token(handles[0].next_event()));
    engine.shutdown().unwrap();
    for handle in &handles {
        assert_eq!(collect(handle).1, FinishReason::Cancelled);
        assert!(handle.stats().is_some());
    }

    let engine = start();
    let handle = engine.submit(ask(30)).unwrap();
    engine.drain(Duration::from_secs(60)).unwrap();
    let (seen, reason) = collect(&handle);
    assert_eq!((seen.len(), reason), (30, FinishReason::Length));

    let engine = start();
    let handle = engine.submit(ask(1900)).unwrap();
    engine.drain(Duration::ZERO).unwrap();
    assert_eq!(collect(&handle).1, FinishReason::Cancelled);

    let engine = start();
    let handle = engine.submit(ask(1900)).unwrap();
    drop(engine);
    assert_eq!(collect(&handle).1, FinishReason::Cancelled);
    assert!(gpu.wait().is_ok(), "the device is others' as well");
}

#[test]
fn a_panic_of_the_thread_reaches_everybody() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let prompt = tokens(54, 9, synthetic::tiny().vocab_size);
    let ask = || request(&prompt, 1900, Sampling::default());
    let engine = start(&gpu, LoadOptions::default(), EngineOptions::default());
    let waits = engine.submit(ask()).unwrap();
    let sleeps = engine.submit(ask()).unwrap();
    assert!(is_token(waits.next_event()));
    let asleep = std::thread::spawn(move || pollster::block_on(collect_until_error(sleeps)));
    let looked = engine.look(|_| -> () { panic!("planted by a test") });
    assert!(matches!(looked, Err(Error::Device { .. })));
    let ended = std::iter::from_fn(|| waits.next_event()).find_map(Result::err);
    assert!(matches!(ended, Some(Error::Device { .. })), "{ended:?}");
    assert!(waits.next_event().is_none(), "the error is the end");
    assert!(matches!(asleep.join().unwrap(), Error::Device { .. }));
    assert!(engine.submit(ask()).is_err() && engine.pages().is_err());
    assert!(
        engine.stats().generated_tokens > 0,
        "what was known still is"
    );
    assert!(engine.shutdown().is_err());
}

async fn collect_until_error(mut handle: RequestHandle) -> Error {
    loop {
        match handle.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            None => panic!("an end without an error"),
        }
    }
}

#[test]
fn a_lost_device_is_opened_again_and_streams_go_on() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let prompt = tokens(55, 9, synthetic::tiny().vocab_size);
    let engine = start(&gpu, LoadOptions::default(), EngineOptions::default());
    let ask = || engine.submit(request(&prompt, 30, Sampling::default()));
    let healthy = collect(&ask().unwrap());
    let vector = engine.embed(&prompt, Pooling::Mean).unwrap();
    let handle = ask().unwrap();
    let Some(Ok(Event::Token { token, .. })) = handle.next_event() else {
        panic!("no first token");
    };
    gpu.destroy();
    let (rest, reason) = collect(&handle);
    assert_eq!(([&[token], &rest[..]].concat(), reason), healthy);
    let counts = handle.stats().unwrap().counts;
    assert_eq!((counts.losses, engine.stats().losses), (1, 1));
    assert_at_rest(&engine);

    // whoever comes next may be a text to embed
    let again = engine.look(|core| core.decoder().gpu().clone()).unwrap();
    again.destroy();
    assert_eq!(engine.embed(&prompt, Pooling::Mean).unwrap(), vector);
    assert_eq!(collect(&ask().unwrap()), healthy);
}

#[test]
fn e16_a_thread_that_panics_while_loading_is_an_error_and_the_next_one_works() {
    let spawned = Engine::start_with(
        EngineOptions::default(),
        |_| -> nelumbo::Result<(EngineCore, ())> { panic!("injected") },
    );
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
    let spawned = Engine::start_with(
        EngineOptions::default(),
        move |_| -> nelumbo::Result<(EngineCore, ())> {
            let _engine = engine(&on_thread, &synthetic::tiny(), &LoadOptions::default());
            panic!("injected")
        },
    );
    assert!(matches!(spawned.err(), Some(Error::Device { .. })));
    let handle = start(&gpu, LoadOptions::default(), EngineOptions::default());
    let request = request(&prompt, 3, Sampling::default());
    let (tokens, reason) = collect(&handle.submit(request).unwrap());
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
    let make = |_: &EngineOptions| -> nelumbo::Result<(EngineCore, ())> {
        OF_THE_DRIVER.with(|_| ());
        Err(Error::request("model", "there is none"))
    };
    let started = Engine::start_with(EngineOptions::default(), make);
    assert!(matches!(started.err(), Some(Error::Request { .. })));
    assert!(CLEARED.load(Ordering::SeqCst));
}
