// The values of a group of 8-bit weights, however it was loaded.

// Columns 4 j .. 4 j + 3 of the group, unscaled: a vector of the four rows for each.
fn quant_columns(group: QuantGroup, j: u32) -> mat4x4<f32> {
    var words = group;
    let half = j / 4u;
    return transpose(mat4x4<f32>(
        vec4<f32>(unpack4xI8(words[half][j % 4u])),
        vec4<f32>(unpack4xI8(words[2u + half][j % 4u])),
        vec4<f32>(unpack4xI8(words[4u + half][j % 4u])),
        vec4<f32>(unpack4xI8(words[6u + half][j % 4u]))));
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
