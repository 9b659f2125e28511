//! Blocks of 32 elements: one scale, maybe one offset, and a code for each element.
//!
//! ```text
//! Q4_0  d               16 bytes of nibbles
//! Q4_1  d  m            16 bytes of nibbles
//! Q5_0  d     4 bytes   16 bytes of nibbles       the 4 bytes: a fifth bit for each element
//! Q5_1  d  m  4 bytes   16 bytes of nibbles
//! Q8_0  d               32 bytes
//! ```

use super::{Codec, decode_groups, encode_groups, fit, half_at, put_half};

pub(super) const Q4_0: Codec = Codec {
    decode: |bytes, out| {
        decode_groups(bytes, out, |block: &[u8; 18], out| {
            let scale = half_at(block, 0);
            decode_nibbles(&block[2..], out, |code| f32::from(code as i8 - 8) * scale);
        });
    },
    encode: |values, bytes| {
        encode_groups(values, bytes, |values, block: &mut [u8; 18]| {
            let codes = -8..=7;
            let scale = put_half(block, 0, fit::signed_scale(values, &codes));
            let code = |value| (fit::nearest(value, scale, 0.0, &codes) + 8) as u8;
            put_nibbles(&values.map(code), &mut block[2..]);
        });
    },
};

pub(super) const Q4_1: Codec = Codec {
    decode: |bytes, out| {
        decode_groups(bytes, out, |block: &[u8; 20], out| {
            let (scale, offset) = (half_at(block, 0), half_at(block, 2));
            decode_nibbles(&block[4..], out, |code| f32::from(code) * scale + offset);
        });
    },
    encode: |values, bytes| {
        encode_groups(values, bytes, |values, block: &mut [u8; 20]| {
            let codes = put_scale_and_offset(values, block, 15);
            put_nibbles(&codes, &mut block[4..]);
        });
    },
};

pub(super) const Q5_0: Codec = Codec {
    decode: |bytes, out| {
        decode_groups(bytes, out, |block: &[u8; 22], out| {
            let scale = half_at(block, 0);
            decode_fives(&block[2..], out, |code| f32::from(code as i8 - 16) * scale);
        });
    },
    encode: |values, bytes| {
        encode_groups(values, bytes, |values, block: &mut [u8; 22]| {
            let codes = -16..=15;
            let scale = put_half(block, 0, fit::signed_scale(values, &codes));
            let code = |value| (fit::nearest(value, scale, 0.0, &codes) + 16) as u8;
            put_fives(&values.map(code), &mut block[2..]);
        });
    },
};

pub(super) const Q5_1: Codec = Codec {
    decode: |bytes, out| {
        decode_groups(bytes, out, |block: &[u8; 24], out| {
            let (scale, offset) = (half_at(block, 0), half_at(block, 2));
            decode_fives(&block[4..], out, |code| f32::from(code) * scale + offset);
        });
    },
    encode: |values, bytes| {
        encode_groups(values, bytes, |values, block: &mut [u8; 24]| {
            let codes = put_scale_and_offset(values, block, 31);
            put_fives(&codes, &mut block[4..]);
        });
    },
};

pub(super) const Q8_0: Codec = Codec {
    decode: |bytes, out| {
        decode_groups(bytes, out, |block: &[u8; 34], out: &mut [f32; 32]| {
            let scale = half_at(block, 0);
            for (x, &code) in out.iter_mut().zip(&block[2..]) {
                *x = f32::from(code as i8) * scale;
            }
        });
    },
    encode: |values, bytes| {
        encode_groups(values, bytes, |values: &[f32; 32], block: &mut [u8; 34]| {
            let codes = -127..=127;
            let scale = put_half(block, 0, fit::signed_scale(values, &codes));
            for (byte, &value) in block[2..].iter_mut().zip(values) {
                *byte = fit::nearest(value, scale, 0.0, &codes) as i8 as u8;
            }
        });
    },
};

/// The low nibbles of 16 bytes are elements 0 to 15 of a block, the high ones 16 to 31.
fn decode_nibbles(codes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(codes) {
        *low = value(pair & 0xf);
        *high = value(pair >> 4);
    }
}

/// Four bytes with bit `i` for element `i`, which is the fifth of its code; then nibbles.
fn decode_fives(bytes: &[u8], out: &mut [f32; 32], value: impl Fn(u8) -> f32) {
    let fifths = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let fifth = |idx: usize| ((fifths >> idx) & 1) as u8 * 16;
    let (low, high) = out.split_at_mut(16);
    for (idx, ((low, high), &pair)) in low.iter_mut().zip(high).zip(&bytes[4..]).enumerate() {
        *low = value((pair & 0xf) + fifth(idx));
        *high = value((pair >> 4) + fifth(16 + idx));
    }
}

fn put_nibbles(codes: &[u8; 32], bytes: &mut [u8]) {
    for (idx, byte) in bytes.iter_mut().enumerate() {
        *byte = (codes[idx] & 0xf) | (codes[16 + idx] << 4);
    }
}

fn put_fives(codes: &[u8; 32], bytes: &mut [u8]) {
    for (idx, code) in codes.iter().enumerate() {
        bytes[idx / 8] |= (code >> 4) << (idx % 8);
    }
    put_nibbles(codes, &mut bytes[4..]);
}

/// Writes `d` and `m` for codes up to `max_code`, and tells the codes.
fn put_scale_and_offset(values: &[f32; 32], block: &mut [u8], max_code: i32) -> [u8; 32] {
    let codes = 0..=max_code;
    // the offset may be positive here: what lies above it is what the scale has to reach
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let offset = put_half(block, 2, low);
    let (scale, _) = fit::scale_and_minimum(&values.map(|v| (v - offset).max(0.0)), &codes);
    let scale = put_half(block, 0, scale);
    values.map(|value| fit::nearest(value, scale, -offset, &codes) as u8)
}

#[cfg(test)]
mod tests {
    use crate::formats::Encoding;

    fn decoded(encoding: Encoding, bytes: &[u8], elements: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; elements];
        encoding.decode(bytes, &mut out);
        out
    }

    /// Every byte holds code `i` below and `15 - i` above.
    fn nibbles() -> impl Iterator<Item = u8> {
        (0..16u8).map(|i| i | ((15 - i) << 4))
    }

    #[test]
    fn q4_0_is_centred_on_eight_and_splits_low_and_high() {
        let mut bytes = vec![0x00, 0x38]; // d = 0.5
        bytes.extend(nibbles());
        let out = decoded(Encoding::Q4_0, &bytes, 32);
        for i in 0..16 {
            assert_eq!(out[i], (i as f32 - 8.0) * 0.5, "low nibble {i}");
            assert_eq!(out[16 + i], (7.0 - i as f32) * 0.5, "high nibble {i}");
        }
    }

    #[test]
    fn q4_1_adds_the_offset() {
        let mut bytes = vec![0x00, 0x38, 0x00, 0xc0]; // d = 0.5, m = -2
        bytes.extend(nibbles());
        let out = decoded(Encoding::Q4_1, &bytes, 32);
        for i in 0..16 {
            assert_eq!(out[i], i as f32 * 0.5 - 2.0, "low nibble {i}");
            assert_eq!(out[16 + i], (15.0 - i as f32) * 0.5 - 2.0, "high {i}");
        }
    }

    #[test]
    fn a_fifth_bit_is_worth_sixteen() {
        // Elements 1, 10, 16 and 31 have theirs set.
        let fifths = (1u32 << 1 | 1 << 10 | 1 << 16 | 1 << 31).to_le_bytes();
        let expected = |i: usize| {
            let nibble = if i < 16 { i } else { 31 - i };
            (nibble + if [1, 10, 16, 31].contains(&i) { 16 } else { 0 }) as f32
        };
        let mut bytes = vec![0x00, 0x38]; // d = 0.5
        bytes.extend(fifths);
        bytes.extend(nibbles());
        for (i, x) in decoded(Encoding::Q5_0, &bytes, 32).iter().enumerate() {
            assert_eq!(*x, (expected(i) - 16.0) * 0.5, "Q5_0, element {i}");
        }
        let mut bytes = vec![0x00, 0xb8, 0x00, 0x40]; // d = -0.5, m = 2
        bytes.extend(fifths);
        bytes.extend(nibbles());
        for (i, x) in decoded(Encoding::Q5_1, &bytes, 32).iter().enumerate() {
            assert_eq!(*x, 2.0 - expected(i) * 0.5, "Q5_1, element {i}");
        }
    }

    #[test]
    fn q8_0_codes_are_signed() {
        let mut bytes = vec![0x00, 0x34]; // d = 0.25
        bytes.extend((0..32u8).map(|i| i.wrapping_mul(8).wrapping_sub(128)));
        let out = decoded(Encoding::Q8_0, &bytes, 32);
        for (i, x) in out.iter().enumerate() {
            assert_eq!(*x, (i as f32 * 8.0 - 128.0) * 0.25, "element {i}");
        }
    }

    #[test]
    fn later_blocks_use_their_own_scale() {
        for encoding in [
            Encoding::Q4_0,
            Encoding::Q4_1,
            Encoding::Q5_0,
            Encoding::Q5_1,
            Encoding::Q8_0,
        ] {
            let mut bytes = vec![0u8; 2 * encoding.group_bytes()];
            bytes[1] = 0x3c; // d = 1 in the first block
            bytes[encoding.group_bytes() + 1] = 0x40; // d = 2 in the second
            bytes[encoding.group_bytes() - 1] = 0x11;
            bytes[2 * encoding.group_bytes() - 1] = 0x11;
            let out = decoded(encoding, &bytes, 64);
            assert_eq!(out[63], 2.0 * out[31], "{}", encoding.name());
            assert_ne!(out[31], 0.0);
        }
    }
}
