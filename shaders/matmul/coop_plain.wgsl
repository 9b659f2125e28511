// A unit of matmul_coop is a block of four rows, and its values are their sums times the factor, which may
// have a bias.
const BLOCKS: u32 = 1u;

fn coop_value(at: u32, factor: f32, unit: u32) -> vec4<f32> {
    let sums = vec4<f32>(coop_sums[at], coop_sums[at + 1u], coop_sums[at + 2u], coop_sums[at + 3u]);
    return matmul_biased(sums, factor, unit);
}
