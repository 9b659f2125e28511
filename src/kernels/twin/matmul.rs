//! The twin of `matmul` and `matmul_coop`: exact sums, and pieces for what their ending writes.

use super::endings::{self, Exact, Order, Residual};
use super::kv::Slab;
use super::packed::Packed;
use super::runs::{Run, joined};
use super::{Effort, Piece, parallel};
use crate::error::Result;
use crate::gpu::Call;
use crate::kernels::activations::Activations;
use crate::kernels::halve;
use crate::kernels::matmul::{MatmulParams, Norm};
use crate::kernels::matmul_output::{Ending, Kind};
use crate::kv::KvFormat;
use crate::quant::{BLOCK_ROWS, GROUP};

/// Blocks of rows that a thread takes at a time.
const TURN: usize = 16;

/// What a dispatch of `matmul` writes.
pub(crate) fn canonical(call: &mut Call<'_>, effort: Effort) -> Result<Vec<Piece>> {
    let shard = Shard::of(call);
    let activations = Activations::read_by(call);
    let kind = Kind::of_variant(&call.variant);
    let order = Order {
        activations,
        lanes: call.number("LANES").expect("lanes are set") as usize,
        norm: kind.norm.then_some(Norm { eps: shard.p.eps }),
    };
    let words = shard.tokens * shard.groups * activations.record_words();
    let words = call.read_range("x", 0..words)?;
    let x = activations.unpack(&words, shard.groups * GROUP);
    let packed = shard.weights(call)?;
    let sums = shard.sums(&packed, &x, effort);
    let squares = activations.squares(&words);
    let out = order.scaled(&sums, &squares, [shard.rows, shard.columns()]);
    shard.end(call, kind, out)
}

/// What a dispatch of `matmul_coop` writes.
pub(crate) fn coop(call: &mut Call<'_>, effort: Effort) -> Result<Vec<Piece>> {
    let shard = Shard::of(call);
    let kind = Kind::of_variant(&call.variant);
    let columns = shard.groups * GROUP;
    let words = halve::dims(shard.tokens, columns).iter().product();
    let words = call.read_range("x", 0..words)?;
    let (x, factors) = halve::unpack(&words, columns);
    let packed = shard.weights(call)?;
    let sums = shard.sums(&packed, &x, effort);
    let shape = [shard.rows, shard.columns()];
    let out = endings::scaled_coop(&sums, &x, &factors, shape, packed.has_scales());
    shard.end(call, kind, out)
}

/// The rows of a dispatch.
struct Shard {
    p: MatmulParams,
    tokens: usize,
    rows: usize,
    groups: usize,
    first_row: usize,
    /// Results of a token, over all shards.
    out_columns: usize,
}

impl Shard {
    fn of(call: &Call<'_>) -> Shard {
        let p: MatmulParams = call.params();
        Shard {
            p,
            tokens: p.num_tokens as usize,
            rows: p.num_rows as usize,
            groups: p.num_groups as usize,
            first_row: p.first_row as usize,
            out_columns: p.out_columns as usize,
        }
    }

    /// Columns of the weights, without those that pad the last group.
    fn columns(&self) -> usize {
        self.p.norm_columns as usize
    }

    fn weights(&self, call: &mut Call<'_>) -> Result<Packed> {
        let blocks = 0..self.rows.div_ceil(BLOCK_ROWS);
        Packed::read(call, std::slice::from_ref(&blocks), self.groups)
    }

    /// `[token][row]`: sums of products with `x`, `[token][groups * 32]`, and their sums of magnitudes
    /// where bounds are asked for.
    fn sums(&self, packed: &Packed, x: &[f32], effort: Effort) -> Vec<Exact> {
        let columns = self.groups * GROUP;
        let dot = match effort {
            Effort::Values => fast_dot,
            Effort::Bounds => exact_dot,
        };
        let blocks = self.rows.div_ceil(BLOCK_ROWS);
        let turn = |turn: usize| -> Vec<Exact> {
            let mut rows = vec![0.0; BLOCK_ROWS * columns];
            let mut found = Vec::with_capacity(TURN * BLOCK_ROWS * self.tokens);
            for block in turn * TURN..blocks.min((turn + 1) * TURN) {
                packed.unpack(block, &mut rows);
                for x in x.chunks_exact(columns) {
                    found.extend(rows.chunks_exact(columns).map(|row| dot(row, x)));
                }
            }
            found
        };
        let mut sums = vec![(0.0, 0.0); self.tokens * self.rows];
        let turns = parallel::map(blocks.div_ceil(TURN), turn);
        let found = turns.iter().flat_map(|t| t.chunks_exact(BLOCK_ROWS));
        for (i, four) in found.enumerate() {
            let (row, token) = (i / self.tokens * BLOCK_ROWS, i % self.tokens);
            let there = BLOCK_ROWS.min(self.rows - row); // rows may end in the middle of a block
            sums[token * self.rows + row..][..there].copy_from_slice(&four[..there]);
        }
        sums
    }

    fn end(&self, call: &mut Call<'_>, kind: Kind, mut out: Vec<Exact>) -> Result<Vec<Piece>> {
        if kind.bias {
            let rows = self.first_row..self.first_row + self.rows;
            out = endings::biased(out, &floats(&call.read_range("bias", rows)?));
        }
        match kind.ending {
            Ending::Store => Ok(self.rows_of("y", self.first_row, self.rows, out)),
            Ending::Gated(mlp) => {
                let activations = Activations::stored_by(call);
                let (first, out) = (self.first_row / mlp.blocks(), endings::mlp(mlp, &out));
                Ok(self.records(activations, first, out, None))
            }
            Ending::Residual => self.residual(call, &out),
            Ending::Qkv(format) => self.qkv(call, format, &out),
        }
    }

    /// Values `[token][width]` that go to rows of `out_columns` f32, from `first` on.
    fn rows_of(
        &self,
        tensor: &'static str,
        first: usize,
        width: usize,
        values: Vec<Exact>,
    ) -> Vec<Piece> {
        let rows = values.chunks(width).enumerate();
        let rows = rows.map(|(token, row)| (token * self.out_columns + first, row.to_vec()));
        f32_pieces(tensor, rows.collect())
    }

    /// Values that go to records, from column `first` on.
    fn records(
        &self,
        activations: Activations,
        first: usize,
        values: Vec<Exact>,
        squares: Option<Vec<Exact>>,
    ) -> Vec<Piece> {
        let width = values.len() / self.tokens;
        if width == self.out_columns {
            return vec![activations.piece("act_out", 0, width, values, squares)];
        }
        let [_, row_words] = activations.dims(1, self.out_columns);
        let piece = |(token, row): (usize, &[Exact])| {
            let groups = width.div_ceil(GROUP);
            let squares = squares
                .as_ref()
                .map(|s| s[token * groups..][..groups].to_vec());
            let at = token * row_words + first / GROUP * activations.record_words();
            activations.piece("act_out", at, width, row.to_vec(), squares)
        };
        values.chunks(width).enumerate().map(piece).collect()
    }

    fn residual(&self, call: &mut Call<'_>, out: &[Exact]) -> Result<Vec<Piece>> {
        let (first, rows) = (self.first_row, self.rows);
        let row = |token: usize| {
            let at = token * self.out_columns + first;
            at..at + rows
        };
        let ranges: Vec<_> = (0..self.tokens).map(row).collect();
        let before = floats(&call.read_ranges("hidden", &ranges)?);
        let gamma = floats(&call.read_range("gamma", first..first + rows)?);
        let Residual {
            hidden,
            normed,
            squares,
        } = endings::residual(out, self.p.scale, &before, &gamma);
        let mut pieces = self.rows_of("hidden", first, rows, hidden);
        let activations = Activations::stored_by(call);
        pieces.extend(self.records(activations, first, normed, Some(squares)));
        Ok(pieces)
    }

    fn qkv(&self, call: &mut Call<'_>, format: KvFormat, out: &[Exact]) -> Result<Vec<Piece>> {
        let p = &self.p;
        let (slots_at, rope_at) = (p.slots_at as usize, p.rope_at as usize);
        let head_dim = p.head_dim as usize;
        let (num_heads, num_kv_heads) = (p.num_heads as usize, p.num_kv_heads as usize);
        let slots = slots_at..slots_at + self.tokens;
        let slots = call.read_range("step_meta", slots)?;
        let angles = rope_at..rope_at + self.tokens * head_dim;
        let angles = angle_pairs(&call.read_range("step_meta", angles)?);
        let slab = Slab {
            format,
            first_page: 0,
            num_pages: u32::MAX, // all of them
            num_kv_heads,
            head_dim,
        };
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        for (token, row) in out.chunks(self.rows).enumerate() {
            let angles = &angles[token * head_dim / 2..][..head_dim / 2];
            // a shard may begin and end within a head
            let mut done = 0;
            while done < self.rows {
                let (head, dim) = (
                    (self.first_row + done) / head_dim,
                    (self.first_row + done) % head_dim,
                );
                let part = &row[done..self.rows.min(done + head_dim - dim)];
                done += part.len();
                let turned = || endings::turned(part, &angles[dim / 2..][..part.len() / 2]);
                if head < num_heads {
                    q.push(((token * num_heads + head) * head_dim + dim, turned()));
                    continue;
                }
                let kv_head = (head - num_heads) % num_kv_heads;
                let at = slab
                    .place(slots[token], kv_head)
                    .expect("there is one slab")
                    + dim;
                if head < num_heads + num_kv_heads {
                    k.push((at, turned()));
                } else {
                    v.push((at, part.to_vec()));
                }
            }
        }
        let mut pieces = f32_pieces("q", q);
        pieces.extend(slab.pieces("k", k));
        pieces.extend(slab.pieces("v", v));
        Ok(pieces)
    }
}

/// What is written to a tensor of f32.
pub(crate) fn f32_pieces(tensor: &'static str, written: Vec<Run<Exact>>) -> Vec<Piece> {
    let runs = joined(written).into_iter();
    runs.map(|(at, exact)| Piece::f32(tensor, at, exact))
        .collect()
}

/// Words as f32.
pub(crate) fn floats(words: &[u32]) -> Vec<f32> {
    words.iter().map(|&w| f32::from_bits(w)).collect()
}

/// Words of a step as cosines and sines.
pub(crate) fn angle_pairs(words: &[u32]) -> Vec<(f32, f32)> {
    let pair = |w: &[u32]| (f32::from_bits(w[0]), f32::from_bits(w[1]));
    words.chunks_exact(2).map(pair).collect()
}

/// A sum of products and of their magnitudes, in f64.
fn exact_dot(w: &[f32], x: &[f32]) -> Exact {
    let products = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
    products.fold((0.0, 0.0), |(sum, abs), p| (sum + p, abs + p.abs()))
}

/// A sum of products alone: f32 within a group, where eight chains of four are added by a tree, a shorter
/// way than the shader's, and f64 from group to group.
pub(crate) fn fast_dot(w: &[f32], x: &[f32]) -> Exact {
    let groups = w
        .as_chunks::<GROUP>()
        .0
        .iter()
        .zip(x.as_chunks::<GROUP>().0);
    let sum = |(w, x): (&[f32; GROUP], &[f32; GROUP])| {
        let mut chains = [0.0f32; 8];
        for i in 0..GROUP {
            chains[i % 8] += w[i] * x[i];
        }
        let [a, b, c, d, e, f, g, h] = chains;
        f64::from(((a + e) + (c + g)) + ((b + f) + (d + h)))
    };
    (groups.map(sum).sum(), 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::numbers::Data;

    /// What bounds of a device leave open a group for, both ways to add keep to.
    #[test]
    fn both_sums_are_the_same_one() {
        let mut data = Data::new(3);
        let (w, x) = (data.normal(576), data.normal(576));
        let ((exact, abs), (fast, _)) = (exact_dot(&w, &x), fast_dot(&w, &x));
        assert!((exact - fast).abs() <= 8.0 * abs / f64::from(1 << 24));
        assert!(exact != 0.0 && fast != 0.0);
    }
}
