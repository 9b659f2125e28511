// What becomes of four values of a matmul: they are stored.
//   y   [num_tokens, out_columns] f32
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

fn matmul_out(token: u32, unit: u32, value: vec4<f32>, live: bool, index: u32) {
    let at = token * params.out_columns + params.first_row + unit * 4u;
    for (var i = 0u; i < 4u; i++) {
        if (live && unit * 4u + i < params.num_rows) { y[at + i] = value[i]; }
    }
}
