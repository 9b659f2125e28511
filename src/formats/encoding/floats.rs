//! Plain numbers: one element is a group.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::Codec;

pub(super) const F32: Codec = Codec {
    decode: |bytes, out| {
        for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *x = f32::from_le_bytes(*bytes);
        }
    },
    encode: |values, bytes| {
        for (x, bytes) in values.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *bytes = x.to_le_bytes();
        }
    },
};

/// Rounded to the nearest `f32`; what is beyond its range becomes infinite.
pub(super) const F64: Codec = Codec {
    decode: |bytes, out| {
        for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *x = f64::from_le_bytes(*bytes) as f32;
        }
    },
    encode: |values, bytes| {
        for (x, bytes) in values.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = f64::from(*x).to_le_bytes();
        }
    },
};

pub(super) const F16: Codec = Codec {
    decode: decode_f16,
    encode: |values, bytes| {
        for (x, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *bytes = f16::from_f32(*x).to_le_bytes();
        }
    },
};

pub(super) const BF16: Codec = Codec {
    decode: |bytes, out| {
        for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *x = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    },
    encode: |values, bytes| {
        for (x, bytes) in values.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *bytes = half::bf16::from_f32(*x).to_le_bytes();
        }
    },
};

/// What is beyond the range becomes its end.
pub(super) const I8: Codec = Codec {
    decode: |bytes, out| {
        for (x, byte) in out.iter_mut().zip(bytes) {
            *x = f32::from(*byte as i8);
        }
    },
    encode: |values, bytes| {
        for (x, byte) in values.iter().zip(bytes) {
            *byte = x.round_ties_even() as i8 as u8;
        }
    },
};

fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    // In pieces through a small aligned buffer: whole slices let `half` use the CPU's own
    // conversion, and the file's bytes may be unaligned.
    const PIECE: usize = 256;
    let mut halves = [f16::ZERO; PIECE];
    for (out, bytes) in out.chunks_mut(PIECE).zip(bytes.chunks(2 * PIECE)) {
        let halves = &mut halves[..out.len()];
        for (half, bytes) in halves.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *half = f16::from_le_bytes(*bytes);
        }
        halves.convert_to_f32_slice(out);
    }
}
