//! What may not change a bit: how a text is cut into steps, how tensors are cut into shards, what
//! is in pages of others, what the adapter can do beyond the baseline, who was served before.
//!
//! The models are synthetic: their weights are random, so that any wrong read shows.

mod common;

use common::{answer, bits, decoder, engine, gpu, request, tokens};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::engine::{Engine, Sampling};
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kv::{KvFormat, PAGE_SIZE, PageId, PagePool, pages_for};
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, Decoder, synthetic};
use nelumbo::quant::Format;
use std::sync::Arc;

/// The longest text.
const LONGEST: usize = 600;
/// Rows of logits a step of these models has room for.
const HEAD_ROWS: usize = 16;
/// Two f16 NaNs, one f32 NaN.
const NAN: u32 = 0x7fff_7fff;

fn options(weights: &str, kv_format: KvFormat) -> LoadOptions {
    LoadOptions {
        weights: Format::from_name(weights).unwrap(),
        kv_format,
        ctx_size: Some(LONGEST + 40),
        batch_size: Some(LONGEST),
        ..LoadOptions::default()
    }
}

/// Widths that fill no group of 32 and no quad of groups.
fn ragged() -> Config {
    Config {
        hidden_size: 100,
        num_heads: 4,
        num_kv_heads: 1,
        head_dim: 40,
        intermediate_size: 132,
        vocab_size: 203,
        ..synthetic::tiny()
    }
}

/// Writes `word` all over the KV cache, or over the pages that `pages` does not hold.
fn fill_pages(decoder: &Decoder, word: u32, but: &[PageId]) {
    let (gpu, kv) = (decoder.gpu(), decoder.kv());
    for slab in (0..decoder.config().num_layers).flat_map(|layer| kv.layer(layer)) {
        for tensor in [&slab.k, &slab.v] {
            let page_bytes = tensor.size_bytes() / slab.num_pages as u64;
            let words = vec![word; page_bytes as usize / 4];
            for page in 0..slab.num_pages {
                if !but.contains(&(slab.first_page + page as PageId)) {
                    let at = page as u64 * page_bytes;
                    let bytes = bytemuck::cast_slice(&words);
                    gpu.upload(tensor, at, bytes).unwrap();
                }
            }
        }
    }
    gpu.flush_uploads().unwrap();
}

/// A decoder and the pages of its one sequence.
struct Bench {
    runner: Runner,
    pages: Vec<PageId>,
}

impl Bench {
    fn new(decoder: Decoder) -> Bench {
        assert_eq!(decoder.max_head_rows(), HEAD_ROWS);
        let mut pages = Vec::new();
        let mut pool = PagePool::new(decoder.kv().geometry());
        assert!(pool.extend(&mut pages, pages_for(LONGEST)));
        pages.reverse(); // one slab: any order will do, and this one is not the identity
        Bench {
            runner: Runner::new(decoder).unwrap(),
            pages,
        }
    }

    /// Feeds `tokens` in steps of `chunk` into pages full of NaN, and returns the logits' bits of
    /// every position. A step has 16 rows of logits: one of more tokens is run again for every 16 of
    /// its positions, or for three runs of 16 where that would be very often.
    fn feed(&mut self, tokens: &[u32], chunk: usize) -> Vec<Option<Vec<u32>>> {
        fill_pages(self.runner.decoder(), NAN, &[]);
        let mut found = vec![None; tokens.len()];
        for start in (0..tokens.len()).step_by(chunk) {
            let end = (start + chunk).min(tokens.len());
            let last = end.saturating_sub(HEAD_ROWS).max(start);
            let windows: Vec<usize> = if end - start > 16 * HEAD_ROWS {
                vec![start, (start + end) / 2, last]
            } else {
                (start..last).step_by(HEAD_ROWS).chain([last]).collect()
            };
            for window in windows {
                let rows = self.step(
                    tokens,
                    start..window,
                    window..end.min(window + HEAD_ROWS),
                    end,
                );
                for (i, row) in rows.into_iter().enumerate() {
                    found[window + i] = Some(row);
                }
            }
        }
        found
    }

    /// One step over `before`, `rows` and what follows up to `end`, with logits for `rows`.
    fn step(
        &mut self,
        tokens: &[u32],
        before: std::ops::Range<usize>,
        rows: std::ops::Range<usize>,
        end: usize,
    ) -> Vec<Vec<u32>> {
        let parts = [
            (before, HeadRows::None),
            (rows.clone(), HeadRows::All),
            (rows.end..end, HeadRows::None),
        ];
        let spans: Vec<Span> = parts
            .into_iter()
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, head_rows)| Span {
                tokens: &tokens[range.clone()],
                first_position: range.start,
                pages: &self.pages,
                head_rows,
            })
            .collect();
        let logits = self.runner.logits(&spans).unwrap();
        let vocab_size = self.runner.decoder().config().vocab_size;
        logits.chunks(vocab_size).map(bits).collect()
    }

    /// The last position's logits of a step over all of `tokens`, which is what a request does.
    fn whole(&mut self, tokens: &[u32]) -> Vec<u32> {
        fill_pages(self.runner.decoder(), NAN, &[]);
        let span = Span {
            tokens,
            first_position: 0,
            pages: &self.pages,
            head_rows: HeadRows::Last,
        };
        bits(&self.runner.logits(&[span]).unwrap())
    }
}

/// Single steps are what everything else has to equal. They take long: beyond `singly` tokens, steps
/// of 7 stand for them.
fn any_chunking_agrees(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions, singly: usize) {
    let what = format!(
        "{} weights, {} KV, {:?} lanes, hidden {}",
        options.weights.name,
        options.kv_format.name(),
        options.lanes,
        config.hidden_size
    );
    let mut bench = Bench::new(decoder(gpu, config, options));
    let text = tokens(3, LONGEST, config.vocab_size);
    let mut steps = bench.feed(&text[..singly], 1);
    let mut sevens = bench.feed(&text, 7);
    assert!(
        sevens[..singly] == steps,
        "{what}: {singly} tokens in steps of 7"
    );
    steps.extend(sevens.drain(singly..));
    let finite = |row: &Option<Vec<u32>>| {
        let row = row.as_ref().unwrap();
        row.iter().all(|&b| f32::from_bits(b).is_finite())
    };
    assert!(steps.iter().all(finite), "{what}: logits are not finite");
    assert!(
        steps[1..].iter().all(|row| row != &steps[0]),
        "{what}: logits do not differ"
    );
    for n in [1, 15, 16, 17, 127, 128, 129, LONGEST] {
        let mut chunks = vec![7, 16, 64, n];
        chunks.retain(|&chunk| chunk <= n && (chunk, n) != (7, LONGEST));
        chunks.dedup();
        for chunk in chunks {
            for (position, row) in bench.feed(&text[..n], chunk).iter().enumerate() {
                if let Some(row) = row {
                    let equal = Some(row) == steps[position].as_ref();
                    assert!(
                        equal,
                        "{what}: position {position} of {n} in steps of {chunk}"
                    );
                }
            }
        }
        let whole = Some(bench.whole(&text[..n]));
        assert!(
            whole == steps[n - 1],
            "{what}: the last of {n} tokens in one span"
        );
    }
}

/// Both formats of weights and of the cache, for one number of lanes.
fn any_chunking_agrees_for(lanes: u32) {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let with = |weights: &str, kv_format| LoadOptions {
        lanes: Some(lanes),
        ..options(weights, kv_format)
    };
    let tiny = with("q8", KvFormat::F16);
    any_chunking_agrees(&gpu, &synthetic::tiny(), &tiny, LONGEST);
    any_chunking_agrees(&gpu, &ragged(), &with("f16", KvFormat::F32), 129);
    // the other pairings of the two formats, over a text of two splits
    for (weights, kv_format) in [("q8", KvFormat::F32), ("f16", KvFormat::F16)] {
        let mut bench = Bench::new(decoder(&gpu, &ragged(), &with(weights, kv_format)));
        let text = tokens(4, 300, ragged().vocab_size);
        let sevens = bench.feed(&text, 7);
        let whole = Some(bench.whole(&text));
        assert!(whole == sevens[299], "{weights} weights, {kv_format:?} KV");
    }
}

#[test]
fn any_chunking_agrees_with_single_steps_at_1_lane() {
    any_chunking_agrees_for(1);
}

#[test]
fn any_chunking_agrees_with_single_steps_at_8_lanes() {
    any_chunking_agrees_for(8);
}

#[test]
fn any_chunking_agrees_with_single_steps_at_32_lanes() {
    any_chunking_agrees_for(32);
}

/// Logits' bits from `from` on, in steps of 64 where none are wanted.
fn evaluate(engine: &mut Engine, text: &[u32], from: usize) -> Vec<Vec<u32>> {
    let mut rows = Vec::new();
    engine
        .evaluate(text, 64, from, |_, row| rows.push(bits(row)))
        .unwrap();
    assert_eq!(rows.len(), text.len() - from);
    rows
}

/// Opens with a binding limit, checks that it cuts the embedding and the KV cache as told, and
/// returns the logits' bits from `from` on.
fn under_limit(
    max_binding: Option<u64>,
    config: &Config,
    options: &LoadOptions,
    text: &[u32],
    from: usize,
    is_cut: impl Fn(&Decoder) -> bool,
) -> Option<Vec<Vec<u32>>> {
    let open = OpenOptions {
        max_binding,
        ..OpenOptions::default()
    };
    let mut engine = engine(&gpu(&open)?, config, options);
    assert_eq!(
        is_cut(engine.decoder()),
        max_binding.is_some(),
        "{max_binding:?}"
    );
    Some(evaluate(&mut engine, text, from))
}

#[test]
fn a_binding_limit_of_4_mib_changes_no_bit() {
    let config = Config {
        hidden_size: 128,
        num_heads: 16,
        num_kv_heads: 8,
        head_dim: 64,
        intermediate_size: 160,
        vocab_size: 40_000,
        max_position_embeddings: 4096,
        ..synthetic::tiny()
    };
    let options = LoadOptions {
        ctx_size: Some(4096),
        batch_size: Some(64),
        ..options("q8", KvFormat::F32)
    };
    let text = tokens(5, LONGEST, config.vocab_size);
    let run = |max_binding| {
        under_limit(
            max_binding,
            &config,
            &options,
            &text,
            LONGEST - 36,
            |decoder| {
                let kv = decoder.kv().geometry();
                let shards = decoder.weights().embedding.shards.len();
                assert_eq!(shards > 1, kv.num_slabs() > 1, "{shards} shards, {kv:?}");
                shards > 1
            },
        )
    };
    let Some(whole) = run(None) else { return };
    assert!(run(Some(4 << 20)).unwrap() == whole);
}

#[test]
fn a_binding_limit_of_64_mib_changes_no_bit() {
    let config = Config {
        num_layers: 1,
        hidden_size: 128,
        vocab_size: 270_000,
        ..synthetic::tiny()
    };
    let options = LoadOptions {
        batch_size: Some(16),
        ..options("f16", KvFormat::F16)
    };
    // from both shards of the embedding: the first ends at token 262,143
    let mut text = tokens(6, 12, config.vocab_size);
    text.extend([0, 262_143, 262_144, 269_999]);
    let run = |max_binding| {
        under_limit(max_binding, &config, &options, &text, 0, |decoder| {
            decoder.weights().embedding.shards.len() > 1
        })
    };
    let Some(whole) = run(None) else { return };
    assert!(run(Some(64 << 20)).unwrap() == whole);
}

#[test]
fn nan_in_pages_of_others_changes_no_bit() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    for kv_format in KvFormat::ALL {
        let config = synthetic::tiny();
        let decoder = decoder(&gpu, &config, &options("q8", kv_format));
        let mut runner = Runner::new(decoder).unwrap();
        let text = tokens(8, 300, config.vocab_size);
        // every other page, so that each own page has strangers on both sides
        let pages: Vec<PageId> = (0..pages_for(text.len()))
            .map(|i| 2 * i as PageId + 1)
            .collect();
        let mut run = |others: u32| {
            fill_pages(runner.decoder(), 0, &[]);
            fill_pages(runner.decoder(), others, &pages);
            let mut rows = Vec::new();
            let mut start = 0;
            for len in [250, 5, 29, 1, 1, 1, 13] {
                let span = Span {
                    tokens: &text[start..start + len],
                    first_position: start,
                    pages: &pages[..pages_for(start + len)],
                    head_rows: HeadRows::Last,
                };
                rows.push(bits(&runner.logits(&[span]).unwrap()));
                start += len;
            }
            assert_eq!(start, text.len());
            rows
        };
        let clean = run(0);
        assert!(run(NAN) == clean, "{}", kv_format.name());
    }
}

/// The same model and text on two devices opened differently.
fn agrees_with_defaults(open: &OpenOptions, lanes: u32) {
    let Some(usual) = gpu(&OpenOptions::default()) else {
        return;
    };
    let other = gpu(open).expect("the adapter is there");
    for (weights, kv_format) in [("q8", KvFormat::F16), ("f16", KvFormat::F32)] {
        let options = LoadOptions {
            lanes: Some(lanes),
            ..options(weights, kv_format)
        };
        let config = ragged();
        let text = tokens(9, 280, config.vocab_size);
        let run = |gpu: &Arc<Gpu>| {
            let mut engine = engine(gpu, &config, &options);
            println!("caps {}: {:?}", gpu.caps(), engine.decoder().tuning());
            let sampling = Sampling {
                temperature: 0.8,
                top_p: 0.9,
                repeat_penalty: 1.1,
                seed: 4,
                ..Sampling::default()
            };
            let rows = evaluate(&mut engine, &text, text.len() - 32);
            (rows, answer(&mut engine, request(&text, 8, sampling)))
        };
        assert!(
            run(&usual) == run(&other),
            "{weights} weights, {} KV",
            kv_format.name()
        );
    }
}

#[test]
fn capabilities_change_no_bit() {
    let none = OpenOptions {
        caps: Some("none".to_owned()),
        ..OpenOptions::default()
    };
    // as many lanes as subgroups of the software adapters can join
    for lanes in [4, 8] {
        agrees_with_defaults(&none, lanes);
    }
}

#[test]
fn bounds_checks_change_no_bit() {
    let unchecked = OpenOptions {
        checked: false,
        ..OpenOptions::default()
    };
    agrees_with_defaults(&unchecked, 8);
}

#[test]
fn a_request_is_answered_the_same_alone_and_after_others() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let config = synthetic::tiny();
    let mut engine = engine(&gpu, &config, &options("q8", KvFormat::F16));
    let sampling = |seed| Sampling {
        temperature: 1.0,
        top_k: 50,
        presence_penalty: 0.5,
        seed,
        ..Sampling::default()
    };
    let mut ours = request(&tokens(11, 40, config.vocab_size), 30, sampling(1));
    ours.logprobs = 5;
    let alone = answer(&mut engine, ours.clone());
    for (seed, len) in [(12, 600), (13, 3), (14, 270)] {
        answer(
            &mut engine,
            request(&tokens(seed, len, config.vocab_size), 20, sampling(seed)),
        );
    }
    assert_eq!(answer(&mut engine, ours), alone);
}

#[test]
fn decode_creates_nothing_and_submits_once_a_step() {
    // wide heads: 1 MiB holds 32 of their pages, so that 40 are two slabs
    let wide = Config {
        num_heads: 8,
        num_kv_heads: 8,
        head_dim: 64,
        ..synthetic::tiny()
    };
    let small = OpenOptions {
        max_binding: Some(1 << 20),
        ..OpenOptions::default()
    };
    let cases = [
        (synthetic::tiny(), OpenOptions::default(), 1),
        (wide, small, 2),
    ];
    for (config, open, num_slabs) in cases {
        let Some(gpu) = gpu(&open) else { return };
        let kv_format = KvFormat::F32;
        let mut engine = engine(&gpu, &config, &options("q8", kv_format));
        assert_eq!(engine.decoder().kv().geometry().num_slabs(), num_slabs);
        let drawn = Sampling {
            temperature: 1.0,
            top_k: 40,
            frequency_penalty: 0.2,
            seed: 2,
            ..Sampling::default()
        };
        for sampling in [Sampling::default(), drawn] {
            // over the end of a page; the other prompt's answer begins a split, in the next slab
            for prompt_len in [PAGE_SIZE - 4, 240] {
                let prompt = tokens(15, prompt_len, config.vocab_size);
                let request = request(&prompt, 40, sampling.clone());
                engine.submit(request).unwrap();
                // the prompt, and one step to make what decode needs
                while engine.step().unwrap().is_empty() {}
                engine.step().unwrap();
                let mut before = gpu.counters();
                for step in 2..40 {
                    engine.step().unwrap();
                    engine.check();
                    before.submits += 1;
                    assert_eq!(
                        gpu.counters(),
                        before,
                        "step {step} after {prompt_len} tokens"
                    );
                }
                assert!(engine.is_idle());
            }
        }
    }
}
