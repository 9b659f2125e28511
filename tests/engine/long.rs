//! A context of 131,072 tokens over several slabs: right at its ends and around every slab's, and in
//! whatever slabs its pages lie.
//!
//! To compute so long a context takes hours on a CPU, so keys and values are random numbers put into the
//! cache by hand; steps then go on at chosen positions. Where a token's keys and values count, those of
//! every other token do, too: a wrong page, a page too many or one too few changes the last bits.

use super::common::{bits, gpu, tokens};
use super::serving::Rows;
use half::f16;
use nelumbo::LoadOptions;
use nelumbo::engine::runner::Runner;
use nelumbo::gpu::OpenOptions;
use nelumbo::kernels::Activations;
use nelumbo::kernels::case::Data;
use nelumbo::kv::{PAGE_SIZE, PageId, PagePool, SPLIT_PAGES, SPLIT_SIZE, pages_for};
use nelumbo::model::load::decoder_from_parts;
use nelumbo::model::reference::{Past, Reference};
use nelumbo::model::step::{HeadRows, Span};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Config, Decoder, synthetic};
use std::time::Instant;

const CONTEXT: usize = 131_072;
const DIM: usize = 64;
/// A binding holds so many tokens here, in the pools of several slabs: 2 MiB of keys.
const SLAB_TOKENS: usize = 16_384;

fn config() -> Config {
    Config {
        num_layers: 1,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: DIM,
        max_position_embeddings: CONTEXT,
        ..synthetic::tiny()
    }
}

/// Keys and values by position. Scores spread widely enough that some keys weigh thousands of times
/// what others do.
struct Texts {
    keys: Vec<f16>,
    values: Vec<f16>,
}

impl Texts {
    fn new() -> Texts {
        let mut data = Data::new(11);
        let mut random = |scale: f32| {
            let values = data.normal(CONTEXT * DIM);
            values.iter().map(|v| f16::from_f32(v * scale)).collect()
        };
        Texts {
            keys: random(2.0),
            values: random(1.0),
        }
    }

    /// What comes before position `end`, with the splits in `swapped` in each other's places.
    fn past(&self, end: usize, swapped: Option<(usize, usize)>) -> Past {
        let rows = |all: &[f16]| {
            let row = |position: usize| {
                let (split, at) = (position / SPLIT_SIZE, position % SPLIT_SIZE);
                let split = match swapped {
                    Some((a, b)) if split == a => b,
                    Some((a, b)) if split == b => a,
                    _ => split,
                };
                let row = &all[(split * SPLIT_SIZE + at) * DIM..][..DIM];
                row.iter().map(|v| v.to_f64()).collect()
            };
            (0..end).map(row).collect()
        };
        Past {
            keys: rows(&self.keys),
            values: match swapped {
                // keys alone change places: both together would change nothing
                Some(_) => self.past(end, None).values,
                None => rows(&self.values),
            },
        }
    }
}

/// A cache with all of the texts in it.
struct Long<'a> {
    runner: Runner,
    texts: &'a Texts,
    pages: Vec<PageId>,
}

impl Long<'_> {
    fn new<'a>(
        max_binding: Option<u64>,
        texts: &'a Texts,
        place: impl Fn(&Decoder) -> Vec<PageId>,
    ) -> Option<Long<'a>> {
        let gpu = gpu(&OpenOptions {
            max_binding,
            ..OpenOptions::default()
        })?;
        let options = LoadOptions {
            activations: Some(Activations::F32),
            ctx_size: Some(CONTEXT),
            batch_size: Some(64),
            max_running: 16,
            pool_tokens: Some(CONTEXT),
            ..LoadOptions::default()
        };
        let config = config();
        let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
        let decoder =
            decoder_from_parts(&gpu, &config, &synthetic::NAMES, &checkpoint, &options).unwrap();
        assert_eq!(decoder.max_model_len(), CONTEXT);
        let slabs = decoder.kv().geometry(0).num_slabs();
        let expected = max_binding.map_or(1, |_| CONTEXT / SLAB_TOKENS);
        assert_eq!(slabs, expected, "slabs");
        let pages = place(&decoder);
        assert_eq!(pages.len(), pages_for(CONTEXT));
        let long = Long {
            runner: Runner::new(decoder).unwrap(),
            texts,
            pages,
        };
        (0..pages_for(CONTEXT)).for_each(|page| long.fill(page));
        gpu.flush_uploads().unwrap();
        Some(long)
    }

    /// Puts a page's keys and values where they belong, whatever steps have written there.
    fn fill(&self, page: usize) {
        let (gpu, id) = (self.runner.decoder().gpu(), self.pages[page]);
        let slabs = self.runner.decoder().kv().layer(0);
        let slab = slabs
            .iter()
            .rfind(|slab| slab.first_page <= id)
            .expect("the first slab begins at 0");
        let rows = page * PAGE_SIZE * DIM..(page + 1) * PAGE_SIZE * DIM;
        for (tensor, all) in [(&slab.k, &self.texts.keys), (&slab.v, &self.texts.values)] {
            let bytes: Vec<u8> = all[rows.clone()]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            let at = u64::from(id - slab.first_page) * bytes.len() as u64;
            gpu.upload(tensor, at, &bytes).unwrap();
        }
    }

    /// Logits of a token at each of `positions`, one a sequence, which all have the same past but for
    /// one another.
    fn step(&mut self, positions: &[usize]) -> Vec<Vec<f32>> {
        let ids = tokens(3, CONTEXT, config().vocab_size);
        let spans: Vec<Span> = positions
            .iter()
            .map(|&position| Span {
                tokens: &ids[position..=position],
                first_position: position,
                pages: std::slice::from_ref(&self.pages),
                head_rows: HeadRows::Last(1),
            })
            .collect();
        let logits = self.runner.logits(&spans).unwrap();
        self.restore(positions);
        let rows = logits.chunks(config().vocab_size);
        rows.map(<[f32]>::to_vec).collect()
    }

    /// Logits of a chunk of 8 tokens from `first` on.
    fn chunk(&mut self, first: usize) -> Vec<f32> {
        let ids = tokens(3, CONTEXT, config().vocab_size);
        let span = Span {
            tokens: &ids[first..first + 8],
            first_position: first,
            pages: std::slice::from_ref(&self.pages),
            head_rows: HeadRows::All,
        };
        let logits = self.runner.logits(&[span]).unwrap();
        self.restore(&[first, first + 7]);
        logits
    }

    fn restore(&self, positions: &[usize]) {
        positions.iter().for_each(|p| self.fill(p / PAGE_SIZE));
        self.runner.decoder().gpu().flush_uploads().unwrap();
    }
}

/// As a sequence gets its pages from the pool that it has to itself: split by split from the next slab.
fn by_the_pool(decoder: &Decoder) -> Vec<PageId> {
    let (mut pages, geometry) = (Vec::new(), decoder.kv().geometry(0));
    assert!(PagePool::new(geometry).extend(&mut pages, pages_for(CONTEXT)));
    let slab = |split: usize| geometry.slab_of(pages[split * SPLIT_PAGES]);
    let moves = (1..CONTEXT / SPLIT_SIZE).filter(|&split| slab(split) != slab(split - 1));
    assert!(geometry.num_slabs() == 1 || moves.count() > 400);
    pages
}

fn in_order(_: &Decoder) -> Vec<PageId> {
    (0..pages_for(CONTEXT) as PageId).collect()
}

/// Splits backwards, and the pages in each of them, too.
fn backwards(_: &Decoder) -> Vec<PageId> {
    (0..pages_for(CONTEXT) as PageId).rev().collect()
}

/// The last token before a boundary and the first two behind it, for slabs in a row and for every
/// eighth split; and both ends.
fn positions() -> Vec<usize> {
    let boundaries = (1..CONTEXT / (8 * SPLIT_SIZE)).map(|i| i * 8 * SPLIT_SIZE);
    let around = boundaries.flat_map(|b| [b - 1, b, b + 1]);
    let ends = [
        0,
        1,
        15,
        16,
        255,
        256,
        CONTEXT - 257,
        CONTEXT - 2,
        CONTEXT - 1,
    ];
    ends.into_iter().chain(around).collect()
}

#[test]
fn a_context_of_131072_tokens_is_right_at_the_ends_and_around_every_slab() {
    let texts = Texts::new();
    let positions = positions();
    let mut expected: Option<(Rows, Rows)> = None;
    type Place = fn(&Decoder) -> Vec<PageId>;
    let places: [(&str, Option<u64>, Place); 4] = [
        ("one slab", None, in_order),
        ("slabs in a row", Some(2 << 20), in_order),
        ("the pool's slabs", Some(2 << 20), by_the_pool),
        ("slabs backwards", Some(2 << 20), backwards),
    ];
    for (name, max_binding, place) in places {
        let Some(mut long) = Long::new(max_binding, &texts, place) else {
            return;
        };
        let mut found = Vec::new();
        for positions in positions.chunks(8) {
            found.extend(long.step(positions).iter().map(|row| bits(row)));
        }
        let firsts = (1..CONTEXT / SLAB_TOKENS).map(|i| i * SLAB_TOKENS - 4);
        let firsts = firsts.chain([0, CONTEXT - 8]);
        let chunks: Rows = firsts.map(|first| bits(&long.chunk(first))).collect();
        match &expected {
            None => {
                against_the_reference(&mut long);
                tell_times(&mut long);
                expected = Some((found, chunks));
            }
            Some((rows, expected)) => {
                for (i, position) in positions.iter().enumerate() {
                    assert!(found[i] == rows[i], "{name}: position {position}");
                }
                assert!(chunks == *expected, "{name}: chunks over the boundaries");
            }
        }
    }
}

/// Holds single steps against the forward pass on the CPU in f64 over the same keys and values, and that
/// against itself with two splits in each other's places, which has to be far away.
fn against_the_reference(long: &mut Long) {
    const BOUND: f64 = 1e-3;
    let config = config();
    let checkpoint = synthetic::checkpoint(&config, 7).unwrap();
    let map = TensorMap::new(&config, &synthetic::NAMES, &checkpoint).unwrap();
    let format = LoadOptions::default().weights;
    let reference = Reference::load(&config, &map, format).unwrap();
    let ids = tokens(3, CONTEXT, config.vocab_size);
    let first_slab = SLAB_TOKENS;
    for position in [
        0,
        1,
        300,
        first_slab - 1,
        first_slab,
        first_slab + 1,
        7 * first_slab - 1,
        7 * first_slab,
        CONTEXT - 1,
    ] {
        let exact = |swapped| {
            let past = long.texts.past(position, swapped);
            reference
                .logits_after(&[past], &ids[position..=position])
                .remove(0)
        };
        let straight = exact(None);
        let far = |other: &mut dyn Iterator<Item = f64>| {
            let range = straight
                .iter()
                .fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
            let errors = straight.iter().zip(other).map(|(a, b)| (a - b).abs());
            // unlike max, this keeps a NaN
            errors.fold(0.0, |a, b| if b <= a { a } else { b }) / (range.1 - range.0)
        };
        let found = long.step(&[position]).remove(0);
        let error = far(&mut found.iter().map(|&v| f64::from(v)));
        println!("position {position}: logits within {error:.2e} of their range");
        assert!(error <= BOUND, "position {position}: {error:e}");
        if position == CONTEXT - 1 {
            // the two splits on either side of a boundary that is far behind
            let split = first_slab / SPLIT_SIZE;
            let wrong = exact(Some((split - 1, split)));
            let error = far(&mut wrong.iter().copied());
            println!("with two splits exchanged they are off by {error:.2e}");
            assert!(error > BOUND, "a wrong split would not be seen: {error:e}");
        }
    }
}

/// How long a step takes at eighths of the context: attention is all that grows. Told, not judged.
fn tell_times(long: &mut Long) {
    for eighth in 1..=8 {
        let position = eighth * CONTEXT / 8 - 1;
        let best = (0..3).map(|_| {
            let start = Instant::now();
            long.step(&[position]);
            start.elapsed()
        });
        let best = best.min().expect("three times");
        println!("a step at {position}: {:.2} ms", best.as_secs_f64() * 1e3);
    }
}
