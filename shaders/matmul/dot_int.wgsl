// Groups of 8-bit weights times 8-bit activations: the sum of a group's 32 products is an integer,
// exact whatever the order; then one rounded product of the two scales, and one fma.
fn matmul_row(w0: vec4<u32>, w1: vec4<u32>, x0: vec4<u32>, x1: vec4<u32>) -> i32 {
    return dot4I8Packed(w0.x, x0.x) + dot4I8Packed(w0.y, x0.y) + dot4I8Packed(w0.z, x0.z) + dot4I8Packed(w0.w, x0.w)
         + dot4I8Packed(w1.x, x1.x) + dot4I8Packed(w1.y, x1.y) + dot4I8Packed(w1.z, x1.z) + dot4I8Packed(w1.w, x1.w);
}

// The own lane's share of four rows of `block`, for each token.
fn matmul_sums(block: u32, x_at: array<u32, TOKENS>, lane: u32, index: u32) -> array<vec4<f32>, TOKENS> {
    var at_x = x_at;
    var sum: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) { sum[t] = vec4<f32>(0.0); }
    // As in dot_float: all lanes take as many turns.
    let turns = (params.num_groups + LANES - 1u) / LANES;
    for (var turn = 0u; turn < turns; turn++) {
        let own_group = turn * LANES + lane;
        let group = min(own_group, params.num_groups - 1u);
        let at = block * params.num_groups + group;
        let w = quant_group(at);
        let scale = quant_scale(at);
        for (var t = 0u; t < TOKENS; t++) {
            let source = at_x[t] + group * ACT_VEC4;
            let held = matmul_hold(source, index);
            let x0 = matmul_x0(held, source);
            let x1 = matmul_x1(held, source);
            let dots = vec4<i32>(matmul_row(w[0], w[1], x0, x1), matmul_row(w[2], w[3], x0, x1),
                                 matmul_row(w[4], w[5], x0, x1), matmul_row(w[6], w[7], x0, x1));
            let next = fma(scale * matmul_x_scale(held, source), vec4<f32>(dots), sum[t]);
            sum[t] = select(sum[t], next, LANES == 1u || own_group < params.num_groups);
        }
    }
    return sum;
}
