// Joins LANES neighbouring invocations by a tree over distances 1, 2, 4, ...: every lane ends with
// the same sum, in the same order on every adapter. Subgroup form: the subgroup has at least LANES
// invocations. Call it in uniform control flow, from every invocation of the workgroup.
override LANES: u32 = 1u;
override WG: u32 = 64u;

fn lanes_sum(value: vec4<f32>, index: u32) -> vec4<f32> {
    var sum = value;
    for (var distance = 1u; distance < LANES; distance *= 2u) {
        sum += subgroupShuffleXor(sum, distance);
    }
    return sum;
}
