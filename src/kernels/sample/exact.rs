//! The CPU twin of the sampler: exact probabilities, and whether a drawn id is right.

use super::random::{ACCEPTANCE, NOISE, gumbel, stream, unit};
use super::{Drafted, MIN_TEMPERATURE, Row};
use crate::kernels::argmax::{self, order_key};

/// Logits beyond this weigh as this.
const MAX_LOGIT: f64 = 1e30;

/// Masses, the largest being 1, and what q leaves of them, are nothing up to here.
const NOTHING: f64 = 1e-37;

/// The CPU twin, in f64: the probability of each token; all zeros where every logit is NaN. With a list
/// they are the same, where the drafted token was drawn from it.
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
    if let Some(drafted) = &row.drafted {
        let open = Open::new(logits, row, drafted, slack);
        return open.check(drafted, id, greedy);
    }
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
    let mass = allowed(logits, row, 0.0);
    let score = scores(&scaled, row);
    let drawn = match &row.drafted {
        None => best(&mass, score),
        Some(drafted) => accept_or_draw(&mass, row, drafted, score),
    };
    drawn.map_or(greedy, |id| id as u32)
}

/// What becomes of a drafted token, by the formula of `shaders/sample/drafted.wgsl`.
fn accept_or_draw(
    mass: &[f64],
    row: &Row,
    drafted: &Drafted,
    score: impl Fn(usize) -> f64,
) -> Option<usize> {
    let total: f64 = mass.iter().sum();
    let token = drafted.token as usize;
    let own = mass.get(token).copied().unwrap_or(0.0);
    let is_kept = own > NOTHING;
    let share = |id: usize| f64::from(drafted.share(id as u32));
    if is_kept && luck(row) * share(token) * total < own {
        return Some(token);
    }
    let rest = |id: usize| match mass[id] - share(id) * total {
        rest if rest > NOTHING && id != token => rest,
        _ => 0.0,
    };
    let rests: Vec<f64> = (0..mass.len()).map(rest).collect();
    // the score of a token that is not listed, and what less of it does to one that is
    let score = |id: usize| score(id) + (rests[id] / mass[id]).ln();
    best(&rests, score).or(is_kept.then_some(token))
}

/// What decides whether the drafted token of a row is accepted.
fn luck(row: &Row) -> f64 {
    unit(stream(row.seed, row.position, ACCEPTANCE), 0)
}

/// What f32 leaves open of a row with a drafted token.
struct Open {
    luck: f64,
    /// Gumbel noise of each token.
    noise: Vec<f64>,
    /// Mass of each token that may be kept, and of each that has to be: at most, at least.
    mass: Vec<(f64, f64)>,
    /// What q leaves of it.
    rest: Vec<(f64, f64)>,
    /// u q(x), in the same unit.
    asked: (f64, f64),
}

impl Open {
    fn new(logits: &[f32], row: &Row, drafted: &Drafted, slack: f64) -> Open {
        let scaled = scaled(logits, row);
        // ulps of a product and a division in the exponent, and of exp() itself
        let ulp = 2f64.powi(-23);
        let off = |id: usize| (8.0 + 8.0 * scaled[id].abs()) * ulp;
        let (most, least) = (allowed(logits, row, slack), allowed(logits, row, -slack));
        let sure = |mass: f64| if mass > NOTHING { mass } else { 0.0 };
        let mass: Vec<(f64, f64)> = (0..logits.len())
            .map(|id| {
                let (more, less) = (1.0 + off(id), (1.0 - off(id)).max(0.0));
                (sure(most[id] * more), sure(least[id] * less))
            })
            .collect();
        // the unit of the sum, and roundings of what is multiplied
        let unit = logits.len() as f64 * 2f64.powi(-41);
        let most: f64 = mass.iter().map(|m| m.0).sum::<f64>() + unit;
        let least: f64 = mass.iter().map(|m| m.1).sum::<f64>() - unit;
        let most = most * (1.0 + 4.0 * ulp);
        let least = least.max(0.0) * (1.0 - 4.0 * ulp);
        let share = |id: u32| f64::from(drafted.share(id));
        let rest = mass.iter().enumerate().map(|(id, mass)| {
            let share = share(id as u32);
            (mass.0 - share * least, sure(mass.1 - share * most))
        });
        let rest = rest.collect();
        let stream = stream(row.seed, row.position, NOISE);
        let luck = luck(row);
        let asked = luck * share(drafted.token);
        Open {
            luck,
            noise: (0..logits.len())
                .map(|id| gumbel(stream, id as u32))
                .collect(),
            mass,
            rest,
            asked: (asked * most, asked * least),
        }
    }

    fn check(&self, drafted: &Drafted, id: u32, greedy: u32) -> Result<(), String> {
        let own = self.mass.get(drafted.token as usize);
        let (most, least) = own.copied().unwrap_or((0.0, 0.0));
        let may_stay = self.asked.1 < most;
        let has_to_stay = self.asked.0 < least;
        let others = || (0..self.rest.len()).filter(|&other| other as u32 != drafted.token);
        // at least, of what has to be left
        let least_score = |other: usize| self.rest[other].1.ln() + self.noise[other];
        let best = others()
            .filter(|&other| self.rest[other].1 > 0.0)
            .max_by(|&a, &b| least_score(a).total_cmp(&least_score(b)));
        let told = || format!("u {:e}, {drafted:?}", self.luck);
        if id == drafted.token {
            // or where rounding leaves nothing else
            return match may_stay || best.is_none() && most > 0.0 {
                true => Ok(()),
                false => Err(format!(
                    "id {id} was drafted, and is not accepted: {}",
                    told()
                )),
            };
        }
        if has_to_stay {
            let token = drafted.token;
            return Err(format!("id {id}, though {token} is accepted: {}", told()));
        }
        let most = self.rest[id as usize].0;
        let Some(best) = best else {
            return match most > 0.0 || id == greedy {
                true => Ok(()),
                false => Err(format!("id {id} has nothing left: {}", told())),
            };
        };
        if most <= 0.0 {
            return Err(format!("id {id} has nothing left: {}", told()));
        }
        let behind = least_score(best) - most.ln() - self.noise[id as usize];
        match behind <= 5e-5 {
            true => Ok(()),
            false => Err(format!(
                "id {id} scores {behind:e} less than id {best}: {}",
                told()
            )),
        }
    }
}

/// A token's logarithm of mass and its luck together.
fn scores<'a>(scaled: &'a [f64], row: &Row) -> impl Fn(usize) -> f64 + use<'a> {
    let stream = stream(row.seed, row.position, NOISE);
    move |id| scaled[id] + gumbel(stream, id as u32)
}

/// The largest score of the tokens that have mass.
fn best(mass: &[f64], score: impl Fn(usize) -> f64) -> Option<usize> {
    let allowed = (0..mass.len()).filter(|&id| mass[id] > 0.0);
    let scored = allowed.map(|id| (id, score(id)));
    let better = |a: (usize, f64), b: (usize, f64)| if b.1 > a.1 { b } else { a };
    scored.reduce(better).map(|(id, _)| id)
}
