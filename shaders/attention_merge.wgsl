// Folds the partial states that the attention kernel left of a token's splits, and normalises.
//   out[t, h] = fold over splits, ascending, by lib/softmax;  divided by the folded sum
//
// Shapes   partials: [slot][head][head_dim + 4] f32: unnormalised result, then m, l, 0, 0;
//          out: [num_tokens, num_heads, head_dim] f32.
// Rows     four words each in step_meta from rows_at on:
//            0 token       row of out          2 slot0   partials of split 0
//            1 num_splits                      3 stride  slots from one split to the next
// Dispatch one invocation per row, head and four dims.
// Parts    lib/softmax
const ATTENTION_MERGE_WG: u32 = 64u;

struct Params { rows_at: u32, num_rows: u32, num_heads: u32, head_dim: u32 }

@group(0) @binding(0) var<storage, read> step_meta: array<u32>;
@group(0) @binding(1) var<storage, read> partials: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(ATTENTION_MERGE_WG)
fn attention_merge(@builtin(workgroup_id) workgroup: vec3<u32>,
                   @builtin(num_workgroups) workgroups: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
    let quads = params.head_dim / 4u;
    let index = (workgroup.y * workgroups.x + workgroup.x) * ATTENTION_MERGE_WG + lane;
    let quad = index % quads;
    let head = index / quads % params.num_heads;
    let row = index / quads / params.num_heads;
    if (row >= params.num_rows) {
        return;
    }
    let at = params.rows_at + row * 4u;
    let token = step_meta[at];
    let num_splits = step_meta[at + 1u];
    let slot0 = step_meta[at + 2u];
    let stride = step_meta[at + 3u];

    var fold = SoftmaxFold(SOFTMAX_MASKED, 0.0, 1.0, 0.0);
    var folded = vec4<f32>(0.0);
    for (var split = 0u; split < num_splits; split++) {
        let state = ((slot0 + split * stride) * params.num_heads + head) * (quads + 1u);
        let stats = partials[state + quads];
        fold = softmax_fold(fold.m, fold.l, stats.x, stats.y);
        folded = softmax_fold_values(folded, partials[state + quad], fold.keep, fold.add);
    }
    out[(token * params.num_heads + head) * quads + quad] = softmax_normalise(folded, fold.l);
}
