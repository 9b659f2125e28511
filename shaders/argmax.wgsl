// The id of the largest logit of each row; ties go to the lowest id, NaN loses to everything.
//
// Twice the same reduction: slices of a row to one candidate each, then a row's candidates to one.
// Shapes   x: [num_rows, width] logits or candidates; y: [num_rows, num_slices] candidates, then
//          [num_rows] ids.
// Order    none: the largest (key, then lowest id) is the same in any order.
// Dispatch x: slices of ARGMAX_SLICE elements, y: rows.
// Parts    lib/order, argmax/{logits,candidates}
const ARGMAX_WG: u32 = 64u;
const ARGMAX_SLICE: u32 = 2048u;

struct Params { width: u32 }

@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> argmax_best: array<vec2<u32>, ARGMAX_WG>;

// Of two candidates (key, id), the one that wins.
fn argmax_better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

@compute @workgroup_size(ARGMAX_WG)
fn argmax(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(num_workgroups) workgroups: vec3<u32>,
          @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.y;
    let end = min((workgroup.x + 1u) * ARGMAX_SLICE, params.width);
    // Loses to every candidate, a NaN's included.
    var best = vec2<u32>(0u, 0xffffffffu);
    for (var i = workgroup.x * ARGMAX_SLICE + lane; i < end; i += ARGMAX_WG) {
        best = argmax_better(best, argmax_load(row * params.width + i, i));
    }
    argmax_best[lane] = best;
    workgroupBarrier();
    for (var distance = ARGMAX_WG / 2u; distance > 0u; distance /= 2u) {
        if (lane < distance) {
            argmax_best[lane] = argmax_better(argmax_best[lane], argmax_best[lane + distance]);
        }
        workgroupBarrier();
    }
    if (lane == 0u) {
        argmax_store(row * workgroups.x + workgroup.x, argmax_best[0]);
    }
}
