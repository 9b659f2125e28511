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
    for (weight, value) in weights.iter_mut().zip(values) {
        let quant = if divisor == 0.0 {
            0.0
        } else {
            (value / divisor).round_ties_even().clamp(-127.0, 127.0)
        };
        *weight = (quant as i8) as u8;
    }
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

    proptest! {
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
