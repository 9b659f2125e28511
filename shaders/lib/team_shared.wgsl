// Teams of eight, through workgroup memory: needs no capability. Call it in uniform control flow,
// from every invocation of the workgroup.
override TEAM_SLOTS: u32 = 8u; // members in a workgroup
override TEAM_KEPT: u32 = 8u;  // TEAM_SLOTS times the places of team_keep
const TEAM_SPELLED: bool = false; // team_from takes any number

var<workgroup> team_slots: array<vec4<f32>, TEAM_SLOTS>;
var<workgroup> team_kept: array<vec4<f32>, TEAM_KEPT>;

// What the eight members of the own team hold. `slot` counts members over the whole workgroup;
// who is no member, or speaks for none, passes `speaks` = false and hears the same.
fn team_all(value: vec4<f32>, slot: u32, speaks: bool) -> array<vec4<f32>, 8> {
    workgroupBarrier(); // what was there may still be read
    if (speaks) { team_slots[slot] = value; }
    workgroupBarrier();
    let first = slot / 8u * 8u;
    return array<vec4<f32>, 8>(team_slots[first], team_slots[first + 1u], team_slots[first + 2u], team_slots[first + 3u],
                               team_slots[first + 4u], team_slots[first + 5u], team_slots[first + 6u], team_slots[first + 7u]);
}

// What a member keeps for the others to hear, as often as they like, after team_told: where the
// team's eight are. A place may be used again when team_told was called after it was last heard.
alias TeamKept = u32;

fn team_keep(value: vec4<f32>, place: u32, slot: u32) -> TeamKept {
    team_kept[place * TEAM_SLOTS + slot] = value;
    return place * TEAM_SLOTS + slot / 8u * 8u;
}

fn team_told() {
    workgroupBarrier();
}

// What all eight keep in one place.
fn team_heard(kept: TeamKept) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(team_kept[kept], team_kept[kept + 1u], team_kept[kept + 2u], team_kept[kept + 3u],
                               team_kept[kept + 4u], team_kept[kept + 5u], team_kept[kept + 6u], team_kept[kept + 7u]);
}

// What one keeps.
fn team_from(kept: TeamKept, member: u32) -> vec4<f32> {
    return team_kept[kept + member];
}
