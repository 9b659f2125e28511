// Rows of f32 as activation records, where no kernel that made them could pack them.
//   act_out[t] = records of x[t, :]
//
// Shapes   x: [num_tokens, columns] f32, columns a multiple of 4; act_out: [num_tokens][records of 32
//          columns]; sums of squares are 0, since no norm follows.
// Order    none: a maximum, and one rounding.
// Dispatch teams of eight invocations; a team has 32 columns of a token, a folded grid the teams.
// Parts    act/*, lib/team_*
override WG: u32 = 8u;

struct Params { num_tokens: u32, columns: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> act_out: array<ActWords>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn pack(@builtin(workgroup_id) workgroup: vec3<u32>,
        @builtin(num_workgroups) workgroups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
    let records = (params.columns + 31u) / 32u;
    let team = (workgroup.y * workgroups.x + workgroup.x) * (WG / 8u) + lane / 8u;
    let live = team < records * params.num_tokens;
    let quads = params.columns / 4u;
    let quad = team % records * 8u + lane % 8u;
    let at = min(team / records, params.num_tokens - 1u) * quads + min(quad, quads - 1u);
    let own = select(vec4<f32>(0.0), x[at], live && quad < quads); // zeros past the last column
    let all = team_all(own, lane, true);
    if (live) {
        act_store(team, lane % 8u, own, all, 0.0);
    }
}
