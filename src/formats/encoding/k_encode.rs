//! The way back to blocks of 256 elements: scales for the parts first, then the block's scales for
//! them, then the codes that are nearest with what the scales have become.

use std::ops::RangeInclusive;

use super::k_quants::{Place, SIZE};
use super::{encode_groups, fit, put_half};

pub(super) fn q2(values: &[f32], bytes: &mut [u8]) {
    encode_groups(values, bytes, |values, block: &mut [u8; 84]| {
        let parts = Unsigned::<16>::fit(values, 3, 15);
        let (d, dmin) = (
            put_half(block, 80, parts.d),
            put_half(block, 82, parts.dmin),
        );
        let (scales, codes) = block.split_at_mut(16);
        for (part, byte) in scales.iter_mut().enumerate() {
            *byte = parts.scales[part] | (parts.minimums[part] << 4);
        }
        for (idx, code) in parts.codes(values, d, dmin).into_iter().enumerate() {
            put(codes, Place::of_two_bits(idx / 16), idx % 16, code);
        }
    });
}

pub(super) fn q3(values: &[f32], bytes: &mut [u8]) {
    encode_groups(values, bytes, |values, block: &mut [u8; 110]| {
        let parts = Signed::fit(values, -4..=3, 31);
        let d = put_half(block, 108, parts.d);
        for (part, scale) in parts.scales.into_iter().enumerate() {
            let scale = (scale + 32) as u8;
            block[96 + part % 8] |= (scale & 0xf) << (part / 8 * 4);
            block[104 + part % 4] |= (scale >> 4) << (part / 4 * 2);
        }
        for (idx, code) in parts.codes(values, d).into_iter().enumerate() {
            let part = idx / 16;
            put(
                &mut block[..32],
                Place::of_one_bit(part),
                idx % 16,
                code >> 2,
            );
            put(
                &mut block[32..96],
                Place::of_two_bits(part),
                idx % 16,
                code & 3,
            );
        }
    });
}

pub(super) fn q4(values: &[f32], bytes: &mut [u8]) {
    encode_groups(values, bytes, |values, block: &mut [u8; 144]| {
        let parts = Unsigned::<8>::fit(values, 15, 63);
        let (d, dmin) = (put_half(block, 0, parts.d), put_half(block, 2, parts.dmin));
        put_six_bits(&mut block[4..16], &parts);
        for (idx, code) in parts.codes(values, d, dmin).into_iter().enumerate() {
            put(
                &mut block[16..],
                Place::of_nibbles(idx / 32),
                idx % 32,
                code,
            );
        }
    });
}

pub(super) fn q5(values: &[f32], bytes: &mut [u8]) {
    encode_groups(values, bytes, |values, block: &mut [u8; 176]| {
        let parts = Unsigned::<8>::fit(values, 31, 63);
        let (d, dmin) = (put_half(block, 0, parts.d), put_half(block, 2, parts.dmin));
        put_six_bits(&mut block[4..16], &parts);
        for (idx, code) in parts.codes(values, d, dmin).into_iter().enumerate() {
            let (part, at) = (idx / 32, idx % 32);
            put(
                &mut block[16..48],
                Place::of_one_bit(2 * part),
                at,
                code >> 4,
            );
            put(&mut block[48..], Place::of_nibbles(part), at, code & 0xf);
        }
    });
}

pub(super) fn q6(values: &[f32], bytes: &mut [u8]) {
    encode_groups(values, bytes, |values, block: &mut [u8; 210]| {
        let parts = Signed::fit(values, -32..=31, 127);
        let d = put_half(block, 208, parts.d);
        for (byte, scale) in block[192..208].iter_mut().zip(parts.scales) {
            *byte = scale as i8 as u8;
        }
        for (idx, code) in parts.codes(values, d).into_iter().enumerate() {
            let (part, at) = (idx / 16, idx % 16);
            put(
                &mut block[..128],
                Place::of_wide_nibbles(part),
                at,
                code & 0xf,
            );
            put(
                &mut block[128..192],
                Place::of_two_bits(part),
                at,
                code >> 4,
            );
        }
    });
}

pub(super) fn q8(values: &[f32], bytes: &mut [u8]) {
    encode_groups(
        values,
        bytes,
        |values: &[f32; SIZE], block: &mut [u8; 292]| {
            let codes = -127..=127;
            let d = fit::signed_scale(values, &codes);
            block[..4].copy_from_slice(&d.to_le_bytes());
            for (part, values) in values.chunks_exact(16).enumerate() {
                let mut sum = 0i16;
                for (idx, &value) in values.iter().enumerate() {
                    let code = fit::nearest(value, d, 0.0, &codes);
                    block[4 + 16 * part + idx] = code as i8 as u8;
                    sum += code as i16;
                }
                block[260 + 2 * part..262 + 2 * part].copy_from_slice(&sum.to_le_bytes());
            }
        },
    );
}

/// Parts of `SIZE / N` elements with codes from 0 up: `x = d * scale * code - dmin * minimum`.
struct Unsigned<const N: usize> {
    max_code: i32,
    d: f32,
    dmin: f32,
    scales: [u8; N],
    minimums: [u8; N],
}

impl<const N: usize> Unsigned<N> {
    /// `max_scale` is the largest scale and minimum that a part can have.
    fn fit(values: &[f32; SIZE], max_code: i32, max_scale: u8) -> Unsigned<N> {
        let (mut scales, mut minimums) = ([0.0; N], [0.0; N]);
        for (part, values) in values.chunks_exact(SIZE / N).enumerate() {
            (scales[part], minimums[part]) = fit::scale_and_minimum(values, &(0..=max_code));
        }
        let (d, scales) = share(scales, max_scale);
        let (dmin, minimums) = share(minimums, max_scale);
        Unsigned {
            max_code,
            d,
            dmin,
            scales,
            minimums,
        }
    }

    fn codes(&self, values: &[f32; SIZE], d: f32, dmin: f32) -> [u8; SIZE] {
        let mut codes = [0; SIZE];
        for (idx, code) in codes.iter_mut().enumerate() {
            let part = idx / (SIZE / N);
            let scale = d * f32::from(self.scales[part]);
            let minimum = dmin * f32::from(self.minimums[part]);
            *code = fit::nearest(values[idx], scale, minimum, &(0..=self.max_code)) as u8;
        }
        codes
    }
}

/// A common factor for numbers that are not negative, and each as a multiple of it up to `max`.
fn share<const N: usize>(numbers: [f32; N], max: u8) -> (f32, [u8; N]) {
    let largest = numbers.iter().copied().fold(0.0, f32::max);
    let factor = largest / f32::from(max);
    let multiple = |n| fit::nearest(n, factor, 0.0, &(0..=i32::from(max))) as u8;
    (factor, numbers.map(multiple))
}

/// 16 parts with codes of both signs: `x = d * scale * code`.
struct Signed {
    codes: RangeInclusive<i32>,
    d: f32,
    scales: [i32; 16],
}

impl Signed {
    /// A part's scale is at most `max_scale`, of either sign.
    fn fit(values: &[f32; SIZE], codes: RangeInclusive<i32>, max_scale: i32) -> Signed {
        let mut scales = [0.0; 16];
        for (scale, values) in scales.iter_mut().zip(values.chunks_exact(16)) {
            *scale = fit::signed_scale(values, &codes);
        }
        let largest = scales.iter().fold(0.0f32, |a, b| a.max(b.abs()));
        let d = largest / max_scale as f32;
        let multiple = |scale| fit::nearest(scale, d, 0.0, &(-max_scale..=max_scale));
        Signed {
            codes,
            d,
            scales: scales.map(multiple),
        }
    }

    /// As they are stored, from 0 up.
    fn codes(&self, values: &[f32; SIZE], d: f32) -> [u8; SIZE] {
        let mut codes = [0; SIZE];
        for (idx, code) in codes.iter_mut().enumerate() {
            let scale = d * self.scales[idx / 16] as f32;
            let nearest = fit::nearest(values[idx], scale, 0.0, &self.codes);
            *code = (nearest - self.codes.start()) as u8;
        }
        codes
    }
}

/// Scales and minimums of Q4_K and Q5_K.
fn put_six_bits(bytes: &mut [u8], parts: &Unsigned<8>) {
    for part in 0..4 {
        bytes[part] |= parts.scales[part];
        bytes[part + 4] |= parts.minimums[part];
        let (scale, minimum) = (parts.scales[part + 4], parts.minimums[part + 4]);
        bytes[part + 8] = (scale & 0xf) | ((minimum & 0xf) << 4);
        bytes[part] |= (scale >> 4) << 6;
        bytes[part + 4] |= (minimum >> 4) << 6;
    }
}

fn put(bytes: &mut [u8], place: Place, idx: usize, bits: u8) {
    bytes[place.start + idx] |= bits << place.shift;
}
