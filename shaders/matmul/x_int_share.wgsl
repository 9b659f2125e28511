// How an invocation of matmul gets a group's 8-bit activations: of eight neighbours each loads one of
// the record's three parts, and all hear the others'. Needs what x_float_share needs.
fn matmul_hold(source: u32, index: u32) -> vec4<u32> {
    return x[source + min(index % 8u, 2u)];
}

fn matmul_x0(held: vec4<u32>, source: u32) -> vec4<u32> { return subgroupBroadcast(held, 0u); }
fn matmul_x1(held: vec4<u32>, source: u32) -> vec4<u32> { return subgroupBroadcast(held, 1u); }
fn matmul_x_scale(held: vec4<u32>, source: u32) -> f32 { return bitcast<f32>(subgroupBroadcast(held.x, 2u)); }
