// f16 weights: groups of 32 along a row without a scale; blocks of 4 rows.
//   w   [block][group][4 rows][32] f16, a row's group in four vec4<u32>
// `at` is block * num_groups + group. Unpacked by unpack2x16float, which needs no capability.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;

alias QuantGroup = array<vec4<u32>, 16>; // four for each row

fn quant_group(at: u32) -> QuantGroup {
    let i = at * 16u;
    return QuantGroup(w[i], w[i + 1u], w[i + 2u], w[i + 3u], w[i + 4u], w[i + 5u], w[i + 6u], w[i + 7u],
                      w[i + 8u], w[i + 9u], w[i + 10u], w[i + 11u], w[i + 12u], w[i + 13u], w[i + 14u], w[i + 15u]);
}

fn quant_f16x4(words: vec4<u32>, second: bool) -> vec4<f32> {
    let pair = select(words.xy, words.zw, second);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

// Columns 4 j .. 4 j + 3 of the group: a vector of the four rows for each.
fn quant_columns(group: QuantGroup, j: u32) -> mat4x4<f32> {
    var words = group;
    let at = j / 2u;
    let second = j % 2u == 1u;
    return transpose(mat4x4<f32>(quant_f16x4(words[at], second), quant_f16x4(words[4u + at], second),
                                 quant_f16x4(words[8u + at], second), quant_f16x4(words[12u + at], second)));
}

// No scale: the weights are the values.
fn quant_scale(at: u32) -> vec4<f32> {
    return vec4<f32>(1.0);
}

// Adds a group's sums of four rows to what was there.
fn quant_fold(group: vec4<f32>, scale: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return sum + group;
}
