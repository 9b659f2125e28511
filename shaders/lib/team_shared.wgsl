// Teams of eight, through workgroup memory: needs no capability. Call it in uniform control flow,
// from every invocation of the workgroup.
override TEAM_SLOTS: u32 = 8u; // members in a workgroup

var<workgroup> team_slots: array<vec4<f32>, TEAM_SLOTS>;

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
