// How an invocation of matmul gets a group's activations: of eight neighbours each loads four, and
// all hear the others'. Needs LANES = 1, so that neighbours are at the same group, and subgroups of at
// least eight invocations in the order of their index. Pays where a load is dear and a lane is a
// CPU's: an eighth of the loads, the same bits.
fn matmul_hold(token_at: u32, group: u32, index: u32) -> vec4<f32> {
    return matmul_load(token_at, group * 8u + index % 8u);
}

// The group's first 16.
fn matmul_x_low(held: vec4<f32>, token_at: u32, group: u32) -> mat4x4<f32> {
    return mat4x4<f32>(subgroupBroadcast(held, 0u), subgroupBroadcast(held, 1u),
                       subgroupBroadcast(held, 2u), subgroupBroadcast(held, 3u));
}

// The group's last 16.
fn matmul_x_high(held: vec4<f32>, token_at: u32, group: u32) -> mat4x4<f32> {
    return mat4x4<f32>(subgroupBroadcast(held, 4u), subgroupBroadcast(held, 5u),
                       subgroupBroadcast(held, 6u), subgroupBroadcast(held, 7u));
}
