// How an invocation of matmul gets a group's 8-bit activations: it loads them.
fn matmul_hold(source: u32, index: u32) -> vec4<u32> {
    return vec4<u32>(0u);
}

fn matmul_x0(held: vec4<u32>, source: u32) -> vec4<u32> { return x[source]; }
fn matmul_x1(held: vec4<u32>, source: u32) -> vec4<u32> { return x[source + 1u]; }
fn matmul_x_scale(held: vec4<u32>, source: u32) -> f32 { return bitcast<f32>(x[source + 2u].x); }
