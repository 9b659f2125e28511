// A unit of matmul is two blocks, four rows of the gate and then the same four of up; its values are
//   gelu(gate) * up
const BLOCKS: u32 = 2u;

fn matmul_value(unit: u32, x_at: array<u32, TOKENS>, lane: u32, index: u32) -> array<vec4<f32>, TOKENS> {
    var at_x = x_at;
    var gate = matmul_sums(2u * unit, at_x, lane, index);
    var up = matmul_sums(2u * unit + 1u, at_x, lane, index);
    for (var t = 0u; t < TOKENS; t++) {
        let factor = matmul_factor(at_x[t], index);
        gate[t] = gelu(lanes_sum(gate[t], index) * factor) * (lanes_sum(up[t], index) * factor);
    }
    return gate;
}
