// What becomes of four consecutive rows of a matmul: they are stored.
//   y   [num_tokens, y_stride]
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn epilogue(token: u32, row: u32, value: vec4<f32>) {
    let at = token * params.y_stride + params.first_row + row;
    for (var i = 0u; i < 4u; i++) {
        if (row + i < params.num_rows) { y[at + i] = value[i]; }
    }
}
