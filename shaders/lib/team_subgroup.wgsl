// Teams of eight, by subgroup broadcasts: a workgroup is one team of eight neighbours, and subgroups
// have at least eight invocations in the order of their index. Call it in uniform control flow.
const TEAM_SLOTS: u32 = 8u; // members in a workgroup
const TEAM_SPELLED: bool = true; // team_from wants a literal

// What the eight members of the team hold. `slot` is the own index, and everybody speaks.
fn team_all(value: vec4<f32>, slot: u32, speaks: bool) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(subgroupBroadcast(value, 0u), subgroupBroadcast(value, 1u), subgroupBroadcast(value, 2u), subgroupBroadcast(value, 3u),
                               subgroupBroadcast(value, 4u), subgroupBroadcast(value, 5u), subgroupBroadcast(value, 6u), subgroupBroadcast(value, 7u));
}

// What a member keeps for the others to hear, as often as they like, after team_told.
alias TeamKept = vec4<f32>;

fn team_keep(value: vec4<f32>, place: u32, slot: u32) -> TeamKept {
    return value;
}

fn team_told() {}

// What all eight keep in one place.
fn team_heard(kept: TeamKept) -> array<vec4<f32>, 8> {
    return team_all(kept, 0u, true);
}

// What one keeps: `member` is a constant.
fn team_from(kept: TeamKept, member: u32) -> vec4<f32> {
    switch (member) {
        case 0u: { return subgroupBroadcast(kept, 0u); }
        case 1u: { return subgroupBroadcast(kept, 1u); }
        case 2u: { return subgroupBroadcast(kept, 2u); }
        case 3u: { return subgroupBroadcast(kept, 3u); }
        case 4u: { return subgroupBroadcast(kept, 4u); }
        case 5u: { return subgroupBroadcast(kept, 5u); }
        case 6u: { return subgroupBroadcast(kept, 6u); }
        default: { return subgroupBroadcast(kept, 7u); }
    }
}
