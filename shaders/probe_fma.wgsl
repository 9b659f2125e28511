// Multiplies and adds in registers alone: how many operations in f32 a second an adapter does.
//   c_k = x[i] + k for k = 0, 1, 2;  rounds times 16: c_k = fma(c_k, factor, addend)
//   y[i] = (c_0 + c_1) + c_2
//
// Shapes   x, y: [num_invocations] vec4<f32>
// Order    each chain in the order of its rounds
// Dispatch an invocation for each element, workgroups of WG. Three chains of four are 12
//          operations that wait for nobody: enough to cover the latency of one, and few enough to
//          stay in the 16 registers of a CPU.
override WG: u32 = 64u;

struct Params { num_invocations: u32, rounds: u32, factor: f32, addend: f32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

struct Chains { a: vec4<f32>, b: vec4<f32>, c: vec4<f32> }

fn probe_four(start: Chains, factor: vec4<f32>, addend: vec4<f32>) -> Chains {
    var s = start;
    s.a = fma(s.a, factor, addend);
    s.b = fma(s.b, factor, addend);
    s.c = fma(s.c, factor, addend);
    s.a = fma(s.a, factor, addend);
    s.b = fma(s.b, factor, addend);
    s.c = fma(s.c, factor, addend);
    s.a = fma(s.a, factor, addend);
    s.b = fma(s.b, factor, addend);
    s.c = fma(s.c, factor, addend);
    s.a = fma(s.a, factor, addend);
    s.b = fma(s.b, factor, addend);
    s.c = fma(s.c, factor, addend);
    return s;
}

@compute @workgroup_size(WG)
fn probe_fma(@builtin(global_invocation_id) id: vec3<u32>) {
    let invocation = id.x;
    if (invocation >= params.num_invocations) {
        return;
    }
    let factor = vec4<f32>(params.factor);
    let addend = vec4<f32>(params.addend);
    let start = x[invocation];
    var s = Chains(start, start + 1.0, start + 2.0);
    // counted from the invocation: see "What lavapipe taught"
    for (var round = invocation; round < invocation + params.rounds; round++) {
        s = probe_four(s, factor, addend);
        s = probe_four(s, factor, addend);
        s = probe_four(s, factor, addend);
        s = probe_four(s, factor, addend);
    }
    y[invocation] = (s.a + s.b) + s.c;
}
