// The factor of a token's sums where RMSNorm comes before the matmul:
//   1 / sqrt(sum of squares / norm_columns + eps)
// from the sums of squares in the token's records. Eight chains, over every eighth record, then
// ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
fn matmul_squares(x_at: u32, group: u32) -> f32 {
    return select(0.0, bitcast<f32>(x[x_at + min(group, params.num_groups - 1u) * ACT_VEC4 + ACT_SQUARES_VEC4][ACT_SQUARES_WORD]),
                  group < params.num_groups);
}

fn matmul_factor(x_at: u32, index: u32) -> f32 {
    var low = vec4<f32>(0.0);
    var high = vec4<f32>(0.0);
    for (var group = 0u; group < params.num_groups; group += 8u) {
        low += vec4<f32>(matmul_squares(x_at, group), matmul_squares(x_at, group + 1u),
                         matmul_squares(x_at, group + 2u), matmul_squares(x_at, group + 3u));
        high += vec4<f32>(matmul_squares(x_at, group + 4u), matmul_squares(x_at, group + 5u),
                          matmul_squares(x_at, group + 6u), matmul_squares(x_at, group + 7u));
    }
    let total = ((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w));
    return inverseSqrt(total / params.norm_columns + params.eps);
}
