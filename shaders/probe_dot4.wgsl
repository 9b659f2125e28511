// Products of packed 8-bit integers in registers alone: how many operations a second an adapter does.
//   w = x[2 i], q = x[2 i + 1], s_c = 0;  rounds times 4:
//       s_c[r] = s_c[r] + dot4(w[r], q[c]) for r, c = 0..4, wrapping;  then w = s_0
//   y[i] = s_0 ^ s_1 ^ s_2 ^ s_3
//
// Shapes   x: [2 num_invocations] vec4<u32>; y: [num_invocations] vec4<u32>
// Order    none: integers
// Dispatch an invocation for each element of y, workgroups of WG. A tile of 4 x 4, as a matmul has:
//          each word is used four times, and what is new in a round is a sum of the round before.
override WG: u32 = 64u;

struct Params { num_invocations: u32, rounds: u32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

struct Tile { a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32> }

fn probe_column(sum: vec4<i32>, w: vec4<u32>, q: u32) -> vec4<i32> {
    return sum + vec4<i32>(dot4I8Packed(w.x, q), dot4I8Packed(w.y, q),
                           dot4I8Packed(w.z, q), dot4I8Packed(w.w, q));
}

fn probe_tile(s: Tile, w: vec4<u32>, q: vec4<u32>) -> Tile {
    return Tile(probe_column(s.a, w, q.x), probe_column(s.b, w, q.y),
                probe_column(s.c, w, q.z), probe_column(s.d, w, q.w));
}

@compute @workgroup_size(WG)
fn probe_dot4(@builtin(global_invocation_id) id: vec3<u32>) {
    let invocation = id.x;
    if (invocation >= params.num_invocations) {
        return;
    }
    let w = x[2u * invocation];
    let q = x[2u * invocation + 1u];
    var s = probe_tile(Tile(), w, q);
    s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
    s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
    s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
    // counted from the invocation: see "What lavapipe taught"
    for (var round = invocation + 1u; round < invocation + params.rounds; round++) {
        s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
        s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
        s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
        s = probe_tile(s, bitcast<vec4<u32>>(s.a), q);
    }
    y[invocation] = bitcast<vec4<u32>>((s.a ^ s.b) ^ (s.c ^ s.d));
}
