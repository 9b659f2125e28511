// What becomes of four values of a matmul: they are added to the residual stream, times a factor that is
// 1 in most models, and the sum, times the weight of the norm that follows, is packed for the next matmul.
//   hidden    [num_tokens, out_columns] f32, in place; each element belongs to one invocation
//   act_out   [num_tokens][records of 32 columns], with the sums of squares of hidden
//   gamma     [out_columns], the norm's weight
@group(0) @binding(3) var<storage, read_write> hidden: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> act_out: array<ActWords>;
@group(0) @binding(5) var<storage, read> gamma: array<vec4<f32>>;

fn matmul_out(token: u32, unit: u32, value: vec4<f32>, live: bool, index: u32) {
    let row = params.first_row + unit * 4u;
    var own = vec4<f32>(0.0); // zeros past the last column
    var squares = 0.0;
    if (live) {
        let at = (token * params.out_columns + row) / 4u;
        let next = fma(value, vec4<f32>(params.scale), hidden[at]);
        hidden[at] = next;
        own = next * gamma[row / 4u];
        squares = act_squares(next);
    }
    let speaks = index % LANES == 0u;
    let all = team_all(own, index / LANES, speaks);
    let all_squares = team_all(vec4<f32>(squares), index / LANES, speaks);
    let records = (params.out_columns + 31u) / 32u;
    let is_own = unit / 8u * 32u < params.num_rows; // what follows is another shard's
    if (speaks && token < params.num_tokens && is_own) {
        act_store(token * records + row / 32u, row / 4u % 8u, own, all, act_join(all_squares));
    }
}
