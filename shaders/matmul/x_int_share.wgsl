// How an invocation of matmul gets a group's 8-bit activations: of eight neighbours each loads what
// belongs to one token, or of one token a third of the record, and all hear the others'. Needs what
// x_float_share needs; the same bits as loading all.
struct MatmulHeld { low: vec4<u32>, high: vec4<u32>, scale: u32 }

alias MatmulSource = u32; // where the own token's records begin

fn matmul_source(x_at: array<u32, TOKENS>, index: u32) -> MatmulSource {
    var at = x_at;
    return at[index % TOKENS];
}

fn matmul_hold(source: MatmulSource, group: u32, index: u32) -> MatmulHeld {
    let record = source + group * ACT_VEC4;
    if (TOKENS == 1u) {
        return MatmulHeld(x[record + min(index % 8u, 2u)], vec4<u32>(0u), 0u);
    }
    return MatmulHeld(x[record], x[record + 1u], x[record + 2u].x);
}

// What neighbour `n` says; the number has to be a literal.
fn matmul_hear(value: u32, n: u32) -> u32 {
    switch n {
        case 0u: { return subgroupBroadcast(value, 0u); }
        case 1u: { return subgroupBroadcast(value, 1u); }
        case 2u: { return subgroupBroadcast(value, 2u); }
        case 3u: { return subgroupBroadcast(value, 3u); }
        case 4u: { return subgroupBroadcast(value, 4u); }
        case 5u: { return subgroupBroadcast(value, 5u); }
        case 6u: { return subgroupBroadcast(value, 6u); }
        default: { return subgroupBroadcast(value, 7u); }
    }
}

// Word `j` of token `t`.
fn matmul_x(held: MatmulHeld, t: u32, j: u32) -> u32 {
    var low = held.low;
    var high = held.high;
    if (TOKENS == 1u) { return matmul_hear(low[j % 4u], j / 4u); }
    if (j < 4u) { return matmul_hear(low[j % 4u], t); }
    return matmul_hear(high[j % 4u], t);
}

fn matmul_x_scale(held: MatmulHeld, t: u32) -> f32 {
    if (TOKENS == 1u) { return bitcast<f32>(matmul_hear(held.low.x, 2u)); }
    return bitcast<f32>(matmul_hear(held.scale, t));
}
