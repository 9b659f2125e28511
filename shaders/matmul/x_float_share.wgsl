// How an invocation of matmul gets a group's f32 activations: of eight neighbours each loads four,
// and all hear the others'. Needs LANES = 1, so that neighbours are at the same group, and subgroups of
// at least eight invocations in the order of their index. Pays where a load is dear and a lane is a
// CPU's: an eighth of the loads, the same bits.
fn matmul_hold(source: u32, index: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(x[source + index % 8u]);
}

// Columns 4 j .. 4 j + 3 of the group, for each j.
fn matmul_x0(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 0u); }
fn matmul_x1(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 1u); }
fn matmul_x2(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 2u); }
fn matmul_x3(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 3u); }
fn matmul_x4(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 4u); }
fn matmul_x5(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 5u); }
fn matmul_x6(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 6u); }
fn matmul_x7(held: vec4<f32>, source: u32) -> vec4<f32> { return subgroupBroadcast(held, 7u); }
