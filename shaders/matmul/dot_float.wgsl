// Groups of weights times f32 activations: inside a group one chain of fma over its 32 columns,
// ascending, for each of four rows; then the group's scale, by one fma.
fn matmul_four(sum: vec4<f32>, w: mat4x4<f32>, x: vec4<f32>) -> vec4<f32> {
    return fma(w[3], vec4<f32>(x.w), fma(w[2], vec4<f32>(x.z), fma(w[1], vec4<f32>(x.y), fma(w[0], vec4<f32>(x.x), sum))));
}

// The own lane's share of four rows of `block`, for each token.
fn matmul_sums(block: u32, x_at: array<u32, TOKENS>, lane: u32, index: u32) -> array<vec4<f32>, TOKENS> {
    var at_x = x_at;
    var sum: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) { sum[t] = vec4<f32>(0.0); }
    // All lanes take as many turns, and the last may count for some of them only: parts that talk
    // across a subgroup must be reached by all of it.
    let turns = (params.num_groups + LANES - 1u) / LANES;
    for (var turn = 0u; turn < turns; turn++) {
        let own_group = turn * LANES + lane;
        let group = min(own_group, params.num_groups - 1u);
        let at = block * params.num_groups + group;
        var source: array<u32, TOKENS>;
        var held: array<vec4<f32>, TOKENS>;
        var r: array<vec4<f32>, TOKENS>;
        for (var t = 0u; t < TOKENS; t++) {
            source[t] = at_x[t] + group * ACT_VEC4;
            held[t] = matmul_hold(source[t], index);
            r[t] = vec4<f32>(0.0);
        }
        let w = quant_group(at);
        let w0 = quant_columns(w, 0u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w0, matmul_x0(held[t], source[t])); }
        let w1 = quant_columns(w, 1u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w1, matmul_x1(held[t], source[t])); }
        let w2 = quant_columns(w, 2u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w2, matmul_x2(held[t], source[t])); }
        let w3 = quant_columns(w, 3u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w3, matmul_x3(held[t], source[t])); }
        let w4 = quant_columns(w, 4u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w4, matmul_x4(held[t], source[t])); }
        let w5 = quant_columns(w, 5u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w5, matmul_x5(held[t], source[t])); }
        let w6 = quant_columns(w, 6u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w6, matmul_x6(held[t], source[t])); }
        let w7 = quant_columns(w, 7u);
        for (var t = 0u; t < TOKENS; t++) { r[t] = matmul_four(r[t], w7, matmul_x7(held[t], source[t])); }

        let scale = quant_scale(at);
        for (var t = 0u; t < TOKENS; t++) {
            sum[t] = select(sum[t], quant_fold(r[t], scale, sum[t]), LANES == 1u || own_group < params.num_groups);
        }
    }
    return sum;
}
