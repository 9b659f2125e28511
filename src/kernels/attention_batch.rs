//! A step made up for tests: sequences, their pages and cache, and the metadata of a plan.

use super::attention::{self, AttentionShape, Items, Scores};
use super::attention_plan::{
    Item, MergeRow, PlanLimits, PlanSequence, Round, Tiling, first_key, plan,
};
use super::case::Data;
use crate::kv::{KvFormat, PAGE_SIZE, PageGeometry, PageId, PagePool, pages_for};
use std::ops::Range;

/// Sequences of a step with their cache, made up: what a case uploads, and the bit tests too.
pub struct Batch {
    /// Heads and scale.
    pub shape: AttentionShape,
    /// How the cache is stored.
    pub format: KvFormat,
    /// The pages.
    pub geometry: PageGeometry,
    /// `(position of the first token, tokens)` of each sequence.
    pub sequences: Vec<(usize, usize)>,
    /// Page tables.
    pub tables: Vec<Vec<PageId>>,
    /// `[tokens, num_heads * head_dim]`
    pub q: Vec<f32>,
    /// K and V as the device sees them, over all pages: `[page][kv_head][16][head_dim]`.
    pub kv: [Vec<f32>; 2],
    /// Keys that a token sees at most; `None` are all.
    pub window: Option<usize>,
}

impl Batch {
    /// Sequences as `(position of the first token, tokens)`. Pages are permuted, and everything but
    /// the keys and values up to each sequence's last token is NaN.
    pub fn new(
        seed: u64,
        shape: AttentionShape,
        format: KvFormat,
        geometry: PageGeometry,
        sequences: &[(usize, usize)],
    ) -> Batch {
        let mut data = Data::new(seed);
        let num_tokens: usize = sequences.iter().map(|s| s.1).sum();
        let q = data.normal(num_tokens * shape.num_heads * shape.head_dim);
        let page_size = shape.num_kv_heads * PAGE_SIZE * shape.head_dim;
        let mut kv = [(); 2].map(|()| vec![f32::NAN; geometry.num_pages * page_size]);
        let mut pool = PagePool::new(geometry);
        let mut tables = Vec::new();
        for &(position0, tokens) in sequences {
            let mut table = Vec::new();
            // a page between sequences stays NaN, and no table is ascending
            let foreign = pool.extend(&mut Vec::new(), 1);
            let fits = pool.extend(&mut table, pages_for(position0 + tokens));
            assert!(foreign && fits, "{geometry:?} holds {sequences:?}");
            for split in table.chunks_mut(PAGE_SIZE) {
                split.reverse();
                let middle = split.len() / 2;
                split[..middle].rotate_left(middle / 2);
            }
            for position in 0..position0 + tokens {
                let page = table[position / PAGE_SIZE] as usize;
                for head in 0..shape.num_kv_heads {
                    let row = (page * shape.num_kv_heads + head) * PAGE_SIZE + position % PAGE_SIZE;
                    for cache in &mut kv {
                        let values = data.normal(shape.head_dim);
                        let stored = values.iter().map(|&v| stored(format, v));
                        let at = row * shape.head_dim;
                        for (to, value) in cache[at..].iter_mut().zip(stored) {
                            *to = value;
                        }
                    }
                }
            }
            tables.push(table);
        }
        Batch {
            shape,
            format,
            geometry,
            sequences: sequences.to_vec(),
            tables,
            q,
            kv,
            window: None,
        }
    }

    /// The same where a token sees `window` keys: what lies before all windows of a sequence becomes NaN, and
    /// page tables lead astray there.
    #[must_use]
    pub fn windowed(mut self, window: Option<usize>) -> Batch {
        self.window = window;
        let rows = PAGE_SIZE * self.shape.head_dim;
        for (i, &(position0, _)) in self.sequences.iter().enumerate() {
            let first = first_key(position0, window);
            for position in 0..first {
                let page = self.tables[i][position / PAGE_SIZE] as usize;
                for head in 0..self.shape.num_kv_heads {
                    let at = (page * self.shape.num_kv_heads + head) * rows
                        + position % PAGE_SIZE * self.shape.head_dim;
                    for cache in &mut self.kv {
                        cache[at..at + self.shape.head_dim].fill(f32::NAN);
                    }
                }
            }
            for (j, page) in self.tables[i][..first / PAGE_SIZE].iter_mut().enumerate() {
                *page = [u32::MAX, 0, 1 << 31][j % 3];
            }
        }
        self
    }

    /// Rows of `q` and of the result.
    pub fn num_tokens(&self) -> usize {
        self.sequences.iter().map(|s| s.1).sum()
    }

    /// The exact result, and the bound of each element.
    pub fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        self.expected_by(|q, keys, values, scores| {
            let (out, bound) = attention::reference(q, keys, values, scores);
            let bounds = vec![bound; out.len()];
            (out, bounds)
        })
    }

    /// The same by the twin of one row: of its query, the keys and values that it sees, and what makes scores
    /// it makes values and bounds.
    pub(super) fn expected_by(
        &self,
        twin: impl Fn(&[f32], &[f32], &[f32], Scores) -> (Vec<f64>, Vec<f64>),
    ) -> (Vec<f64>, Vec<f64>) {
        let AttentionShape {
            num_heads,
            num_kv_heads,
            head_dim,
            ..
        } = self.shape;
        let scores = self.shape.scores();
        let (mut values, mut bounds) = (Vec::new(), Vec::new());
        let mut rows = self.q.chunks(head_dim);
        for (&(position0, tokens), table) in self.sequences.iter().zip(&self.tables) {
            let first = first_key(position0, self.window);
            let keys = first..position0 + tokens;
            let heads: Vec<[Vec<f32>; 2]> = (0..num_kv_heads)
                .map(|head| [0, 1].map(|which| self.gather(table, head, keys.clone(), which)))
                .collect();
            for position in position0..position0 + tokens {
                for head in 0..num_heads {
                    let [k, v] = &heads[head / (num_heads / num_kv_heads)];
                    let seen = (first_key(position, self.window) - first) * head_dim
                        ..(position + 1 - first) * head_dim;
                    let q = rows.next().expect("a row for each head");
                    let (row, row_bounds) = twin(q, &k[seen.clone()], &v[seen], scores);
                    values.extend(row);
                    bounds.extend(row_bounds);
                }
            }
        }
        (values, bounds)
    }

    /// Sets what the first key head's first token of the first sequence has as its first value.
    pub(super) fn set_first_value(&mut self, value: f32) {
        let page_size = self.shape.num_kv_heads * PAGE_SIZE * self.shape.head_dim;
        self.kv[1][self.tables[0][0] as usize * page_size] = value;
    }

    /// Keys (0) or values (1) of one head at `positions`: `[positions, head_dim]`.
    fn gather(
        &self,
        table: &[PageId],
        head: usize,
        positions: Range<usize>,
        which: usize,
    ) -> Vec<f32> {
        let dim = self.shape.head_dim;
        let mut all = Vec::with_capacity(positions.len() * dim);
        for position in positions {
            let page = table[position / PAGE_SIZE] as usize;
            let row = (page * self.shape.num_kv_heads + head) * PAGE_SIZE + position % PAGE_SIZE;
            all.extend_from_slice(&self.kv[which][row * dim..][..dim]);
        }
        all
    }

    /// The bytes of slab `slab`, of keys (0) or values (1), and its shape.
    pub fn slab_bytes(&self, slab: usize, which: usize) -> (Vec<u8>, [usize; 4]) {
        let pages = self.geometry.pages_of(slab);
        let dims = [
            pages.len(),
            self.shape.num_kv_heads,
            PAGE_SIZE,
            self.shape.head_dim,
        ];
        let page_size: usize = dims[1..].iter().product();
        let values = &self.kv[which][pages.start as usize * page_size..][..pages.len() * page_size];
        let bytes = match self.format {
            KvFormat::F32 => bytemuck::cast_slice(values).to_vec(),
            KvFormat::F16 => values
                .iter()
                .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
                .collect(),
        };
        (bytes, dims)
    }

    /// The step's metadata for the rounds of a plan for `attention`: page tables, then the lists. The
    /// arguments are the plan's.
    pub fn step(&self, wanted_teams: usize, partial_slots: usize) -> Step {
        self.step_for(self.shape.tiling(), wanted_teams, partial_slots)
    }

    /// The same for the kernel that cuts rows by `tiling`.
    pub(super) fn step_for(
        &self,
        tiling: Tiling,
        wanted_teams: usize,
        partial_slots: usize,
    ) -> Step {
        let mut meta = vec![u32::MAX; 5];
        let mut sequences = Vec::new();
        let mut token0 = 0;
        for (&(position0, num_tokens), table) in self.sequences.iter().zip(&self.tables) {
            sequences.push(PlanSequence {
                token0,
                num_tokens,
                position0,
                page_table: table,
                table_at: meta.len(),
            });
            meta.extend_from_slice(table);
            meta.push(u32::MAX); // behind the last page comes none
            token0 += num_tokens;
        }
        let limits = PlanLimits {
            geometry: self.geometry,
            tiling,
            wanted_teams,
            partial_slots,
        };
        let rounds = plan(&sequences, &limits, self.window)
            .into_iter()
            .map(|round| StepRound::new(&round, &mut meta))
            .collect();
        Step { meta, rounds }
    }
}

/// A plan, written into a step's metadata.
pub struct Step {
    /// The metadata.
    pub meta: Vec<u32>,
    /// Where the rounds' lists are in it.
    pub rounds: Vec<StepRound>,
}

/// One round of a [`Step`].
pub struct StepRound {
    /// Items of each slab.
    pub slabs: Vec<Items>,
    /// First word and count of the rows to merge.
    pub merge: (usize, usize),
}

impl StepRound {
    fn new(round: &Round, meta: &mut Vec<u32>) -> StepRound {
        let mut slabs = Vec::new();
        for items in &round.slabs {
            slabs.push(Items {
                at: meta.len(),
                count: items.len(),
                max_tokens: round.max_tokens,
            });
            meta.extend(items.iter().flat_map(Item::words));
        }
        let merge = (meta.len(), round.merge.len());
        meta.extend(round.merge.iter().flat_map(MergeRow::words));
        StepRound { slabs, merge }
    }
}

/// What a value is after it went through the cache.
fn stored(format: KvFormat, value: f32) -> f32 {
    match format {
        KvFormat::F32 => value,
        KvFormat::F16 => half::f16::from_f32(value).to_f32(),
    }
}
