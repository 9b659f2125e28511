// Adds the row of a table to each token of the residual stream, by its position.
//   hidden[t, c] += table[step_meta[positions_at + t], c]
//
// Shapes   table: [num_positions, columns], hidden: [num_tokens, columns] f32, columns a multiple of 4;
//          step_meta: the words of a step. A position beyond the table is skipped.
// Dispatch one invocation per four columns of a token, in a folded grid.
const ADD_POSITIONS_WG: u32 = 64u;

struct Params { num_tokens: u32, positions_at: u32, columns: u32, num_positions: u32 }

@group(0) @binding(0) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read_write> hidden: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(ADD_POSITIONS_WG)
fn add_positions(@builtin(workgroup_id) workgroup: vec3<u32>,
                 @builtin(num_workgroups) workgroups: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
    let quads = params.columns / 4u;
    let at = (workgroup.y * workgroups.x + workgroup.x) * ADD_POSITIONS_WG + lane;
    let token = at / quads;
    if (token >= params.num_tokens) { return; }
    let position = step_meta[params.positions_at + token];
    if (position < params.num_positions) {
        hidden[at] += table[position * quads + at % quads];
    }
}
