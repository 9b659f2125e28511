// The values of four rows of a matmul with a bias: their sums times the factor of the norm, plus the bias.
// One rounding.
//   bias   [rows of all shards] f32, a multiple of 4
@group(0) @binding(7) var<storage, read> bias: array<vec4<f32>>;

// `unit` is the block of the shard; past its last one the values are stored by nobody.
fn matmul_biased(sums: vec4<f32>, factor: f32, unit: u32) -> vec4<f32> {
    let block = params.first_row / 4u + min(unit, (params.num_rows - 1u) / 4u);
    return fma(sums, vec4<f32>(factor), bias[block]);
}
