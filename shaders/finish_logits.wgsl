// What a family does to its logits, in place.
//   logits[i] = what finish_logits/cap_* makes of logits[i] * scale
//
// Shapes   logits: num_logits f32, row after row.
// Dispatch 64 invocations have 256 neighbours, four each, in a folded grid.
// Parts    finish_logits/cap_*
const FINISH_LOGITS_WG: u32 = 64u;

struct Params { num_logits: u32, scale: f32, cap: f32 }

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(FINISH_LOGITS_WG)
fn finish_logits(@builtin(workgroup_id) workgroup: vec3<u32>,
                 @builtin(num_workgroups) workgroups: vec3<u32>,
                 @builtin(local_invocation_index) lane: u32) {
    let first = (workgroup.y * workgroups.x + workgroup.x) * 4u * FINISH_LOGITS_WG + lane;
    for (var at = first; at < min(first + 4u * FINISH_LOGITS_WG, params.num_logits); at += FINISH_LOGITS_WG) {
        logits[at] = finish_cap(logits[at] * params.scale);
    }
}
