// Reads memory and does as little else as can be: how many bytes a second an adapter reads.
//   y[i] = the xor of all words that invocation i reads
//
// Shapes   x: [num_vecs] vec4<u32>; y: [num_invocations] u32
// Order    none: xor has none
// Dispatch an invocation for CHUNK vectors, workgroups folded; 8 loads a round, then the rest
// Parts    probe_stream/chunks or strided: which vectors are an invocation's
override WG: u32 = 64u;
override CHUNK: u32 = 256u;

struct Params { num_vecs: u32, num_invocations: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn probe_stream(@builtin(global_invocation_id) id: vec3<u32>,
                @builtin(num_workgroups) groups: vec3<u32>) {
    let invocation = id.y * groups.x * WG + id.x;
    if (invocation >= params.num_invocations) {
        return;
    }
    let first = stream_first(invocation);
    let stride = stream_stride();
    let end = stream_end(first);
    var sum = vec4<u32>(0u);
    var at = first;
    for (; at + 7u * stride < end; at += 8u * stride) {
        let a = x[at] ^ x[at + stride];
        let b = x[at + 2u * stride] ^ x[at + 3u * stride];
        let c = x[at + 4u * stride] ^ x[at + 5u * stride];
        let d = x[at + 6u * stride] ^ x[at + 7u * stride];
        sum ^= (a ^ b) ^ (c ^ d);
    }
    for (; at < end; at += stride) {
        sum ^= x[at];
    }
    y[invocation] = (sum.x ^ sum.y) ^ (sum.z ^ sum.w);
}
