//! Blocks of 256 elements, whose parts of 16 or 32 have small scales of their own, which the block's
//! scales multiply.
//!
//! ```text
//! Q2_K  16 bytes: scale, minimum | 64 bytes: codes | d | dmin
//! Q3_K  32 bytes: third bits | 64 bytes: low bits | 12 bytes: scales | d
//! Q4_K  d | dmin | 12 bytes: scales, minimums | 128 bytes: codes
//! Q5_K  d | dmin | 12 bytes: scales, minimums | 32 bytes: fifth bits | 128 bytes: low bits
//! Q6_K  128 bytes: low bits | 64 bytes: high bits | 16 bytes: scales | d
//! Q8_K  d (f32) | 256 bytes: codes | 32 bytes: sums of 16 codes each
//! ```
//!
//! A part's codes lie in consecutive bytes, all at the same bits: [`Place`] says where. The other
//! bits of these bytes belong to other parts.

use super::{Codec, decode_groups, half_at, k_encode};

/// Elements in a block.
pub(super) const SIZE: usize = 256;

pub(super) const Q2_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q2),
    encode: k_encode::q2,
};
pub(super) const Q3_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q3),
    encode: k_encode::q3,
};
pub(super) const Q4_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q4),
    encode: k_encode::q4,
};
pub(super) const Q5_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q5),
    encode: k_encode::q5,
};
pub(super) const Q6_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q6),
    encode: k_encode::q6,
};
pub(super) const Q8_K: Codec = Codec {
    decode: |bytes, out| decode_groups(bytes, out, decode_q8),
    encode: k_encode::q8,
};

/// Where the bits of a part's codes are: in the bytes from `start` on, from bit `shift` up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub start: usize,
    pub shift: usize,
}

impl Place {
    /// Two bits for each element, in 64 bytes. A half of the block, 128 elements, takes 32 of them:
    /// four runs of 32 elements, from the lowest bits to the highest. `part` is one of 16 elements.
    pub fn of_two_bits(part: usize) -> Place {
        Place {
            start: part / 8 * 32 + part % 2 * 16,
            shift: part % 8 / 2 * 2,
        }
    }

    /// One bit for each element, in 32 bytes: eight runs of 32 elements, from the lowest bit to the
    /// highest. `part` is one of 16 elements.
    pub fn of_one_bit(part: usize) -> Place {
        Place {
            start: part % 2 * 16,
            shift: part / 2,
        }
    }

    /// The low four bits in Q6_K, in 128 bytes. A half of the block takes 64 of them: 64 elements
    /// in the low nibbles, 64 in the high ones. `part` is one of 16 elements.
    pub fn of_wide_nibbles(part: usize) -> Place {
        Place {
            start: part / 8 * 64 + part % 4 * 16,
            shift: part % 8 / 4 * 4,
        }
    }

    /// The low four bits in Q4_K and Q5_K, in 128 bytes: 64 elements take 32 of them, half in the
    /// low nibbles and half in the high ones. `part` is one of 32 elements.
    pub fn of_nibbles(part: usize) -> Place {
        Place {
            start: part / 2 * 32,
            shift: part % 2 * 4,
        }
    }

    /// The part's bits, an element a byte.
    fn bits<'a, const MASK: u8>(
        self,
        bytes: &'a [u8],
        len: usize,
    ) -> impl Iterator<Item = u8> + 'a {
        let bytes = &bytes[self.start..self.start + len];
        bytes.iter().map(move |byte| (byte >> self.shift) & MASK)
    }
}

fn decode_q2(block: &[u8; 84], out: &mut [f32; SIZE]) {
    let (scales, codes) = block.split_at(16);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (part, (out, pair)) in out.chunks_exact_mut(16).zip(scales).enumerate() {
        let scale = d * f32::from(pair & 0xf);
        let minimum = dmin * f32::from(pair >> 4);
        let codes = Place::of_two_bits(part).bits::<3>(codes, 16);
        for (x, code) in out.iter_mut().zip(codes) {
            *x = scale * f32::from(code) - minimum;
        }
    }
}

fn decode_q3(block: &[u8; 110], out: &mut [f32; SIZE]) {
    let (thirds, low) = block.split_at(32);
    let scales = block[96..108].try_into().expect("twelve bytes");
    let d = half_at(block, 108);
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(six_bits(scales, part) as i8 - 32);
        let thirds = Place::of_one_bit(part).bits::<1>(thirds, 16);
        let low = Place::of_two_bits(part).bits::<3>(low, 16);
        for ((x, low), third) in out.iter_mut().zip(low).zip(thirds) {
            *x = scale * f32::from((low + 4 * third) as i8 - 4);
        }
    }
}

/// The 16 scales of Q3_K: four low bits in the nibbles of 8 bytes, two high bits in 4 more, parts
/// 0 to 3 in the lowest bits of these.
fn six_bits(scales: &[u8; 12], part: usize) -> u8 {
    let low = (scales[part % 8] >> (part / 8 * 4)) & 0xf;
    let high = (scales[8 + part % 4] >> (part / 4 * 2)) & 3;
    low | (high << 4)
}

fn decode_q4(block: &[u8; 144], out: &mut [f32; SIZE]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let scales = block[4..16].try_into().expect("twelve bytes");
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, part);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let codes = Place::of_nibbles(part).bits::<15>(&block[16..], 32);
        for (x, code) in out.iter_mut().zip(codes) {
            *x = scale * f32::from(code) - minimum;
        }
    }
}

fn decode_q5(block: &[u8; 176], out: &mut [f32; SIZE]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let scales = block[4..16].try_into().expect("twelve bytes");
    let (fifths, low) = block[16..].split_at(32);
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(scales, part);
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        let low = Place::of_nibbles(part).bits::<15>(low, 32);
        let fifth = Place::of_one_bit(2 * part).bits::<1>(fifths, 32);
        for ((x, low), fifth) in out.iter_mut().zip(low).zip(fifth) {
            *x = scale * f32::from(low + 16 * fifth) - minimum;
        }
    }
}

/// The 8 scales and minimums of Q4_K and Q5_K, of six bits each. Parts 0 to 3 have their scales in
/// the low bits of bytes 0 to 3, their minimums in those of bytes 4 to 7. Parts 4 to 7 have four
/// bits of both in bytes 8 to 11, and the upper two in what the first eight bytes have left.
fn scale_and_minimum(scales: &[u8; 12], part: usize) -> (u8, u8) {
    if part < 4 {
        (scales[part] & 63, scales[part + 4] & 63)
    } else {
        let low = scales[part + 4];
        let (scale, minimum) = (scales[part - 4] >> 6, scales[part] >> 6);
        ((low & 0xf) | (scale << 4), (low >> 4) | (minimum << 4))
    }
}

fn decode_q6(block: &[u8; 210], out: &mut [f32; SIZE]) {
    let (low, high) = block.split_at(128);
    let d = half_at(block, 208);
    let parts = out.chunks_exact_mut(16).zip(&block[192..208]);
    for (part, (out, &scale)) in parts.enumerate() {
        let scale = d * f32::from(scale as i8);
        let low = Place::of_wide_nibbles(part).bits::<15>(low, 16);
        let high = Place::of_two_bits(part).bits::<3>(high, 16);
        for ((x, low), high) in out.iter_mut().zip(low).zip(high) {
            *x = scale * f32::from((low + 16 * high) as i8 - 32);
        }
    }
}

fn decode_q8(block: &[u8; 292], out: &mut [f32; SIZE]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (x, &code) in out.iter_mut().zip(&block[4..260]) {
        *x = d * f32::from(code as i8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bit of a block's bytes belongs to one element.
    fn each_bit_once(bytes: usize, width: usize, len: usize, place: fn(usize) -> Place) {
        let mut owners = vec![[0; 8]; bytes];
        for part in 0..SIZE / len {
            let Place { start, shift } = place(part);
            for byte in &mut owners[start..start + len] {
                byte[shift..shift + width].iter_mut().for_each(|n| *n += 1);
            }
        }
        assert!(owners.iter().flatten().all(|&n| n == 1), "{owners:?}");
    }

    #[test]
    fn every_bit_belongs_to_one_element() {
        each_bit_once(64, 2, 16, Place::of_two_bits);
        each_bit_once(32, 1, 16, Place::of_one_bit);
        each_bit_once(128, 4, 16, Place::of_wide_nibbles);
        each_bit_once(128, 4, 32, Place::of_nibbles);
    }

    #[test]
    fn scales_of_six_bits_take_their_bits_from_everywhere() {
        let scales: [u8; 12] = [
            0b01_000001,
            0b10_000010,
            0b11_000011,
            0b00_000100, // scales 0 to 3
            0b11_111111,
            0b10_100000,
            0b01_010000,
            0b00_001000, // minimums 0 to 3
            0b0010_0001,
            0b0011_1111,
            0b1111_0000,
            0b1001_0110, // low bits of 4 to 7
        ];
        let expected = [
            (1, 63),
            (2, 32),
            (3, 16),
            (4, 8),
            (0b01_0001, 0b11_0010),
            (0b10_1111, 0b10_0011),
            (0b11_0000, 0b01_1111),
            (0b00_0110, 0b00_1001),
        ];
        for (part, expected) in expected.into_iter().enumerate() {
            assert_eq!(scale_and_minimum(&scales, part), expected, "part {part}");
        }

        let mut scales = [0; 12];
        scales[..8].copy_from_slice(&[0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe]);
        scales[8..].copy_from_slice(&[0b11_10_01_00, 0, 0xff, 0b00_01_10_11]);
        let expected = [
            0, 2, 0x34, 0x36, 0x18, 0xa, 0x3c, 0x2e, 0x21, 3, 0x35, 0x17, 0x39, 0xb, 0x3d, 0xf,
        ];
        for (part, expected) in expected.into_iter().enumerate() {
            assert_eq!(six_bits(&scales, part), expected, "part {part}");
        }
    }

    #[test]
    fn a_block_by_hand() {
        // Q6_K: d = 0.5, all scales 1 but that of the last part, -2; codes 0 but for the last
        // element's, whose six bits are set.
        let mut block = [0u8; 210];
        block[127] = 0xf0;
        block[191] = 0b1100_0000;
        block[192..207].fill(1);
        block[207] = -2i8 as u8;
        block[209] = 0x38;
        let mut out = [f32::NAN; SIZE];
        decode_q6(&block, &mut out);
        assert!(out[..240].iter().all(|&x| x == -16.0), "{out:?}");
        assert!(out[240..255].iter().all(|&x| x == 32.0), "{out:?}");
        assert_eq!(out[255], 31.0 * -2.0 * 0.5);

        // Q2_K: d = 1, dmin = 2; part 1 has scale 3 and minimum 5, and its last element code 2.
        let mut block = [0u8; 84];
        block[1] = 0x53;
        block[16 + 31] = 2;
        block[81] = 0x3c;
        block[83] = 0x40;
        decode_q2(&block, &mut out);
        assert!(out[..16].iter().chain(&out[32..]).all(|&x| x == 0.0));
        assert!(out[16..31].iter().all(|&x| x == -10.0));
        assert_eq!(out[31], 2.0 * 3.0 - 10.0);
    }
}
