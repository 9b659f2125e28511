// Joins LANES neighbouring invocations by a tree over distances 1, 2, 4, ...: every lane ends with
// the same sum, in the same order on every adapter. Workgroup memory form: needs no capability.
// Call it in uniform control flow, from every invocation of the workgroup.
override LANES: u32 = 1u;
override WG: u32 = 64u;

var<workgroup> lanes_shared: array<vec4<f32>, WG>;

fn lanes_sum(value: vec4<f32>, index: u32) -> vec4<f32> {
    var sum = value;
    for (var distance = 1u; distance < LANES; distance *= 2u) {
        lanes_shared[index] = sum;
        workgroupBarrier();
        sum += lanes_shared[index ^ distance];
        workgroupBarrier();
    }
    return sum;
}
