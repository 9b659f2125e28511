//! How a text is cut into steps.

use super::common::{NAN, bits, decoder, fill_pages, gpu, tokens};
use super::{LONGEST, options, ragged};
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::gpu::{Gpu, OpenOptions};
use nelumbo::kernels::Activations;
use nelumbo::kv::{KvFormat, PageId, PagePool, Tables, pages_for};
use nelumbo::model::config::LayerKind;
use nelumbo::model::rope::Rope;
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::{Config, Decoder, synthetic};
use std::sync::Arc;

/// Rows of logits a step of these models has room for.
const HEAD_ROWS: usize = 64;
/// A decoder and the pages of its one sequence.
struct Bench {
    runner: Runner,
    pages: Tables,
}

impl Bench {
    fn new(decoder: Decoder) -> Bench {
        assert_eq!(decoder.max_head_rows(), HEAD_ROWS);
        let mut pages = Tables::new();
        for group in decoder.kv().groups() {
            let mut table: Vec<PageId> = Vec::new();
            // where layers see a window, too, there is room for all of one text
            assert!(PagePool::new(group.geometry).extend(&mut table, pages_for(LONGEST)));
            table.reverse(); // one slab: any order will do, and this one is not the identity
            pages.push(table);
        }
        Bench {
            runner: Runner::new(decoder).unwrap(),
            pages,
        }
    }

    /// Feeds `tokens` in steps of `chunk` into pages full of NaN, and returns the logits' bits of
    /// every position. A step has few rows of logits: one of more tokens is run again for each lot of
    /// its positions, or for three of them where that would be very often.
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
            head_rows: HeadRows::Last(1),
        };
        bits(&self.runner.logits(&[span]).unwrap())
    }
}

/// Single steps are what everything else has to equal. They take long: beyond `singly` tokens, steps
/// of 7 stand for them.
fn any_chunking_agrees(gpu: &Arc<Gpu>, config: &Config, options: &LoadOptions, singly: usize) {
    let what = format!(
        "{} weights, {:?} activations, {} KV, {:?} lanes, hidden {}",
        options.weights.name,
        options.activations,
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
    let int8 = LoadOptions {
        activations: Some(Activations::Q8),
        ..with("q8", KvFormat::F16)
    };
    any_chunking_agrees(&gpu, &ragged(), &int8, 129);
    // the other pairings of the two formats, over a text of two splits
    for (weights, kv_format) in [("q8", KvFormat::F32), ("f16", KvFormat::F16)] {
        let mut bench = Bench::new(decoder(&gpu, &ragged(), &with(weights, kv_format)));
        let text = tokens(4, 300, ragged().vocab_size);
        let sevens = bench.feed(&text, 7);
        let whole = Some(bench.whole(&text));
        assert!(whole == sevens[299], "{weights} weights, {kv_format:?} KV");
    }
}

/// Layers that see a window and rotate in their own way beside layers that see everything, with a cap on the
/// scores of both.
fn mixed(window: Option<usize>) -> Config {
    let own = Rope {
        theta: 1e6,
        dims: Some(16),
        ..Rope::default()
    };
    Config {
        num_layers: 3,
        ropes: vec![Rope::default(), own],
        layer_kinds: vec![LayerKind { window, rope: 1 }, LayerKind::default()],
        score_cap: Some(3.0),
        ..synthetic::tiny()
    }
}

#[test]
fn layers_of_several_windows_and_ropes_agree_over_any_chunking() {
    let Some(gpu) = gpu(&OpenOptions::default()) else {
        return;
    };
    let options = options("q8", KvFormat::F16);
    any_chunking_agrees(&gpu, &mixed(Some(40)), &options, 129);
    let text = tokens(5, 330, 512);
    let last = |config: &Config, n: usize| {
        let mut bench = Bench::new(decoder(&gpu, config, &options));
        bench.whole(&text[..n])
    };
    let plain = Config {
        layer_kinds: mixed(None).layer_kinds[..1].to_vec(),
        ..mixed(None)
    };
    assert!(last(&plain, 40) != last(&mixed(None), 40), "which rope");
    let uncapped = Config {
        score_cap: None,
        ..mixed(None)
    };
    assert!(last(&uncapped, 40) != last(&mixed(None), 40), "the cap");
    for (window, n, same) in [
        (40, 40, true),
        (40, 41, false),
        (330, 330, true),
        (329, 330, false),
        (20, 330, false),
    ] {
        let equal = last(&mixed(Some(window)), n) == last(&mixed(None), n);
        assert_eq!(equal, same, "{n} tokens, a window of {window}");
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
