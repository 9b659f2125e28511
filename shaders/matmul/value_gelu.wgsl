// A unit of matmul is a block of four rows; its values are gelu of their sums, which may have a bias.
const BLOCKS: u32 = 1u;

fn matmul_value(unit: u32, x_at: array<u32, TOKENS>, lane: u32, index: u32) -> array<vec4<f32>, TOKENS> {
    var at_x = x_at;
    var value = matmul_sums(unit, at_x, lane, index);
    for (var t = 0u; t < TOKENS; t++) {
        value[t] = gelu(matmul_biased(lanes_sum(value[t], index), matmul_factor(at_x[t], index), unit));
    }
    return value;
}
