// Teams of eight, by subgroup broadcasts: a workgroup is one team of eight neighbours, and subgroups
// have at least eight invocations in the order of their index. Call it in uniform control flow.

// What the eight members of the team hold. `slot` is the own index, and everybody speaks.
fn team_all(value: vec4<f32>, slot: u32, speaks: bool) -> array<vec4<f32>, 8> {
    return array<vec4<f32>, 8>(subgroupBroadcast(value, 0u), subgroupBroadcast(value, 1u), subgroupBroadcast(value, 2u), subgroupBroadcast(value, 3u),
                               subgroupBroadcast(value, 4u), subgroupBroadcast(value, 5u), subgroupBroadcast(value, 6u), subgroupBroadcast(value, 7u));
}
