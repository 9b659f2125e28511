// The embedding of each token: one row of the table, unpacked; and, times the weight of the first
// norm, packed for the first matmul.
//   hidden[t, c] = w[ids[ids_at + t] - first_row, c] * scale
//
// Shapes   w: a shard of the table, [num_rows, columns] in blocks of 4 rows and groups of 32
//          columns; ids: the words of a step; hidden: [num_tokens, columns] f32; act_out:
//          [num_tokens][records of 32 columns]; gamma: [columns]; columns a multiple of 4.
// Skipped  ids outside of the shard: another shard's dispatch writes them.
// Rounding one product of an integer and its scale, or none: exactly the value that was packed; then one
//          product with the factor that a model has for all of them, which is 1 in most.
// Dispatch teams of eight invocations; a team has 32 columns of a token, a folded grid the teams.
// Parts    quant/*, act/*, act/record, lib/team_*
override WG: u32 = 8u;

struct Params { num_tokens: u32, ids_at: u32, columns: u32, first_row: u32, num_rows: u32, scale: f32 }

@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> hidden: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> act_out: array<ActWords>;
@group(0) @binding(5) var<storage, read> gamma: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn embedding(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let records = (params.columns + 31u) / 32u;
    let team = (workgroup.y * workgroups.x + workgroup.x) * (WG / 8u) + lane / 8u;
    let record = team % records;
    let member = lane % 8u;
    let quad = record * 8u + member;
    let token = min(team / records, params.num_tokens - 1u);
    let row = ids[params.ids_at + token] - params.first_row; // wraps far up for an earlier shard's id
    let live = team < records * params.num_tokens && row < params.num_rows;

    var own = vec4<f32>(0.0); // zeros past the last column
    var squares = 0.0;
    if (live && quad < params.columns / 4u) {
        let at = row / 4u * records + record;
        let columns = quant_columns(quant_group(at), member);
        let scales = quant_scale(at);
        let r = row % 4u;
        let value = vec4<f32>(columns[0][r], columns[1][r], columns[2][r], columns[3][r]) * scales[r] * params.scale;
        hidden[token * (params.columns / 4u) + quad] = value;
        own = value * gamma[quad];
        squares = act_squares(value);
    }
    let all = team_all(own, lane, true);
    let all_squares = team_all(vec4<f32>(squares), lane, true);
    if (live) {
        act_store(token * records + record, member, own, all, act_join(all_squares));
    }
}
