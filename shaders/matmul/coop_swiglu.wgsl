// A unit of matmul_coop is two blocks, four rows of the gate and then the same four of up; its values,
// with the factor applied to both, are
//   silu(gate) * up,   silu(g) = g / (1 + exp(-g))
const BLOCKS: u32 = 2u;

fn coop_value(at: u32, factor: f32, unit: u32) -> vec4<f32> {
    let gate = vec4<f32>(coop_sums[at], coop_sums[at + 1u], coop_sums[at + 2u], coop_sums[at + 3u]) * factor;
    let up = vec4<f32>(coop_sums[at + 4u], coop_sums[at + 5u], coop_sums[at + 6u], coop_sums[at + 7u]) * factor;
    return gate / (vec4<f32>(1.0) + exp(-gate)) * up;
}
