// Matrix times activations, weights in any format of shaders/quant, activations as the records of
// shaders/act; norm, bias, rotation, gate, residual and packing for the next matmul included.
//   out[t, r] = factor[t] * sum_k w[r, k] * x[t, k] + bias[r],   then what matmul/out_* makes of it
//
// Shapes   w: [num_rows, columns] in blocks of 4 rows and groups of 32 columns; x: [num_tokens]
//          [num_groups] records; rows ragged as they like, columns padded by zeros in w and in x.
// Order    for a format and a number of columns, one order whatever the number of tokens: lane l
//          takes groups l, l + LANES, ... ascending; inside a group matmul/dot_*; lanes are joined by
//          the tree of lib/lanes. The factor (matmul/norm_*) is applied to the joined sum, then the bias.
// Dispatch LANES invocations share one unit, a block of rows (two where a gate is applied), and
//          TOKENS tokens; x, y: units, z: tiles of tokens. Eight units are a team: 32 outputs, one
//          record of the next activations.
// Parts    quant/*, act/*, matmul/dot_*, matmul/x_*, matmul/tokens_*, lib/lanes*, matmul/norm_*,
//          matmul/value_*, matmul/out_*; matmul/bias or bias_none where a unit is one block, lib/gelu;
//          act/record and lib/team_* where records are written
struct Params {
    num_tokens: u32, num_rows: u32, num_groups: u32, first_row: u32, out_columns: u32, eps: f32, norm_columns: f32,
    slots_at: u32, rope_at: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32, scale: f32,
}

@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(num_workgroups) workgroups: vec3<u32>,
          @builtin(local_invocation_index) index: u32) {
    let lane = index % LANES;
    let num_units = (params.num_rows + 4u * BLOCKS - 1u) / (4u * BLOCKS);
    let own_unit = (workgroup.y * workgroups.x + workgroup.x) * (WG / LANES) + index / LANES;
    // Invocations past the last unit repeat it and store nothing: what follows wants all of them.
    let unit = min(own_unit, num_units - 1u);

    let token0 = workgroup.z * TOKENS;
    var x_at: array<u32, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        x_at[t] = min(token0 + t, params.num_tokens - 1u) * params.num_groups * ACT_VEC4;
    }
    let values = matmul_value(unit, x_at, lane, index);
    for (var t = 0u; t < TOKENS; t++) {
        let live = lane == 0u && own_unit < num_units && token0 + t < params.num_tokens;
        matmul_out(token0 + t, own_unit, values[t], live, index);
    }
}
