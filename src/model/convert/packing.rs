//! f32 values as the bytes of a file, and what these bytes stand for.

use crate::formats::Encoding;
use crate::quant::GROUP;
use crate::quant::q8::{self, Q8};

/// The largest f16.
const MAX_HALF: f32 = 65504.0;
/// Below this an f16 has fewer digits than 8-bit codes need: groups of smaller scales could get another
/// scale when they are packed again.
const SMALL_SCALE: f32 = 127.0 / (1 << 24) as f32;

/// How a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// As elements of this encoding; in Q8_0 with the scales that weights have in memory.
    As(Encoding),
    /// As codes with a scale for so many columns.
    Codes(usize),
}

/// Appends whole rows to `bytes`, and their scales to `scales`. `values` become what they stand for
/// there.
pub(super) fn pack(stored: Stored, values: &mut [f32], bytes: &mut Vec<u8>, scales: &mut Vec<f32>) {
    match stored {
        Stored::As(Encoding::Q8_0) => values.chunks_exact_mut(GROUP).for_each(|group| {
            let (codes, scale) = group_of_32(group);
            bytes.extend(scale);
            bytes.extend(codes);
            group.copy_from_slice(&(Q8.unpack)(&codes, &scale));
        }),
        Stored::As(encoding) => {
            if encoding == Encoding::F16 {
                // an infinity would make every sum NaN
                let clamp = |value: &mut f32| *value = value.clamp(-MAX_HALF, MAX_HALF);
                values.iter_mut().for_each(clamp);
            }
            let start = bytes.len();
            bytes.extend(encoding.encode(values));
            encoding.decode(&bytes[start..], values);
        }
        Stored::Codes(GROUP) => values.chunks_exact_mut(GROUP).for_each(|group| {
            let (codes, scale) = exact_group(group);
            put_codes(group, &codes, scale, bytes, scales);
        }),
        Stored::Codes(size) => values.chunks_exact_mut(size).for_each(|group| {
            let scale = largest(group) / 127.0;
            let code = |value: &f32| q8::nearest(value / scale) as u8;
            let codes: Vec<u8> = match scale > 0.0 {
                true => group.iter().map(code).collect(),
                false => vec![0; size],
            };
            put_codes(group, &codes, scale, bytes, scales);
        }),
    }
}

/// The group as it lies in memory: codes, and the scale as an f16.
fn group_of_32(group: &[f32]) -> ([u8; GROUP], [u8; 2]) {
    let group: &[f32; GROUP] = group.try_into().expect("a group");
    let (mut codes, mut scale) = ([0; GROUP], [0; 2]);
    (Q8.pack)(group, &mut codes, &mut scale);
    (codes, scale)
}

/// Codes and scale such that what they stand for is packed in memory as the group itself would be.
fn exact_group(group: &[f32]) -> ([u8; GROUP], f32) {
    let packed = group_of_32(group);
    let (codes, bytes) = packed;
    let scale = half::f16::from_le_bytes(bytes).to_f32();
    if scale < SMALL_SCALE && scale > 0.0 {
        let back: Vec<f32> = codes.iter().map(|c| f32::from(*c as i8) * scale).collect();
        let most = codes.iter().map(|c| (*c as i8).unsigned_abs()).max();
        if let (Some(most @ 1..), true) = (most, group_of_32(&back) != packed) {
            return (codes, largest(group) / f32::from(most));
        }
    }
    (codes, scale)
}

/// Codes and scale of a group, which becomes what they stand for. A group of nothing but zeros has the
/// scale 1, since others divide by it.
fn put_codes(
    group: &mut [f32],
    codes: &[u8],
    scale: f32,
    bytes: &mut Vec<u8>,
    scales: &mut Vec<f32>,
) {
    bytes.extend(codes);
    scales.push(if scale > 0.0 { scale } else { 1.0 });
    for (value, code) in group.iter_mut().zip(codes) {
        *value = f32::from(*code as i8) * scale;
    }
}

fn largest(group: &[f32]) -> f32 {
    group.iter().fold(0.0, |most, value| most.max(value.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(stored: Stored, values: &[f32]) -> (Vec<u8>, Vec<f32>, Vec<f32>) {
        let (mut back, mut bytes, mut scales) = (values.to_vec(), Vec::new(), Vec::new());
        pack(stored, &mut back, &mut bytes, &mut scales);
        (bytes, scales, back)
    }

    #[test]
    fn codes_reach_127_and_zeros_have_a_scale() {
        let mut values = vec![0.0; 64];
        (values[0], values[1], values[33]) = (-2.0, 1.0, 0.25);
        for size in [32, 64] {
            let (bytes, scales, back) = packed(Stored::Codes(size), &values);
            assert_eq!(
                (bytes[0] as i8, bytes.len(), scales.len()),
                (-127, 64, 64 / size)
            );
            assert!((back[1] - 1.0).abs() <= 1.0 / 127.0 && back[2] == 0.0);
        }
        let (_, scales, back) = packed(Stored::Codes(32), &[0.0; 32]);
        assert_eq!((scales, back), (vec![1.0], vec![0.0; 32]));
    }

    #[test]
    fn halves_saturate_and_q8_0_is_what_the_encoding_reads() {
        let (_, _, back) = packed(Stored::As(Encoding::F16), &[1e9, -1e9, 1.0]);
        assert_eq!(back, [65504.0, -65504.0, 1.0]);
        let values: Vec<f32> = (0..96).map(|i| (i as f32 * 0.7).sin()).collect();
        let (bytes, _, back) = packed(Stored::As(Encoding::Q8_0), &values);
        let mut read = vec![0.0; 96];
        Encoding::Q8_0.decode(&bytes, &mut read);
        assert_eq!(read, back);
    }

    proptest! {
        /// Within half a step, in every size of group and at every size of values; within a whole one where
        /// the scale of a group of 32 had to be another than its codes were made with.
        #[test]
        fn a_value_moves_by_half_a_step_or_one(
            values in prop::collection::vec(-1.0f32..1.0, 64),
            exponent in -20i32..3,
            size in prop::sample::select(vec![16usize, 32, 64]),
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 10f32.powi(exponent)).collect();
            let (_, scales, back) = packed(Stored::Codes(size), &values);
            for (i, (value, back)) in values.iter().zip(&back).enumerate() {
                let scale = scales[i / size];
                let steps = if size == GROUP && scale < SMALL_SCALE { 1.0 } else { 0.5 };
                let slack = steps * scale + (largest(&values[i / size * size..][..size]) - 127.0 * scale).max(0.0);
                prop_assert!(
                    (value - back).abs() <= slack * 1.0001 || scale == 1.0,
                    "{value} became {back}, scale {scale}"
                );
            }
        }

        /// What groups of 32 stand for is packed in memory as the values themselves are, also where an f16
        /// has few digits.
        #[test]
        fn groups_of_32_are_exact(
            values in prop::collection::vec(-1.0f32..1.0, 32),
            exponent in -9i32..3,
        ) {
            let values: Vec<f32> = values.iter().map(|v| v * 10f32.powi(exponent)).collect();
            let (bytes, scales, _) = packed(Stored::Codes(32), &values);
            let read: Vec<f32> = bytes.iter().map(|c| f32::from(*c as i8) * scales[0]).collect();
            prop_assert_eq!(group_of_32(&read), group_of_32(&values));
        }
    }
}
