//! Independent of company: whoever else is computed, in whatever chunks, with a prefix found or not,
//! with pages that are taken away and computed again, the logits of a request are those it has alone, to the
//! last bit. On every interface of the machine, and on the real model.

use super::common::{NAN, decoder, fill_pages, gpu, model_path, request, tokens};
use super::serving::{Company, Rows, Serving, alone};
use nelumbo::engine::runner::Runner;
use nelumbo::engine::{Request, Sampling};
use nelumbo::gpu::{Backend, Gpu, OpenOptions, Selection, adapter};
use nelumbo::kv::{KvFormat, PAGE_SIZE, PageId, pages_for};
use nelumbo::model::synthetic;
use nelumbo::{LoadOptions, Model};
use std::sync::Arc;

/// Pages that hold any batch here, and the least that hold every request by itself.
const ROOM: usize = 256;

fn options(lanes: u32) -> LoadOptions {
    LoadOptions {
        lanes: Some(lanes),
        ctx_size: Some(512),
        batch_size: Some(512),
        max_running: 16,
        pool_tokens: Some(ROOM * PAGE_SIZE),
        ..LoadOptions::default()
    }
}

/// `count` prompts of up to `most` tokens, of which three in five begin alike.
fn requests(vocab_size: usize, count: usize, most: usize, answer: usize) -> Vec<Request> {
    let document = tokens(90, most, vocab_size);
    let own = |i: usize| tokens(91 + i as u64, 1 + 7 * i % 30, vocab_size);
    let shared = |i: usize| [0, 33, most, 32, 0][i % 5].min(most);
    (0..count)
        .map(|i| [&document[..shared(i)], &own(i)].concat())
        .map(|prompt| request(&prompt, answer, Sampling::default()))
        .collect()
}

/// `count` requests that begin with a page each and grow into a second one.
fn growing(vocab_size: usize, count: usize, answer: usize) -> Vec<Request> {
    let prompt = |i: usize| tokens(190 + i as u64, 12 + i % 4, vocab_size);
    (0..count)
        .map(|i| request(&prompt(i), answer, Sampling::default()))
        .collect()
}

/// The most pages that one of `requests` ever needs.
fn longest(requests: &[Request]) -> usize {
    let need = |r: &Request| pages_for(r.tokens.len() + r.max_tokens);
    requests.iter().map(need).max().unwrap()
}

fn agree(found: &[Rows], expected: &[Rows], what: &str) {
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let first = found.iter().zip(expected).position(|(f, e)| f != e);
        assert_eq!(first, None, "token of request {i} that differs, {what}");
        assert_eq!(found.len(), expected.len(), "tokens of request {i}, {what}");
    }
}

/// Runs `requests` in batches of `sizes` under `budgets`: nothing cached, and all of it cached; then others
/// in a pool that holds only some of them.
fn in_company(
    runner: &mut Runner,
    requests: &[Request],
    sizes: &[usize],
    budgets: &[usize],
    name: &str,
) {
    let most = *sizes.iter().max().expect("some");
    let vocab_size = runner.decoder().config().vocab_size;
    let growing = growing(vocab_size, most, requests[0].max_tokens);
    let [expected, grown] = [&requests[..most], &growing].map(|r| alone(runner, r));
    let differ = |rows: &Rows| rows.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(expected.iter().all(differ), "{name}: logits do not differ");
    for &max_running in sizes {
        for &budget in budgets {
            let what = format!("{name}: {max_running} at a time, chunks of {budget}");
            let company = Company {
                max_running,
                budget,
                num_pages: ROOM,
            };
            let some = &requests[..max_running];
            let mut roomy = Serving::new(runner, company, true);
            agree(&roomy.serve(some), &expected, &what);
            assert_eq!(roomy.preemptions, 0, "{what}");
            // prompts that come in slowly meet fewer
            assert!(roomy.widest > 1 && (roomy.widest == max_running || budget < 512));
            agree(&roomy.serve(some), &expected, &format!("{what}, found"));
            drop(roomy);
            let some = &growing[..max_running];
            let tight = Company {
                num_pages: longest(some) + max_running / 2,
                ..company
            };
            let mut tight = Serving::new(runner, tight, true);
            agree(&tight.serve(some), &grown, &format!("{what}, preempted"));
            // a few, and those whose prompts come in slowly, may pass each other
            let is_crowd = max_running > 2 && budget > 1;
            assert!(tight.preemptions > 0 || !is_crowd, "{what}");
        }
    }
}

fn on(gpu: &Arc<Gpu>, lanes: u32, sizes: &[usize], budgets: &[usize]) {
    let config = synthetic::tiny();
    let mut runner = Runner::new(decoder(gpu, &config, &options(lanes))).unwrap();
    let requests = requests(config.vocab_size, 16, 60, 18);
    let name = format!("{}, {lanes} lanes", gpu.report().backend);
    in_company(&mut runner, &requests, sizes, budgets, &name);
}

#[test]
fn batches_chunks_hits_and_preemptions_change_no_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    on(&gpu, 1, &[2, 3, 8, 16], &[1, 16, 64, 512]);
    on(&gpu, 8, &[2, 3, 8, 16], &[1, 16, 64, 512]);
}

#[test]
fn nor_do_they_on_gl() {
    let there = adapter::list();
    if !there.iter().any(|a| a.backend == Backend::Gl) {
        println!("skipped: no adapter of GL");
        return;
    }
    let open = OpenOptions {
        selection: Selection {
            backend: Some(Backend::Gl),
            allow_software: true,
            ..Selection::default()
        },
        ..OpenOptions::default()
    };
    let gpu = gpu(&open).expect("it is there");
    on(&gpu, 1, &[2, 3, 8, 16], &[1, 16, 64, 512]);
    on(&gpu, 8, &[2, 3, 8, 16], &[1, 16, 64, 512]);
}

#[test]
fn nor_do_they_on_the_real_model() {
    if gpu(&OpenOptions::default()).is_none() {
        return;
    }
    let Some(path) = model_path() else { return };
    let model = Model::load(&path, &options(1), &mut |_, _| ()).unwrap();
    let vocab_size = model.decoder.config().vocab_size;
    let mut runner = Runner::new(model.decoder).unwrap();
    let requests = requests(vocab_size, 16, 40, 6);
    in_company(&mut runner, &requests, &[3], &[16, 512], "the real model");
    in_company(&mut runner, &requests, &[16], &[512], "the real model");
}

#[test]
fn nan_in_every_page_that_is_not_ones_own_changes_no_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    for kv_format in KvFormat::ALL {
        let options = LoadOptions {
            kv_format,
            ..options(1)
        };
        let mut runner = Runner::new(decoder(&gpu, &config, &options)).unwrap();
        let requests = requests(config.vocab_size, 10, 60, 20);
        let expected = alone(&mut runner, &requests);
        let company = Company {
            max_running: 8,
            budget: 16,
            num_pages: 40,
        };
        // one whose beginning is found, in a whole number of pages and not, and one of whom nothing is
        for (own, found) in [(1, 32), (2, 48), (4, 0)] {
            let mut serving = Serving::new(&mut runner, company, true);
            // what is in the cache, of others and of the same beginning, when it comes
            serving.serve(&requests[5..9]);
            assert!(serving.scheduler.pages().num_cached() >= 8);
            let id = serving.scheduler.submit(requests[own].clone()).unwrap();
            let others = [0, 3, 5, 6].map(|i| serving.scheduler.submit(requests[i].clone()));
            let others = others.map(Result::unwrap);
            let (mut spoilt, mut idle, mut shared) = (0, 0, 0);
            while let Some(counts) = serving.scheduler.counts(id).filter(|_| spoilt < 1000) {
                assert_eq!(counts.preemptions, 0, "the oldest keeps its pages");
                assert_eq!(counts.cached_tokens, if spoilt == 0 { 0 } else { found });
                idle = idle.max(serving.scheduler.pages().num_idle());
                serving.step(|decoder, scheduler, plan| {
                    assert!(plan.chunks.iter().any(|chunk| chunk.id == id));
                    let pages: &[PageId] = &scheduler.sequence(id).pages[0];
                    fill_pages(decoder, NAN, pages);
                    let theirs = scheduler.running().filter(|s| s.id != id);
                    shared += theirs.filter(|s| pages.contains(&s.pages[0][0])).count();
                });
                spoilt += 1;
            }
            let what = format!("{}, request {own}", kv_format.name());
            assert!(idle > 0 && spoilt >= 20, "{what}: {idle} idle, {spoilt}");
            assert!(shared > 0 || found == 0, "{what}: nobody shares its pages");
            agree(&[serving.take(id)], &expected[own..=own], &what);
            // it was poison: whoever had a page of his own before drew from it
            let drank = others.iter().filter(|id| {
                let rows = serving.take(**id);
                rows.iter()
                    .flatten()
                    .any(|&bits| f32::from_bits(bits).is_nan())
            });
            assert_eq!(drank.count(), others.len(), "{what}");
        }
    }
}
