//! How a tensor's numbers are stored in a file, and how they become `f32`.
//!
//! [`TABLE`] is the only list of encodings: a new one is an enum variant, a row and a decode
//! function. The layouts are those of the GGUF specification and of ggml's type table; all of
//! them are little-endian. Quantised elements are stored in groups along a row, and a group
//! never crosses the end of a row.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The storage format of one tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of an IEEE single.
    Bf16,
    /// 32 elements in 18 bytes: an f16 scale `d` and 4-bit codes; `x = (code - 8) * d`.
    Q4_0,
    /// 32 elements in 20 bytes: f16 `d`, f16 `m` and 4-bit codes; `x = code * d + m`.
    Q4_1,
    /// 32 elements in 34 bytes: an f16 scale `d` and signed 8-bit codes; `x = code * d`.
    Q8_0,
}

struct Row {
    encoding: Encoding,
    name: &'static str,
    gguf_type: u32,
    safetensors_dtype: Option<&'static str>,
    group_size: usize,
    group_bytes: usize,
    /// Whole groups in, as many elements out; [`Encoding::decode`] has checked the lengths.
    decode: fn(&[u8], &mut [f32]),
}

#[rustfmt::skip]
const TABLE: [Row; 6] = [
    row(Encoding::F32,  "F32",  0,  Some("F32"),  1,  4,  decode_f32),
    row(Encoding::F16,  "F16",  1,  Some("F16"),  1,  2,  decode_f16),
    row(Encoding::Q4_0, "Q4_0", 2,  None,         32, 18, decode_q4_0),
    row(Encoding::Q4_1, "Q4_1", 3,  None,         32, 20, decode_q4_1),
    row(Encoding::Q8_0, "Q8_0", 8,  None,         32, 34, decode_q8_0),
    row(Encoding::Bf16, "BF16", 30, Some("BF16"), 1,  2,  decode_bf16),
];

/// Type ids a GGUF file may carry that have no row above; named so that a refusal can say what it saw.
const OTHER_GGUF_TYPES: [(u32, &str); 33] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

const fn row(
    encoding: Encoding,
    name: &'static str,
    gguf_type: u32,
    safetensors_dtype: Option<&'static str>,
    group_size: usize,
    group_bytes: usize,
    decode: fn(&[u8], &mut [f32]),
) -> Row {
    Row {
        encoding,
        name,
        gguf_type,
        safetensors_dtype,
        group_size,
        group_bytes,
        decode,
    }
}

impl Encoding {
    /// The encoding of a GGUF tensor type id, if this build can decode it.
    pub fn from_gguf(type_id: u32) -> Option<Encoding> {
        TABLE
            .iter()
            .find(|row| row.gguf_type == type_id)
            .map(|row| row.encoding)
    }

    /// The encoding of a safetensors dtype such as `BF16`, if this build can decode it.
    pub fn from_safetensors(dtype: &str) -> Option<Encoding> {
        TABLE
            .iter()
            .find(|row| row.safetensors_dtype == Some(dtype))
            .map(|row| row.encoding)
    }

    /// The name a GGUF type id goes by, also for types that cannot be decoded.
    pub fn gguf_type_name(type_id: u32) -> String {
        let known = TABLE.iter().map(|row| (row.gguf_type, row.name));
        known
            .chain(OTHER_GGUF_TYPES)
            .find(|&(id, _)| id == type_id)
            .map_or_else(
                || format!("unknown type {type_id}"),
                |(_, name)| name.into(),
            )
    }

    /// Comma separated names of what a GGUF tensor may be stored as.
    pub fn supported_in_gguf() -> String {
        TABLE.map(|row| row.name).join(", ")
    }

    /// Comma separated names of what a safetensors tensor may be stored as.
    pub fn supported_in_safetensors() -> String {
        let names: Vec<_> = TABLE
            .iter()
            .filter_map(|row| row.safetensors_dtype)
            .collect();
        names.join(", ")
    }

    /// The name used in files and messages: `Q4_1`.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The type id in a GGUF file.
    pub fn gguf_type(self) -> u32 {
        self.row().gguf_type
    }

    /// The dtype in a safetensors header; `None` for the grouped encodings, which it cannot hold.
    pub fn safetensors_dtype(self) -> Option<&'static str> {
        self.row().safetensors_dtype
    }

    /// Elements that are stored together; 1 for the plain float types.
    pub fn group_size(self) -> usize {
        self.row().group_size
    }

    /// Bytes that one group takes.
    pub fn group_bytes(self) -> usize {
        self.row().group_bytes
    }

    /// Bytes for `elements` of this encoding; `None` if they are no whole number of groups or if
    /// the size does not fit into a `usize`.
    pub fn bytes_for(self, elements: usize) -> Option<usize> {
        let groups = elements / self.group_size();
        elements
            .is_multiple_of(self.group_size())
            .then(|| groups.checked_mul(self.group_bytes()))
            .flatten()
    }

    /// Decodes whole groups into `out`. Non-finite values pass through as they are stored.
    ///
    /// # Panics
    /// If `bytes` is not exactly what `out.len()` elements take.
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        assert_eq!(
            self.bytes_for(out.len()),
            Some(bytes.len()),
            "{}: {} bytes cannot hold exactly {} elements",
            self.name(),
            bytes.len(),
            out.len()
        );
        (self.row().decode)(bytes, out);
    }

    fn row(self) -> &'static Row {
        static ROWS: [Row; 6] = TABLE;
        ROWS.iter()
            .find(|row| row.encoding == self)
            .expect("every encoding has a row in TABLE")
    }
}

/// How many values are NaN or infinite, told by the exponent's bits: comparisons may be optimised
/// under the assumption that no such value exists.
pub fn count_non_finite(values: &[f32]) -> usize {
    const EXPONENT: u32 = 0x7f80_0000;
    values
        .iter()
        .filter(|value| value.to_bits() & EXPONENT == EXPONENT)
        .count()
}

fn decode_f32(bytes: &[u8], out: &mut [f32]) {
    for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *x = f32::from_le_bytes(*bytes);
    }
}

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

fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (x, bytes) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
        *x = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

fn decode_q4_0(bytes: &[u8], out: &mut [f32]) {
    for (out, group) in out.chunks_exact_mut(32).zip(bytes.as_chunks::<18>().0) {
        let scale = f16::from_le_bytes([group[0], group[1]]).to_f32();
        decode_nibbles(&group[2..], out, |code| f32::from(code as i8 - 8) * scale);
    }
}

fn decode_q4_1(bytes: &[u8], out: &mut [f32]) {
    for (out, group) in out.chunks_exact_mut(32).zip(bytes.as_chunks::<20>().0) {
        let scale = f16::from_le_bytes([group[0], group[1]]).to_f32();
        let minimum = f16::from_le_bytes([group[2], group[3]]).to_f32();
        decode_nibbles(&group[4..], out, |code| f32::from(code) * scale + minimum);
    }
}

fn decode_q8_0(bytes: &[u8], out: &mut [f32]) {
    for (out, group) in out.chunks_exact_mut(32).zip(bytes.as_chunks::<34>().0) {
        let scale = f16::from_le_bytes([group[0], group[1]]).to_f32();
        for (x, &code) in out.iter_mut().zip(&group[2..]) {
            *x = f32::from(code as i8) * scale;
        }
    }
}

/// The low nibbles of 16 bytes are elements 0 to 15 of a group, the high ones 16 to 31.
fn decode_nibbles(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(codes) {
        *low = value(pair & 0xf);
        *high = value(pair >> 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn floats_decode_to_hand_computed_values() {
        let f32s = [1.5f32, -0.0, 1e-40, f32::MAX];
        let bytes: Vec<u8> = f32s.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(decoded(Encoding::F32, &bytes, 4), f32s);

        // 1, -2, largest half, smallest half (2^-24), a third rounded to half.
        let bytes = [0x00, 0x3c, 0x00, 0xc0, 0xff, 0x7b, 0x01, 0x00, 0x55, 0x35];
        let expected = [1.0, -2.0, 65504.0, 5.960_464_5e-8, 0.333_251_95];
        assert_eq!(decoded(Encoding::F16, &bytes, 5), expected);

        // 1, -2, 2^-126 and pi cut to 8 bits of mantissa.
        let bytes = [0x80, 0x3f, 0x00, 0xc0, 0x80, 0x00, 0x49, 0x40];
        let expected = [1.0, -2.0, f32::MIN_POSITIVE, 3.140_625];
        assert_eq!(decoded(Encoding::Bf16, &bytes, 4), expected);
    }

    #[test]
    fn f16_pieces_join_without_a_seam() {
        let halves: Vec<f16> = (0..1000).map(|i| f16::from_f32(i as f32)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
        let expected: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        assert_eq!(decoded(Encoding::F16, &bytes, 1000), expected);
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
    fn q4_1_adds_the_minimum() {
        let mut bytes = vec![0x00, 0x38, 0x00, 0xc0]; // d = 0.5, m = -2
        bytes.extend(nibbles());
        let out = decoded(Encoding::Q4_1, &bytes, 32);
        for i in 0..16 {
            assert_eq!(out[i], i as f32 * 0.5 - 2.0, "low nibble {i}");
            assert_eq!(out[16 + i], (15.0 - i as f32) * 0.5 - 2.0, "high {i}");
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
    fn later_groups_use_their_own_scale() {
        for encoding in [Encoding::Q4_0, Encoding::Q4_1, Encoding::Q8_0] {
            let mut bytes = vec![0u8; 2 * encoding.group_bytes()];
            bytes[1] = 0x3c; // d = 1 in the first group
            bytes[encoding.group_bytes() + 1] = 0x40; // d = 2 in the second
            bytes[encoding.group_bytes() - 1] = 0x11;
            bytes[2 * encoding.group_bytes() - 1] = 0x11;
            let out = decoded(encoding, &bytes, 64);
            assert_eq!(out[63], 2.0 * out[31], "{}", encoding.name());
            assert_ne!(out[31], 0.0);
        }
    }

    #[test]
    fn the_table_is_consistent() {
        let encodings = [
            (Encoding::F32, 0, 4, "F32"),
            (Encoding::F16, 1, 2, "F16"),
            (Encoding::Q4_0, 2, 18, "Q4_0"),
            (Encoding::Q4_1, 3, 20, "Q4_1"),
            (Encoding::Q8_0, 8, 34, "Q8_0"),
            (Encoding::Bf16, 30, 2, "BF16"),
        ];
        assert_eq!(encodings.len(), TABLE.len());
        for (encoding, id, bytes, name) in encodings {
            assert_eq!(Encoding::from_gguf(id), Some(encoding));
            assert_eq!(encoding.gguf_type(), id);
            assert_eq!(encoding.bytes_for(encoding.group_size()), Some(bytes));
            assert_eq!(Encoding::gguf_type_name(id), name);
            if let Some(dtype) = encoding.safetensors_dtype() {
                assert_eq!(Encoding::from_safetensors(dtype), Some(encoding));
            }
        }
        for (id, name) in OTHER_GGUF_TYPES {
            assert_eq!(Encoding::from_gguf(id), None, "{name} is listed twice");
        }
        assert_eq!(Encoding::from_safetensors("Q8_0"), None);
        assert_eq!(Encoding::Q8_0.bytes_for(33), None);
        assert_eq!(Encoding::F32.bytes_for(usize::MAX), None);
    }

    #[test]
    fn m19_non_finite_values_are_counted_by_bits() {
        let values = [1.0, f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, -0.0];
        assert_eq!(count_non_finite(&values), 3);
        let bytes = [0x00, 0x7c, 0x01, 0xfe, 0xff, 0x7b]; // inf, nan, 65504
        assert_eq!(count_non_finite(&decoded(Encoding::F16, &bytes, 3)), 2);
    }
}
