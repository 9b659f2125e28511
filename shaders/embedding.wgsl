// The embedding of each token: one row of the table, unpacked.
//   y[t, c] = w[ids[ids_at + t] - first_row, c] * scale
//
// Shapes   w: a shard of the table, [num_rows, columns] in blocks of 4 rows and groups of 32
//          columns; ids: the words of a step; y: [num_tokens, columns] f32; columns a multiple of 4.
// Skipped  ids outside of the shard: another shard's dispatch writes them.
// Rounding one product of an integer and its scale, or none: exactly the value that was packed.
// Dispatch one invocation per 16 columns of a token, in a folded grid.
// Parts    quant/*
const EMBEDDING_WG: u32 = 64u;

struct Params { num_tokens: u32, ids_at: u32, columns: u32, first_row: u32, num_rows: u32 }

@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(EMBEDDING_WG)
fn embedding(@builtin(workgroup_id) workgroup: vec3<u32>,
             @builtin(num_workgroups) workgroups: vec3<u32>,
             @builtin(local_invocation_index) lane: u32) {
    let halves = (params.columns + 15u) / 16u;
    let unit = (workgroup.y * workgroups.x + workgroup.x) * EMBEDDING_WG + lane;
    let token = unit / halves;
    if (token >= params.num_tokens) { return; }
    let row = ids[params.ids_at + token] - params.first_row; // wraps far up for an earlier shard's id
    if (row >= params.num_rows) { return; }

    let half = unit % halves;
    let at = row / 4u * ((params.columns + 31u) / 32u) + half / 2u;
    let weights = quant_w16(at, row % 4u, half % 2u);
    let scales = quant_scale(at);
    let scale = scales[row % 4u];
    let columns4 = params.columns / 4u;
    for (var i = 0u; i < 4u; i++) {
        let c4 = half * 4u + i;
        if (c4 < columns4) { y[token * columns4 + c4] = weights[i] * scale; }
    }
}
