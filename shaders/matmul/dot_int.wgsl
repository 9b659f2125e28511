// Groups of 8-bit weights times 8-bit activations: the sum of a group's 32 products is an integer,
// exact whatever the order; then one rounded product of the two scales, and one fma.
// Tokens are written out, not counted in a loop: compilers that do not unroll it spill all sums.
alias MatmulInts = array<vec4<i32>, 8>; // of each token, for four rows
alias MatmulSums = array<vec4<f32>, 8>;

// Adds the products of four columns: a word of each of four rows, times a word of a token.
fn matmul_word(sum: vec4<i32>, w: vec4<u32>, x: u32) -> vec4<i32> {
    return sum + vec4<i32>(dot4I8Packed(w.x, x), dot4I8Packed(w.y, x), dot4I8Packed(w.z, x), dot4I8Packed(w.w, x));
}

// The same for every token: word `j` of the group.
fn matmul_words(before: MatmulInts, w: vec4<u32>, held: MatmulHeld, j: u32) -> MatmulInts {
    var sum = before;
    sum[0] = matmul_word(sum[0], w, matmul_x(held, 0u, j));
    if (TOKENS > 1u) {
        sum[1] = matmul_word(sum[1], w, matmul_x(held, 1u, j));
    }
    if (TOKENS > 2u) {
        sum[2] = matmul_word(sum[2], w, matmul_x(held, 2u, j));
        sum[3] = matmul_word(sum[3], w, matmul_x(held, 3u, j));
    }
    if (TOKENS > 4u) {
        sum[4] = matmul_word(sum[4], w, matmul_x(held, 4u, j));
        sum[5] = matmul_word(sum[5], w, matmul_x(held, 5u, j));
        sum[6] = matmul_word(sum[6], w, matmul_x(held, 6u, j));
        sum[7] = matmul_word(sum[7], w, matmul_x(held, 7u, j));
    }
    return sum;
}

fn matmul_scaled(sum: vec4<f32>, ints: vec4<i32>, scale: vec4<f32>, held: MatmulHeld, t: u32) -> vec4<f32> {
    return fma(scale * matmul_x_scale(held, t), vec4<f32>(ints), sum);
}

fn matmul_fold(before: MatmulSums, ints: MatmulInts, scale: vec4<f32>, held: MatmulHeld) -> MatmulSums {
    var sum = before;
    var group = ints;
    sum[0] = matmul_scaled(sum[0], group[0], scale, held, 0u);
    if (TOKENS > 1u) {
        sum[1] = matmul_scaled(sum[1], group[1], scale, held, 1u);
    }
    if (TOKENS > 2u) {
        sum[2] = matmul_scaled(sum[2], group[2], scale, held, 2u);
        sum[3] = matmul_scaled(sum[3], group[3], scale, held, 3u);
    }
    if (TOKENS > 4u) {
        sum[4] = matmul_scaled(sum[4], group[4], scale, held, 4u);
        sum[5] = matmul_scaled(sum[5], group[5], scale, held, 5u);
        sum[6] = matmul_scaled(sum[6], group[6], scale, held, 6u);
        sum[7] = matmul_scaled(sum[7], group[7], scale, held, 7u);
    }
    return sum;
}

// The own lane's share of four rows of `block`, for each token.
fn matmul_sums(block: u32, x_at: array<u32, TOKENS>, lane: u32, index: u32) -> array<vec4<f32>, TOKENS> {
    let source = matmul_source(x_at, index);
    var sum = MatmulSums();
    // As in dot_float: all lanes take as many turns, and past the last group a scale of 0 adds nothing.
    let turns = (params.num_groups + LANES - 1u) / LANES;
    for (var turn = 0u; turn < turns; turn++) {
        let own_group = turn * LANES + lane;
        let group = min(own_group, params.num_groups - 1u);
        let at = block * params.num_groups + group;
        let held = matmul_hold(source, group, index);
        let w = quant_group(at);
        var ints = matmul_words(MatmulInts(), vec4<u32>(w[0].x, w[2].x, w[4].x, w[6].x), held, 0u);
        ints = matmul_words(ints, vec4<u32>(w[0].y, w[2].y, w[4].y, w[6].y), held, 1u);
        ints = matmul_words(ints, vec4<u32>(w[0].z, w[2].z, w[4].z, w[6].z), held, 2u);
        ints = matmul_words(ints, vec4<u32>(w[0].w, w[2].w, w[4].w, w[6].w), held, 3u);
        ints = matmul_words(ints, vec4<u32>(w[1].x, w[3].x, w[5].x, w[7].x), held, 4u);
        ints = matmul_words(ints, vec4<u32>(w[1].y, w[3].y, w[5].y, w[7].y), held, 5u);
        ints = matmul_words(ints, vec4<u32>(w[1].z, w[3].z, w[5].z, w[7].z), held, 6u);
        ints = matmul_words(ints, vec4<u32>(w[1].w, w[3].w, w[5].w, w[7].w), held, 7u);
        let scale = select(vec4<f32>(0.0), quant_scale(at), LANES == 1u || own_group < params.num_groups);
        sum = matmul_fold(sum, ints, scale, held);
    }
    var out: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) { out[t] = sum[t]; }
    return out;
}
