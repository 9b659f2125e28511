// How an invocation of matmul gets a group's activations: it loads them all.
fn matmul_hold(token_at: u32, group: u32, index: u32) -> vec4<f32> {
    return vec4<f32>(0.0);
}

// The group's first 16.
fn matmul_x_low(held: vec4<f32>, token_at: u32, group: u32) -> mat4x4<f32> {
    let k4 = group * 8u;
    return mat4x4<f32>(matmul_load(token_at, k4), matmul_load(token_at, k4 + 1u),
                       matmul_load(token_at, k4 + 2u), matmul_load(token_at, k4 + 3u));
}

// The group's last 16.
fn matmul_x_high(held: vec4<f32>, token_at: u32, group: u32) -> mat4x4<f32> {
    let k4 = group * 8u + 4u;
    return mat4x4<f32>(matmul_load(token_at, k4), matmul_load(token_at, k4 + 1u),
                       matmul_load(token_at, k4 + 2u), matmul_load(token_at, k4 + 3u));
}
