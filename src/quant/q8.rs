//! INT8: symmetric, one f16 scale per 32 weights. 1.0625 bytes a weight.
//!
//! `scale = amax / 127`, rounded to f16 *before* the weights are divided by it; weights rounded to
//! nearest, ties to even, clamped to -127..127. A group of zeros has scale 0.

use super::{Format, GROUP};
use crate::wgsl;
use half::f16;

/// `--weights q8`.
pub static Q8: Format = Format {
    name: "q8",
    parts: &[wgsl!("quant/q8.wgsl"), wgsl!("quant/q8_values.wgsl")],
    wide_parts: &[
        wgsl!("quant/q8_wide.wgsl", int64: true),
        wgsl!("quant/q8_values.wgsl"),
    ],
    half_part: &wgsl!("quant/q8_half.wgsl"),
    group_bytes: GROUP,
    scale_bytes: 2,
    pack,
    unpack,
};

fn pack(values: &[f32; GROUP], weights: &mut [u8], scale: &mut [u8]) {
    let amax = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    // A scale beyond f16 would become infinite and the group NaN: saturate instead.
    let rounded = f16::from_f32((amax / 127.0).min(65504.0));
    scale.copy_from_slice(&rounded.to_le_bytes());
    let divisor = rounded.to_f32();
    if divisor == 0.0 {
        weights.fill(0);
        return;
    }
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight = nearest(value / divisor) as u8;
    }
}

/// `value.round_ties_even()` between -127 and 127, 0 for NaN, without a call for each weight: at
/// 1.5 * 2^23 an f32 has no fraction bits, so that the addition rounds, and the integer is in the
/// low bits of the sum.
pub(crate) fn nearest(value: f32) -> i8 {
    const MAGIC: f32 = 12_582_912.0;
    let value = if value.is_nan() { 0.0 } else { value };
    (value.clamp(-127.0, 127.0) + MAGIC).to_bits() as i8
}

fn unpack(weights: &[u8], scale: &[u8]) -> [f32; GROUP] {
    let scale = f16::from_le_bytes([scale[0], scale[1]]).to_f32();
    std::array::from_fn(|i| f32::from(weights[i] as i8) * scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(values: &[f32; GROUP]) -> ([u8; GROUP], [u8; 2]) {
        let (mut weights, mut scale) = ([0; GROUP], [0; 2]);
        pack(values, &mut weights, &mut scale);
        (weights, scale)
    }

    #[test]
    fn edges() {
        assert_eq!(packed(&[0.0; GROUP]), ([0; GROUP], [0, 0]));
        let mut values = [0.0; GROUP];
        (values[0], values[1], values[2]) = (127.0, -127.0, 0.5);
        let (weights, scale) = packed(&values);
        assert_eq!(f16::from_le_bytes(scale).to_f32(), 1.0);
        assert_eq!(
            (weights[0] as i8, weights[1] as i8, weights[2]),
            (127, -127, 0)
        ); // 0.5 ties to even
        // a scale that rounds down in f16 would push the largest weight to 128: it is clamped
        let (weights, _) = packed(&[1000.3; GROUP]);
        assert_eq!(weights[5] as i8, 127);
        let (weights, scale) = packed(&[f32::MAX; GROUP]);
        assert!(unpack(&weights, &scale).iter().all(|v| v.is_finite()));
    }

    #[test]
    fn nearest_is_the_rounding_that_the_language_has() {
        let written = |value: f32| value.round_ties_even().clamp(-127.0, 127.0) as i8;
        let halves = (-300..=300).map(|i| i as f32 / 2.0);
        let near = halves.flat_map(|half| [half.next_down(), half, half.next_up()]);
        let odd = [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        let nans = [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)];
        for value in near.chain(odd).chain(nans) {
            assert_eq!(nearest(value), written(value), "{value}");
        }
    }

    proptest! {
        #[test]
        fn nearest_agrees_everywhere(value in prop::num::f32::ANY, small in -128.0f32..128.0) {
            for value in [value, small] {
                let written = value.round_ties_even().clamp(-127.0, 127.0) as i8;
                prop_assert_eq!(nearest(value), written, "{}", value);
            }
        }

        #[test]
        fn a_weight_moves_by_at_most_half_a_step(values in prop::array::uniform32(-8.0f32..8.0)) {
            let (weights, scale) = packed(&values);
            let step = f16::from_le_bytes(scale).to_f32();
            let amax = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            for (back, value) in unpack(&weights, &scale).iter().zip(&values) {
                // half a step, and what clamping costs when the scale was rounded down
                let slack = 0.5 * step + (amax - 127.0 * step).max(0.0);
                prop_assert!((back - value).abs() <= slack * 1.0001 + 1e-7, "{value} became {back}, step {step}");
            }
        }
    }
}
