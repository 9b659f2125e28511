// How an invocation of matmul gets a group's f32 activations: it loads them all.
fn matmul_hold(source: u32, index: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

// Columns 4 j .. 4 j + 3 of the group, for each j.
fn matmul_x0(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source]); }
fn matmul_x1(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 1u]); }
fn matmul_x2(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 2u]); }
fn matmul_x3(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 3u]); }
fn matmul_x4(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 4u]); }
fn matmul_x5(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 5u]); }
fn matmul_x6(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 6u]); }
fn matmul_x7(held: vec4<f32>, source: u32) -> vec4<f32> { return bitcast<vec4<f32>>(x[source + 7u]); }
