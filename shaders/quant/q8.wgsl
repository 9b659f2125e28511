// INT8 weights: groups of 32 along a row, one f16 scale each; blocks of 4 rows.
//   w         [block][group][4 rows][32] i8, a row's group in two vec4<u32>
//   w_scales  [block][group][4] f16
// `at` is block * num_groups + group. A group's products are added up over the integers, as they
// are or as floats; the scale is applied once per group, in one fma.
@group(0) @binding(0) var<storage, read> w: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_scales: array<vec2<u32>>;

alias QuantGroup = array<vec4<u32>, 8>; // two for each row

fn quant_group(at: u32) -> QuantGroup {
    let i = at * 8u;
    return QuantGroup(w[i], w[i + 1u], w[i + 2u], w[i + 3u], w[i + 4u], w[i + 5u], w[i + 6u], w[i + 7u]);
}
