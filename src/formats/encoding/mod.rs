//! How a tensor's numbers are stored in a file, and how they become `f32`.
//!
//! `TABLE` is the only list of encodings: a new one is an enum variant, a row and a `Codec`,
//! in `floats`, `blocks` (32 elements with their own scale) or `k_quants` (256 elements with scales
//! of scales). The layouts are those of the GGUF specification and of ggml's type table; all of
//! them are little-endian. Quantised elements are stored in groups along a row, and a group never
//! crosses the end of a row.
//!
//! Encoding is the simple way back, for synthetic models and tests: it searches a few scales for
//! the least squared error and knows nothing of what matters to a model.

use half::f16;

mod blocks;
mod fit;
mod floats;
mod k_encode;
mod k_quants;

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
    /// IEEE double precision, rounded to single.
    F64,
    /// 32 elements in 18 bytes: an f16 scale `d` and 4-bit codes; `x = (code - 8) * d`.
    Q4_0,
    /// 32 elements in 20 bytes: f16 `d`, f16 `m` and 4-bit codes; `x = code * d + m`.
    Q4_1,
    /// 32 elements in 22 bytes: an f16 scale `d` and 5-bit codes; `x = (code - 16) * d`.
    Q5_0,
    /// 32 elements in 24 bytes: f16 `d`, f16 `m` and 5-bit codes; `x = code * d + m`.
    Q5_1,
    /// 32 elements in 34 bytes: an f16 scale `d` and signed 8-bit codes; `x = code * d`.
    Q8_0,
    /// 256 elements in 84 bytes: f16 `d` and `dmin`, for each 16 elements a scale `s` and a minimum
    /// `m` of 4 bits, and 2-bit codes; `x = d * s * code - dmin * m`.
    Q2K,
    /// 256 elements in 110 bytes: f16 `d`, for each 16 elements a scale `s` of 6 bits, and 3-bit
    /// codes; `x = d * (s - 32) * (code - 4)`.
    Q3K,
    /// 256 elements in 144 bytes: f16 `d` and `dmin`, for each 32 elements a scale `s` and a minimum
    /// `m` of 6 bits, and 4-bit codes; `x = d * s * code - dmin * m`.
    Q4K,
    /// 256 elements in 176 bytes: as `Q4K`, with 5-bit codes.
    Q5K,
    /// 256 elements in 210 bytes: f16 `d`, for each 16 elements a signed 8-bit scale `s`, and 6-bit
    /// codes; `x = d * s * (code - 32)`.
    Q6K,
    /// 256 elements in 292 bytes: f32 `d`, signed 8-bit codes, and sums of codes that are not needed
    /// here; `x = d * code`.
    Q8K,
    /// Signed 8-bit codes whose scales are elsewhere: decoded alone they are whole numbers. None of
    /// [`Encoding::all`], since nothing is stored in it without a scheme that says where (see
    /// [`super::compressed`]).
    I8,
}

/// The two ways of an encoding, for whole groups; whoever calls has checked the lengths.
#[derive(Clone, Copy)]
struct Codec {
    decode: fn(&[u8], &mut [f32]),
    encode: fn(&[f32], &mut [u8]),
}

struct Row {
    encoding: Encoding,
    name: &'static str,
    gguf_type: u32,
    safetensors_dtype: Option<&'static str>,
    group_size: usize,
    group_bytes: usize,
    codec: Codec,
}

/// In the order of the ids in a GGUF file.
#[rustfmt::skip]
static TABLE: [Row; 15] = [
    row(Encoding::F32,  "F32",  0,  Some("F32"),  1,   4,   floats::F32),
    row(Encoding::F16,  "F16",  1,  Some("F16"),  1,   2,   floats::F16),
    row(Encoding::Q4_0, "Q4_0", 2,  None,         32,  18,  blocks::Q4_0),
    row(Encoding::Q4_1, "Q4_1", 3,  None,         32,  20,  blocks::Q4_1),
    row(Encoding::Q5_0, "Q5_0", 6,  None,         32,  22,  blocks::Q5_0),
    row(Encoding::Q5_1, "Q5_1", 7,  None,         32,  24,  blocks::Q5_1),
    row(Encoding::Q8_0, "Q8_0", 8,  None,         32,  34,  blocks::Q8_0),
    row(Encoding::Q2K,  "Q2_K", 10, None,         256, 84,  k_quants::Q2_K),
    row(Encoding::Q3K,  "Q3_K", 11, None,         256, 110, k_quants::Q3_K),
    row(Encoding::Q4K,  "Q4_K", 12, None,         256, 144, k_quants::Q4_K),
    row(Encoding::Q5K,  "Q5_K", 13, None,         256, 176, k_quants::Q5_K),
    row(Encoding::Q6K,  "Q6_K", 14, None,         256, 210, k_quants::Q6_K),
    row(Encoding::Q8K,  "Q8_K", 15, None,         256, 292, k_quants::Q8_K),
    row(Encoding::F64,  "F64",  28, Some("F64"),  1,   8,   floats::F64),
    row(Encoding::Bf16, "BF16", 30, Some("BF16"), 1,   2,   floats::BF16),
];

/// In safetensors only, where a file's settings tell of scales; the id is the one that GGUF has for it.
static I8: Row = row(Encoding::I8, "I8", 24, Some("I8"), 1, 1, floats::I8);

/// Type ids a GGUF file may carry that have no row above; named so that a refusal can say what it
/// saw. Q8_1 is what activations become while others multiply with Q4_1 and Q5_1; no file holds it,
/// and its size is not agreed upon (36 or 40 bytes).
const OTHER_GGUF_TYPES: [(u32, &str); 24] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
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
    codec: Codec,
) -> Row {
    Row {
        encoding,
        name,
        gguf_type,
        safetensors_dtype,
        group_size,
        group_bytes,
        codec,
    }
}

impl Encoding {
    /// Every encoding there is, in the order of the ids in a GGUF file.
    pub fn all() -> impl ExactSizeIterator<Item = Encoding> {
        TABLE.iter().map(|row| row.encoding)
    }

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
        Encoding::all()
            .map(Encoding::name)
            .collect::<Vec<_>>()
            .join(", ")
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
        (self.row().codec.decode)(bytes, out);
    }

    /// Encodes whole groups, with scales found by a short search; for synthetic models and tests.
    /// Values have to be finite, and small enough for the scales, which mostly are f16.
    ///
    /// # Panics
    /// If `values` are no whole number of groups.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let num_bytes = self.bytes_for(values.len()).unwrap_or_else(|| {
            let (name, size) = (self.name(), self.group_size());
            panic!("{name}: {} elements in groups of {size}", values.len())
        });
        let mut bytes = vec![0; num_bytes];
        (self.row().codec.encode)(values, &mut bytes);
        bytes
    }

    fn row(self) -> &'static Row {
        TABLE
            .iter()
            .chain([&I8])
            .find(|row| row.encoding == self)
            .expect("every encoding has a row")
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

/// An f16 that lies at `at`.
fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Writes an f16 at `at`, and tells the value that it has there.
fn put_half(bytes: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    bytes[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// Decodes groups of `BYTES` bytes and `SIZE` elements one by one.
fn decode_groups<const BYTES: usize, const SIZE: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; SIZE]),
) {
    let (groups, _) = bytes.as_chunks();
    for (group, out) in groups.iter().zip(out.as_chunks_mut().0) {
        decode(group, out);
    }
}

/// Encodes groups of `SIZE` elements one by one, into bytes that are zero.
fn encode_groups<const BYTES: usize, const SIZE: usize>(
    values: &[f32],
    bytes: &mut [u8],
    encode: impl Fn(&[f32; SIZE], &mut [u8; BYTES]),
) {
    let (groups, _) = values.as_chunks();
    for (group, bytes) in groups.iter().zip(bytes.as_chunks_mut().0) {
        encode(group, bytes);
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

    #[test]
    fn floats_decode_to_hand_computed_values() {
        let f32s = [1.5f32, -0.0, 1e-40, f32::MAX];
        let bytes: Vec<u8> = f32s.iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(decoded(Encoding::F32, &bytes, 4), f32s);

        let f64s = [
            1.5f64,
            -0.0,
            0.1,
            1e300,
            f64::from(f32::MAX),
            f64::NEG_INFINITY,
        ];
        let bytes: Vec<u8> = f64s.iter().flat_map(|x| x.to_le_bytes()).collect();
        let expected = [1.5, -0.0, 0.1, f32::INFINITY, f32::MAX, f32::NEG_INFINITY];
        assert_eq!(decoded(Encoding::F64, &bytes, 6), expected);

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
    fn codes_are_whole_numbers() {
        assert_eq!(
            decoded(Encoding::I8, &[0, 1, 127, 128, 255], 5),
            [0.0, 1.0, 127.0, -128.0, -1.0]
        );
        assert_eq!(Encoding::I8.encode(&[-127.0, 2.5, 300.0]), [129, 2, 127]);
        assert_eq!(
            (Encoding::from_gguf(24), Encoding::from_safetensors("I8")),
            (None, None)
        );
    }

    #[test]
    fn f16_pieces_join_without_a_seam() {
        let halves: Vec<f16> = (0..1000).map(|i| f16::from_f32(i as f32)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|x| x.to_le_bytes()).collect();
        let expected: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        assert_eq!(decoded(Encoding::F16, &bytes, 1000), expected);
    }

    #[test]
    fn the_table_is_consistent() {
        let encodings = [
            (Encoding::F32, 0, 4, "F32"),
            (Encoding::F16, 1, 2, "F16"),
            (Encoding::Q4_0, 2, 18, "Q4_0"),
            (Encoding::Q4_1, 3, 20, "Q4_1"),
            (Encoding::Q5_0, 6, 22, "Q5_0"),
            (Encoding::Q5_1, 7, 24, "Q5_1"),
            (Encoding::Q8_0, 8, 34, "Q8_0"),
            (Encoding::Q2K, 10, 84, "Q2_K"),
            (Encoding::Q3K, 11, 110, "Q3_K"),
            (Encoding::Q4K, 12, 144, "Q4_K"),
            (Encoding::Q5K, 13, 176, "Q5_K"),
            (Encoding::Q6K, 14, 210, "Q6_K"),
            (Encoding::Q8K, 15, 292, "Q8_K"),
            (Encoding::F64, 28, 8, "F64"),
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

    /// No error is larger than a step between codes, and the usual one is a third of that.
    #[test]
    fn what_is_encoded_comes_back_nearly() {
        // Of both signs and of sizes that differ by part, with a part that is all zero.
        let values: Vec<f32> = (0..1024u32)
            .map(|i| {
                let noise = i.wrapping_mul(2_654_435_761) as i32 as f32 / i32::MAX as f32;
                noise * [0.0, 0.2, 1.0, 0.5][(i / 32 % 4) as usize]
            })
            .collect();
        for encoding in Encoding::all() {
            let step = match encoding {
                Encoding::F32 | Encoding::F64 => 0.0,
                Encoding::F16 => 1.0 / 1024.0,
                Encoding::Bf16 => 1.0 / 128.0,
                Encoding::Q8_0 | Encoding::Q8K => 1.0 / 127.0,
                Encoding::Q6K => 1.0 / 31.0,
                Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => 1.0 / 15.0,
                Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K => 1.0 / 7.0,
                Encoding::Q3K => 1.0 / 3.0,
                Encoding::Q2K => 2.0 / 3.0,
                Encoding::I8 => unreachable!("no encoding by itself"),
            };
            let bytes = encoding.encode(&values);
            let out = decoded(encoding, &bytes, values.len());
            let errors = out.iter().zip(&values).map(|(a, b)| (a - b).abs());
            let (mut largest, mut squares) = (0.0f32, 0.0);
            for error in errors {
                largest = largest.max(error);
                squares += error * error;
            }
            let rms = (squares / values.len() as f32).sqrt();
            let name = encoding.name();
            assert!(largest <= step, "{name}: {largest} above {step}");
            assert!(rms <= step / 3.0, "{name}: {rms} on average");
            assert!(out[..32].iter().all(|&x| x == 0.0), "{name} of zeros");
            let again = decoded(encoding, &encoding.encode(&vec![0.0; 256]), 256);
            assert!(again.iter().all(|&x| x == 0.0), "{name} of zeros alone");
        }
    }

    #[test]
    #[should_panic(expected = "Q4_K: 128 elements in groups of 256")]
    fn broken_groups_are_not_encoded() {
        Encoding::Q4K.encode(&[0.0; 128]);
    }

    #[test]
    fn m19_non_finite_values_are_counted_by_bits() {
        let values = [1.0, f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, -0.0];
        assert_eq!(count_non_finite(&values), 3);
        let bytes = [0x00, 0x7c, 0x01, 0xfe, 0xff, 0x7b]; // inf, nan, 65504
        assert_eq!(count_non_finite(&decoded(Encoding::F16, &bytes, 3)), 2);
    }
}
