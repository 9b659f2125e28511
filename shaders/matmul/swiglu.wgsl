// What becomes of four consecutive rows of a matmul: rows alternate between gate and up, and
//   y[token, row / 2] = silu(gate) * up,   silu(g) = g / (1 + exp(-g))
// is stored: the gated MLP without a pass of its own.
//   y   [num_tokens, y_stride], half as wide as the matmul
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn swiglu(gate: f32, up: f32) -> f32 {
    return gate / (1.0 + exp(-gate)) * up;
}

fn epilogue(token: u32, row: u32, value: vec4<f32>) {
    let at = token * params.y_stride + (params.first_row + row) / 2u;
    if (row < params.num_rows) { y[at] = swiglu(value.x, value.y); }
    if (row + 2u < params.num_rows) { y[at + 1u] = swiglu(value.z, value.w); }
}
