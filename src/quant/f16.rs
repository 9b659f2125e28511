//! f16 weights, rounded to nearest, two to a word. 2 bytes a weight.

use super::{Format, GROUP};
use crate::wgsl;
use half::f16;
use half::slice::HalfFloatSliceExt;

/// `--weights f16`.
pub static F16: Format = Format {
    name: "f16",
    parts: &[wgsl!("quant/f16.wgsl")],
    wide_parts: &[wgsl!("quant/f16.wgsl")],
    half_part: &wgsl!("quant/f16_half.wgsl"),
    group_bytes: 2 * GROUP,
    scale_bytes: 0,
    pack,
    unpack,
};

fn pack(values: &[f32; GROUP], weights: &mut [u8], _scale: &mut [u8]) {
    for (bytes, value) in weights.chunks_exact_mut(2).zip(values) {
        // finite values beyond f16 saturate: an infinity would make every sum NaN
        bytes.copy_from_slice(&f16::from_f32(value.clamp(-65504.0, 65504.0)).to_le_bytes());
    }
}

fn unpack(weights: &[u8], _scale: &[u8]) -> [f32; GROUP] {
    let halves: [f16; GROUP] =
        std::array::from_fn(|i| f16::from_le_bytes([weights[2 * i], weights[2 * i + 1]]));
    let mut values = [0.0; GROUP];
    halves.convert_to_f32_slice(&mut values); // many at a time where the processor can
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_and_saturates() {
        let mut values = [0.0; GROUP];
        (values[0], values[1], values[2]) = (1.0 + 1.0 / 4096.0, 1e9, -1e9);
        let mut weights = [0; 2 * GROUP];
        pack(&values, &mut weights, &mut []);
        let back = unpack(&weights, &[]);
        assert_eq!(&back[..3], &[1.0, 65504.0, -65504.0]);
    }
}
