//! What a matmul's endings make of exact sums, with bounds: for its cases, and for its twin.

use crate::kernels::activations::Activations;
use crate::kernels::matmul::Norm;
use crate::kernels::matmul_output::{MlpKind, gelu_exponent};
use crate::kernels::numbers::{U, dot_bound};
use crate::kernels::rope;
use crate::quant::{BLOCK_ROWS, GROUP};

/// A value, and how far a device may be off.
pub(crate) type Exact = (f64, f64);

/// How `matmul` adds up a row, on which its bounds depend.
#[derive(Clone, Copy)]
pub(crate) struct Order {
    pub activations: Activations,
    pub lanes: usize,
    pub norm: Option<Norm>,
}

impl Order {
    /// Joined sums `[token][rows]`, each with its sum of magnitudes, times the factor of the norm, whose
    /// sums of squares are `[token][group]`.
    pub(crate) fn scaled(
        &self,
        sums: &[Exact],
        squares: &[f32],
        [rows, columns]: [usize; 2],
    ) -> Vec<Exact> {
        let (lanes, groups) = (self.lanes, columns.div_ceil(GROUP));
        // of f32 activations a chain of 32 and a fold; of integers a product of scales and a fold
        let inside = match self.activations {
            Activations::F32 => GROUP,
            Activations::Q8 => 2,
        };
        let steps = inside + 3 + groups.div_ceil(lanes) + lanes.ilog2() as usize;
        let (factors, relative) = match self.norm {
            Some(norm) => (norm.factors(squares, columns), norm_error(groups)),
            None => (vec![1.0; squares.len() / groups], 0.0),
        };
        let of = |(i, &(sum, abs)): (usize, &Exact)| {
            let factor = factors[i / rows];
            let value = sum * factor;
            let bound = dot_bound(steps, abs) * factor * (1.0 + relative);
            (value, bound + value.abs() * (relative + U))
        };
        sums.iter().enumerate().map(of).collect()
    }
}

impl Norm {
    /// The factor of each token, of whose records of `columns` columns `squares` are the sums of squares.
    pub(crate) fn factors(&self, squares: &[f32], columns: usize) -> Vec<f64> {
        let of = |squares: &[f32]| {
            let sum: f64 = squares.iter().map(|&s| f64::from(s)).sum();
            let mean = sum / columns as f64 + f64::from(self.eps);
            1.0 / mean.sqrt()
        };
        squares.chunks(columns.div_ceil(GROUP)).map(of).collect()
    }
}

/// How far the factor of a norm may be off, as a share of it: the sum of squares, its mean and eps, and an
/// inverse root good to 2 ulp, at half weight or whole.
pub(crate) fn norm_error(groups: usize) -> f64 {
    (groups.div_ceil(8) + 3 + 8) as f64 * U
}

/// Sums `[token][rows]` of `matmul_coop`, each with its sum of magnitudes, times the token's factor. `x` is
/// `[token][columns]` as it is multiplied; `rounded` tells that weights are rounded with a scale.
pub(crate) fn scaled_coop(
    sums: &[Exact],
    x: &[f32],
    factors: &[f32],
    [rows, columns]: [usize; 2],
    rounded: bool,
) -> Vec<Exact> {
    let all: Vec<f64> = x
        .chunks(x.len() / factors.len())
        .map(|row| row.iter().map(|v| f64::from(v.abs())).sum())
        .collect();
    let of = |(i, &(sum, abs)): (usize, &Exact)| {
        let (token, factor) = (i / rows, f64::from(factors[i / rows]));
        // rounding of weights with their scale: either neighbour in f16, subnormal ones a step apart
        let weights = if rounded {
            abs * 2f64.powi(-10) + all[token] * 2f64.powi(-24)
        } else {
            0.0
        };
        let value = sum * factor;
        let bound = (dot_bound(columns, abs) + weights) * factor.abs();
        (value, bound + value.abs() * 2.0 * U)
    };
    sums.iter().enumerate().map(of).collect()
}

/// `out`, `[token][bias.len()]`, and a bias: one rounding.
pub(crate) fn biased(mut out: Vec<Exact>, bias: &[f32]) -> Vec<Exact> {
    for row in out.chunks_mut(bias.len()) {
        for ((value, bound), &bias) in row.iter_mut().zip(bias) {
            *value += f64::from(bias);
            *bound += value.abs() * U;
        }
    }
    out
}

/// What the MLP makes of `out`; where it has a gate, blocks of four rows are gate and up in turn.
pub(crate) fn mlp(kind: MlpKind, out: &[Exact]) -> Vec<Exact> {
    if !kind.is_gated() {
        return out.iter().map(|x| activated(kind, x)).collect();
    }
    let one = |(gate, &(up, up_bound)): (&Exact, &Exact)| {
        let (act, act_error) = activated(kind, gate);
        let error = act_error * up.abs() + (act.abs() + act_error) * up_bound;
        (act * up, error + (act * up).abs() * 2.0 * U + 1e-30)
    };
    let pair = |pair: &[Exact]| -> Vec<Exact> {
        let (gates, ups) = pair.split_at(BLOCK_ROWS);
        gates.iter().zip(ups).map(one).collect()
    };
    out.chunks_exact(2 * BLOCK_ROWS).flat_map(pair).collect()
}

/// The function of `kind`, of a value that may be off.
fn activated(kind: MlpKind, &(x, bound): &Exact) -> Exact {
    let value = kind.activated(x);
    let error = match kind {
        // |silu'| <= 1.1; exp is good to 3 + 2 |x| ulp, and three more roundings follow
        MlpKind::SwiGlu => 1.1 * bound + value.abs() * (2.0 * (3.0 + 2.0 * x.abs()) + 4.0) * U,
        // |gelu'| <= 1.13. Its exponent z is two products and a fma, with constants that are rounded: 4 U of
        // it, by which exp is off once more than by its own 3 + 2 |z| ulp. The denominator 1 + exp(-z) has
        // exp's share of that, and is rounded; a quotient is good to 2.5 ulp. From -10 down the exponent is
        // that of -10.
        MlpKind::GeGlu | MlpKind::Gelu => {
            let z = gelu_exponent(x.clamp(-10.0, 10.0));
            let share = 1.0 / (1.0 + z.exp());
            let relative = ((6.0 + 8.0 * z.abs()) * share + 6.0) * U;
            1.13 * bound + (value.abs() + 1.13 * bound) * relative + x.abs() * 2f64.powi(-124)
        }
    };
    (value, error + 1e-30)
}

/// The residual stream after a matmul, and what is packed of it.
pub(crate) struct Residual {
    /// The sum.
    pub hidden: Vec<Exact>,
    /// Times the weight of the norm.
    pub normed: Vec<Exact>,
    /// Sums of squares of each record of `hidden`.
    pub squares: Vec<Exact>,
}

/// `out` times `scale` added to what was there `before`, both `[token][gamma.len()]`.
pub(crate) fn residual(out: &[Exact], scale: f32, before: &[f32], gamma: &[f32]) -> Residual {
    let (rows, scale) = (gamma.len(), f64::from(scale));
    let sum = |(&(v, bound), &b): (&Exact, &f32)| {
        let sum = v * scale + f64::from(b);
        (sum, bound * scale.abs() + U * sum.abs())
    };
    let hidden: Vec<Exact> = out.iter().zip(before).map(sum).collect();
    let normed = hidden.iter().enumerate().map(|(i, &(h, bound))| {
        let g = f64::from(gamma[i % rows]);
        (h * g, bound * g.abs() + U * (h * g).abs())
    });
    let square = |group: &[Exact]| {
        let sum: f64 = group.iter().map(|(h, _)| h * h).sum();
        let moved: f64 = group.iter().map(|(h, b)| 2.0 * h.abs() * b + b * b).sum();
        (sum, moved + dot_bound(GROUP, sum))
    };
    let groups = hidden.chunks(rows).flat_map(|row| row.chunks(GROUP));
    Residual {
        normed: normed.collect(),
        squares: groups.map(square).collect(),
        hidden,
    }
}

/// Consecutive values of a head, from an even one on, rotated by the angles of their pairs.
pub(crate) fn turned(x: &[Exact], angles: &[(f32, f32)]) -> Vec<Exact> {
    let rounded: Vec<f32> = x.iter().map(|v| v.0 as f32).collect();
    let (turned, abs) = rope::reference(&rounded, angles);
    let bound = |(i, (value, abs)): (usize, (f64, f64))| {
        let (cos, sin) = angles[i / 2];
        let [cos, sin] = [cos, sin].map(|v| f64::from(v.abs()));
        let own = x[i].1 * cos + x[i ^ 1].1 * sin;
        (value, own + 5.0 * U * abs + 1e-30)
    };
    turned.into_iter().zip(abs).enumerate().map(bound).collect()
}
