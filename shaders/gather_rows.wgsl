// Picks rows: the last token of each sequence, before the head.
//   y[r, c] = x[rows[rows_at + r], c]
//
// Shapes   x: [x_rows, columns], y: [num_rows, columns] words in units of four; rows: the words of a
//          step. A row number beyond x is skipped.
// Dispatch one invocation per four columns, in a folded grid.
const GATHER_ROWS_WG: u32 = 64u;

struct Params { num_rows: u32, rows_at: u32, columns: u32, x_rows: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(GATHER_ROWS_WG)
fn gather_rows(@builtin(workgroup_id) workgroup: vec3<u32>,
               @builtin(num_workgroups) workgroups: vec3<u32>,
               @builtin(local_invocation_index) lane: u32) {
    let columns4 = params.columns / 4u;
    let at = (workgroup.y * workgroups.x + workgroup.x) * GATHER_ROWS_WG + lane;
    let r = at / columns4;
    if (r >= params.num_rows) { return; }
    let source = rows[params.rows_at + r];
    if (source < params.x_rows) {
        y[at] = x[source * columns4 + at % columns4];
    }
}
