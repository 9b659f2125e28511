// INT8 weights: groups of 32 along a row, one f16 scale each; blocks of 4 rows.
//   w         [block][group][4 rows][32] i8, a row's group in two vec4<u32>
//   w_scales  [block][group][4] f16
// `at` is block * num_groups + group. Accumulation is over the integers as floats; the scale is
// applied once per group, in one fma.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_scales: array<vec2<u32>>;

// Weights 16 * half .. 16 * half + 15 of one row's group, unscaled; column i holds four.
fn quant_w16(at: u32, row: u32, half: u32) -> mat4x4<f32> {
    let words = w[at * 8u + row * 2u + half];
    return mat4x4<f32>(
        vec4<f32>(unpack4xI8(words.x)),
        vec4<f32>(unpack4xI8(words.y)),
        vec4<f32>(unpack4xI8(words.z)),
        vec4<f32>(unpack4xI8(words.w)));
}

// The scales of a block's four rows.
fn quant_scale(at: u32) -> vec4<f32> {
    let words = w_scales[at];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// Adds a group's sums of four rows to what was there.
fn quant_fold(group: vec4<f32>, scale: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(group, scale, sum);
}
