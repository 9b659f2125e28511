// f16 weights: groups of 32 along a row without a scale; blocks of 4 rows.
//   w   [block][group][4 rows][32] f16, a row's group in four vec4<u32>
// `at` is block * num_groups + group. Unpacked by unpack2x16float, which needs no capability.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

fn quant_f16x4(a: u32, b: u32) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
}

// Weights 16 * half .. 16 * half + 15 of one row's group; column i holds four.
fn quant_w16(at: u32, row: u32, half: u32) -> mat4x4<f32> {
    let first = at * 16u + row * 4u + half * 2u;
    let a = w[first];
    let b = w[first + 1u];
    return mat4x4<f32>(quant_f16x4(a.x, a.y), quant_f16x4(a.z, a.w), quant_f16x4(b.x, b.y), quant_f16x4(b.z, b.w));
}

// No scale: the weights are the values.
fn quant_scale(at: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

// Adds a group's sums of four rows to what was there.
fn quant_fold(group: vec4<f32>, scale: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return sum + group;
}
