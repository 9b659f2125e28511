// How an invocation of matmul gets a group's 8-bit activations: it loads them all.
struct MatmulHeld { low: array<vec4<u32>, TOKENS>, high: array<vec4<u32>, TOKENS>, scale: array<f32, TOKENS> }

alias MatmulSource = array<u32, TOKENS>;

fn matmul_source(x_at: array<u32, TOKENS>, index: u32) -> MatmulSource {
    return x_at;
}

fn matmul_hold(source: MatmulSource, group: u32, index: u32) -> MatmulHeld {
    var at = source;
    var held: MatmulHeld;
    for (var t = 0u; t < TOKENS; t++) {
        let record = at[t] + group * ACT_VEC4;
        held.low[t] = x[record];
        held.high[t] = x[record + 1u];
        held.scale[t] = bitcast<f32>(x[record + 2u].x);
    }
    return held;
}

// Word `j` of token `t`.
fn matmul_x(held: MatmulHeld, t: u32, j: u32) -> u32 {
    var all = held;
    if (j < 4u) { return all.low[t][j]; }
    return all.high[t][j - 4u];
}

fn matmul_x_scale(held: MatmulHeld, t: u32) -> f32 {
    var all = held;
    return all.scale[t];
}
