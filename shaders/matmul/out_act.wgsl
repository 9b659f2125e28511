// What becomes of four values of a matmul: they are packed for the next one.
//   act_out   [num_tokens][records of 32 columns]
@group(0) @binding(3) var<storage, read_write> act_out: array<ActWords>;

fn matmul_out(token: u32, unit: u32, value: vec4<f32>, live: bool, index: u32) {
    let row = params.first_row / BLOCKS + unit * 4u;
    let own = select(vec4<f32>(0.0), value, row < params.out_columns); // zeros past the last column
    let all = team_all(own, index / LANES, index % LANES == 0u);
    let records = (params.out_columns + 31u) / 32u;
    let is_own = unit / 8u * 32u < params.num_rows / BLOCKS; // what follows is another shard's
    if (index % LANES == 0u && token < params.num_tokens && is_own) {
        act_store(token * records + row / 32u, row / 4u % 8u, own, all, 0.0);
    }
}
