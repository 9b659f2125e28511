// Rows that a workgroup shares: what its invocations hold is added up, each of them ends with the sum.
// Eight teams of eight: each by the tree of act_join, then their sums by the same one. Call it in uniform
// control flow.
const WG: u32 = 64u; // invocations

var<workgroup> row_teams: array<f32, 8>;

fn row_sum(own: f32, lane: u32) -> f32 {
    // its barriers are after the last look at row_teams
    let team = act_join(team_all(vec4<f32>(own), lane, true));
    if (lane % 8u == 0u) { row_teams[lane / 8u] = team; }
    workgroupBarrier();
    return ((row_teams[0] + row_teams[1]) + (row_teams[2] + row_teams[3]))
         + ((row_teams[4] + row_teams[5]) + (row_teams[6] + row_teams[7]));
}
