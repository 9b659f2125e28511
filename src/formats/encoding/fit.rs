//! Scales for a few values: the simple search that encoders use.

use std::ops::RangeInclusive;

/// Scales tried, as shares of the one that reaches the outermost value: a smaller one cuts that
/// value off and tells the others better apart.
const SHARES: [f32; 8] = [1.0, 0.97, 0.94, 0.9, 0.86, 0.82, 0.78, 0.74];

/// The code whose value `code * scale - minimum` is nearest; 0 for a scale of 0, if there is one.
pub(super) fn nearest(value: f32, scale: f32, minimum: f32, codes: &RangeInclusive<i32>) -> i32 {
    let code = if scale == 0.0 {
        0
    } else {
        ((value + minimum) / scale).round() as i32
    };
    code.clamp(*codes.start(), *codes.end())
}

/// A scale for codes from `-n` to `n - 1`, of either sign: the outermost value takes the end that
/// has one code more.
pub(super) fn signed_scale(values: &[f32], codes: &RangeInclusive<i32>) -> f32 {
    let outermost = values
        .iter()
        .fold(0.0f32, |a, &b| if b.abs() > a.abs() { b } else { a });
    best(values, outermost / *codes.start() as f32, 0.0, codes)
}

/// Scale and minimum for codes from 0 up: `x = code * scale - minimum`, neither of them negative.
pub(super) fn scale_and_minimum(values: &[f32], codes: &RangeInclusive<i32>) -> (f32, f32) {
    let (low, high) = values
        .iter()
        .fold((0.0f32, 0.0f32), |(l, h), &v| (l.min(v), h.max(v)));
    let scale = (high - low) / *codes.end() as f32;
    (best(values, scale, -low, codes), -low)
}

fn best(values: &[f32], widest: f32, minimum: f32, codes: &RangeInclusive<i32>) -> f32 {
    let error = |scale: f32| -> f32 {
        let squares = values.iter().map(|&value| {
            let code = nearest(value, scale, minimum, codes);
            (code as f32 * scale - minimum - value).powi(2)
        });
        squares.sum()
    };
    let candidates = SHARES.map(|share| widest * share);
    candidates
        .into_iter()
        .min_by(|&a, &b| error(a).total_cmp(&error(b)))
        .expect("there are candidates")
}
