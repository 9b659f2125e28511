// Rows that a workgroup shares: what its invocations hold is added up, each of them ends with the sum.
// One team of eight, by the tree of act_join. Call it in uniform control flow.
const WG: u32 = 8u; // invocations

fn row_sum(own: f32, lane: u32) -> f32 {
    return act_join(team_all(vec4<f32>(own), lane, true));
}
