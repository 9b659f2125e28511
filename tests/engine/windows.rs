//! Layers that see a window have few pages of their own, which are given back while a text goes on, and
//! found again.

use super::common::{bits, decoder, engine, gpu, tokens};
use super::serving::{Company, Serving, alone};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::{EngineCore, Pooling, Request};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kv::{KvFormat, PageId, Tables, pages_for};
use nelumbo::model::config::LayerKind;
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, synthetic};
use std::sync::Arc;

/// Tokens of the texts: more than the windows of one sequence have pages for.
const LEN: usize = 800;
/// Tokens of a step.
const STEP: usize = 16;

/// Three groups of a layer each.
fn config() -> Config {
    let kind = |window| LayerKind { window, rope: 0 };
    Config {
        num_layers: 3,
        layer_kinds: vec![kind(Some(40)), kind(None), kind(Some(70))],
        max_position_embeddings: 1024,
        ..synthetic::tiny()
    }
}

fn options(max_running: usize) -> LoadOptions {
    LoadOptions {
        kv_format: KvFormat::F32,
        ctx_size: Some(1024),
        batch_size: Some(STEP),
        max_running,
        ..LoadOptions::default()
    }
}

fn text() -> Vec<u32> {
    tokens(31, LEN, config().vocab_size)
}

/// Logits of all positions of the text where no page is ever given back.
fn with_every_page(gpu: &Arc<Gpu>, config: &Config) -> Vec<Vec<u32>> {
    // room for so many windows is room for all of one text
    let decoder = decoder(gpu, config, &options(16));
    let table: Vec<PageId> = (0..pages_for(LEN) as PageId).collect();
    let groups = decoder.kv().groups();
    let fits = |pages| groups.iter().all(|g| g.geometry.num_pages >= pages);
    assert!(groups.len() == 3 && fits(table.len()), "{groups:?}");
    let tables: Tables = vec![table; 3];
    let mut runner = Runner::new(decoder).unwrap();
    let (text, mut rows) = (text(), Vec::new());
    for (i, tokens) in text.chunks(STEP).enumerate() {
        let span = Span {
            tokens,
            first_position: i * STEP,
            pages: &tables,
            head_rows: HeadRows::All,
        };
        let logits = runner.logits(&[span]).unwrap();
        rows.extend(logits.chunks(config.vocab_size).map(bits));
    }
    rows
}

#[test]
fn a_text_goes_on_in_the_pages_of_a_window_with_the_same_bits() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let expected = with_every_page(&gpu, &config());
    let mut engine = engine(&gpu, &config(), &options(1));
    let pages = |group: usize| engine.decoder().kv().geometry(group).num_pages;
    // what a window and a step need, and two splits
    assert_eq!([0, 1, 2].map(pages), [5 + 32, 64, 7 + 32]);
    assert!(pages(2) < pages_for(LEN), "fewer than the text has");
    for chunk in [STEP, 7] {
        goes_on(&mut engine, chunk, &expected);
    }
}

fn goes_on(engine: &mut EngineCore, chunk: usize, expected: &[Vec<u32>]) {
    let mut position = 0;
    let each = |at: usize, logits: &[f32]| {
        assert_eq!(at, position);
        assert!(
            bits(logits) == expected[at],
            "position {at}, steps of {chunk}"
        );
        position += 1;
    };
    engine.evaluate(&text(), chunk, 0, each).unwrap();
    assert_eq!(position, LEN);
    engine.check();
}

#[test]
fn a_window_moves_from_slab_to_slab() {
    let Some(whole) = gpu(&OpenOptions::default()) else {
        return;
    };
    let narrow = gpu(&OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    });
    // keys of one split are 768 KiB
    let config = Config {
        num_kv_heads: 6,
        head_dim: 128,
        ..config()
    };
    let expected = with_every_page(&whole, &config);
    let mut engine = engine(&narrow.expect("as above"), &config, &options(1));
    let slabs = |group: usize| engine.decoder().kv().geometry(group).num_slabs();
    assert_eq!([0, 1, 2].map(slabs), [3, 4, 3]);
    goes_on(&mut engine, STEP, &expected);
}

#[test]
fn a_trial_begins_no_split_where_it_could_not_end_it() {
    let Some(whole) = gpu(&OpenOptions::default()) else {
        return;
    };
    let narrow = gpu(&OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    });
    let kind = |window| LayerKind { window, rope: 0 };
    let config = Config {
        num_kv_heads: 6,
        head_dim: 128,
        layer_kinds: vec![kind(Some(300)), kind(None)],
        ..config()
    };
    let text = tokens(31, 1000, config.vocab_size);
    let mut of_one = engine(&whole, &config, &options(1));
    let mut of_many = engine(&narrow.expect("as above"), &config, &options(1));
    let geometry = of_many.decoder().kv().geometry(0);
    // behind three slabs of a split each there are five pages, fewer than a window has
    assert_eq!((geometry.num_pages, geometry.slab_pages), (53, 16));
    let expected = of_one.trial(1000).unwrap().feed(&text).unwrap();
    let mut trial = of_many.trial(1000).unwrap();
    assert_eq!(trial.feed(&text).unwrap(), expected);
    for len in [990, 500] {
        trial.rewind(len).unwrap();
        assert_eq!(trial.feed(&text[len..]).unwrap(), expected, "from {len}");
    }
    drop(trial);
    of_many.check();
}

#[test]
fn requests_share_and_lose_pages_of_every_group_and_no_bit_differs() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = config();
    let mut runner = Runner::new(decoder(&gpu, &config, &options(3))).unwrap();
    let text = text();
    // three tenants, who share nothing with one another
    let request = |len: usize, own: u64| {
        let mut tokens = text[..len].to_vec();
        tokens.extend(super::common::tokens(own, 9, config.vocab_size));
        Request {
            tokens,
            cache_salt: vec![(own % 3) as u8],
            max_tokens: 40,
            ..Request::default()
        }
    };
    let lens = [300, 64, 333, 480, 91, 400];
    let requests: Vec<Request> = lens
        .into_iter()
        .zip(42..)
        .map(|(l, s)| request(l, s))
        .collect();
    let expected = alone(&mut runner, &requests);
    // pages for the longest, and less than all want at a time
    let company = Company {
        max_running: 3,
        budget: STEP,
        num_pages: 50,
    };
    let mut serving = Serving::new(&mut runner, company, true);
    for found in ["nothing", "much"] {
        let rows = serving.serve(&requests);
        let differ = rows.iter().zip(&expected).position(|(a, b)| a != b);
        assert_eq!(differ, None, "{found} in the cache");
    }
    assert!(serving.preemptions > 0 && serving.widest == 3);
    // who comes last finds what it has in common with who was there before, as far as windows reach
    serving.serve(&requests[3..4]);
    let again = request(470, 99);
    let id = serving.scheduler.submit(again).unwrap();
    serving.step(|_, _, _| ());
    let cached = serving.scheduler.counts(id).unwrap().cached_tokens;
    assert_eq!(cached, 464, "29 pages of 470 tokens");
}

#[test]
fn a_vector_and_a_trial_of_a_long_text_take_no_more_pages() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let (text, config) = (text(), config());
    let mut few = engine(&gpu, &config, &options(1));
    let mut many = engine(&gpu, &config, &options(16));
    let embed = |engine: &mut EngineCore| bits(&engine.embed(&text, Pooling::Mean).unwrap());
    assert!(embed(&mut few) == embed(&mut many));
    let mut trial = few.trial(LEN).unwrap();
    let expected = trial.feed(&text).unwrap();
    // as far back as what is seen there is kept, and further
    for len in [LEN - 1, LEN - 20, 100, 0] {
        trial.rewind(len).unwrap();
        assert_eq!(trial.len(), len);
        assert_eq!(trial.feed(&text[len..]).unwrap(), expected, "from {len}");
    }
    drop(trial);
    few.check();
}
