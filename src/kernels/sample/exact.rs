//! The CPU twin of the sampler: exact probabilities, and whether a drawn id is right.

use super::{MIN_TEMPERATURE, Row};
use crate::kernels::argmax::{self, order_key};

/// Logits beyond this weigh as this.
const MAX_LOGIT: f64 = 1e30;

/// The CPU twin, in f64: the probability of each token; all zeros where every logit is NaN.
pub fn reference(logits: &[f32], row: &Row) -> Vec<f64> {
    let mut mass = allowed(logits, row, 0.0);
    let total: f64 = mass.iter().sum();
    mass.iter_mut()
        .for_each(|m| *m /= total.max(f64::MIN_POSITIVE));
    mass
}

/// Tokens that may be drawn, by their mass relative to the largest; 0 for the others. `slack` moves
/// `top_p` and `min_p` so that more tokens are allowed, or fewer where it is negative.
fn allowed(logits: &[f32], row: &Row, slack: f64) -> Vec<f64> {
    let scaled = scaled(logits, row);
    let mut mass: Vec<f64> = scaled.iter().map(|s| s.exp()).collect();
    if row.temperature <= 0.0 {
        mass.fill(0.0);
        let best = argmax::reference(logits) as usize;
        mass[best] = f64::from(u8::from(!logits[best].is_nan()));
        return mass;
    }
    let mut by_size: Vec<usize> = (0..logits.len()).filter(|&i| !logits[i].is_nan()).collect();
    by_size.sort_by_key(|&i| std::cmp::Reverse(order_key(logits[i])));
    let mut lowest = 1;
    if row.top_k > 0
        && let Some(&last) = by_size.get(row.top_k as usize - 1)
    {
        lowest = order_key(logits[last]);
    }
    let kept = |lowest: u32| {
        let key = move |&&i: &&usize| order_key(logits[i]) >= lowest;
        by_size.iter().take_while(key)
    };
    if row.top_p < 1.0 {
        let total: f64 = kept(lowest).map(|&i| mass[i]).sum();
        let wanted = (f64::from(row.top_p) + slack) * total;
        let mut reached = 0.0;
        let last = kept(lowest).find(|&&i| {
            reached += mass[i];
            reached >= wanted
        });
        if let Some(&last) = last {
            lowest = order_key(logits[last]);
        }
    }
    let least = f64::from(row.min_p) * (1.0 - slack);
    for (i, mass) in mass.iter_mut().enumerate() {
        let key = order_key(logits[i]);
        if key < lowest || (scaled[i] < 0.0 && *mass < least) {
            *mass = 0.0;
        }
    }
    mass
}

/// `(logit - largest) / temperature`; NaN stays NaN.
fn scaled(logits: &[f32], row: &Row) -> Vec<f64> {
    let finite = |&l: &f32| f64::from(l).clamp(-MAX_LOGIT, MAX_LOGIT);
    let largest = logits.iter().map(finite).fold(f64::MIN, f64::max);
    let temperature = f64::from(row.temperature.max(MIN_TEMPERATURE));
    logits
        .iter()
        .map(|l| (finite(l) - largest) / temperature)
        .collect()
}

/// What is wrong with drawing `id` from `logits` as `row` says, if anything. Two tokens are taken for
/// equal where f32 cannot tell their scores or their place at a limit apart.
///
/// # Errors
/// What is wrong, in words.
pub fn check(logits: &[f32], row: &Row, id: u32) -> Result<(), String> {
    let Some(&logit) = logits.get(id as usize) else {
        return Err(format!("id {id} of {}", logits.len()));
    };
    let greedy = argmax::reference(logits);
    if row.temperature <= 0.0 || logits.iter().all(|l| l.is_nan()) {
        return match id == greedy {
            true => Ok(()),
            false => Err(format!("id {id}, the largest logit is {greedy}")),
        };
    }
    let slack = 4e-6 + logits.len() as f64 / f64::from(1 << 30);
    if allowed(logits, row, slack)[id as usize] == 0.0 && scaled(logits, row)[id as usize] > -700.0
    {
        return Err(format!(
            "id {id} with logit {logit} is not allowed by {row:?}"
        ));
    }
    let scaled = scaled(logits, row);
    let score = scores(&scaled, row);
    let best = best(&allowed(logits, row, -slack), &score).unwrap_or(greedy as usize);
    let behind = score(best) - score(id as usize);
    let open = 5e-5 + 1e-6 * scaled[id as usize].abs();
    if behind > open {
        return Err(format!(
            "id {id} scores {behind:e} less than id {best}, at most {open:e} is open: {row:?}"
        ));
    }
    Ok(())
}

/// The id that is drawn from `logits` as `row` says, by the formula: of equals the lowest.
pub fn draw(logits: &[f32], row: &Row) -> u32 {
    let greedy = argmax::reference(logits);
    if row.temperature <= 0.0 || logits[greedy as usize].is_nan() {
        return greedy;
    }
    let scaled = scaled(logits, row);
    let drawn = best(&allowed(logits, row, 0.0), scores(&scaled, row));
    drawn.map_or(greedy, |id| id as u32)
}

/// A token's logarithm of mass and its luck together.
fn scores<'a>(scaled: &'a [f64], row: &Row) -> impl Fn(usize) -> f64 + use<'a> {
    let stream = stream(row.seed, row.position);
    move |id| scaled[id] + gumbel(stream, id as u32)
}

/// The largest score of the tokens that have mass.
fn best(mass: &[f64], score: impl Fn(usize) -> f64) -> Option<usize> {
    let allowed = (0..mass.len()).filter(|&id| mass[id] > 0.0);
    let scored = allowed.map(|id| (id, score(id)));
    let better = |a: (usize, f64), b: (usize, f64)| if b.1 > a.1 { b } else { a };
    scored.reduce(better).map(|(id, _)| id)
}

/// The twin of `rng_pcg4d`.
fn pcg4d(value: [u32; 4]) -> [u32; 4] {
    let [mut x, mut y, mut z, mut w] =
        value.map(|v| v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let mix = |x: &mut u32, y: &mut u32, z: &mut u32, w: &mut u32| {
        *x = x.wrapping_add(y.wrapping_mul(*w));
        *y = y.wrapping_add(z.wrapping_mul(*x));
        *z = z.wrapping_add(x.wrapping_mul(*y));
        *w = w.wrapping_add(y.wrapping_mul(*z));
    };
    mix(&mut x, &mut y, &mut z, &mut w);
    [x, y, z, w] = [x, y, z, w].map(|v| v ^ (v >> 16));
    mix(&mut x, &mut y, &mut z, &mut w);
    [x, y, z, w]
}

fn stream(seed: u64, position: u32) -> [u32; 4] {
    pcg4d([seed as u32, (seed >> 32) as u32, position, 0x6E65_6C75])
}

fn gumbel([x, y, z, w]: [u32; 4], id: u32) -> f64 {
    let bits = pcg4d([x, y, z, w ^ id])[0];
    let rest = (f64::from(bits) + 0.5) / 2f64.powi(32);
    -(-(-rest).ln_1p()).ln()
}
