// As norm_rms, each of eight neighbours walking one of the eight chains. Needs what x_float_share needs.
fn matmul_factor(x_at: u32, index: u32) -> f32 {
    var own = 0.0;
    for (var first = 0u; first < params.num_groups; first += 8u) {
        let group = first + index % 8u;
        let squares = x[x_at + min(group, params.num_groups - 1u) * ACT_VEC4 + ACT_SQUARES_VEC4][ACT_SQUARES_WORD];
        own += select(0.0, bitcast<f32>(squares), group < params.num_groups);
    }
    let low = vec4<f32>(subgroupBroadcast(own, 0u), subgroupBroadcast(own, 1u), subgroupBroadcast(own, 2u), subgroupBroadcast(own, 3u));
    let high = vec4<f32>(subgroupBroadcast(own, 4u), subgroupBroadcast(own, 5u), subgroupBroadcast(own, 6u), subgroupBroadcast(own, 7u));
    let total = ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    return inverseSqrt(total / params.norm_columns + params.eps);
}
