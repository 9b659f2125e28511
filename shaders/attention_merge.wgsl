// Folds the partial states that the attention kernel left of a token's splits, and normalises.
//   out[t, h] = fold over splits, ascending, by lib/softmax;  divided by the folded sum
//
// Shapes   partials: [slot][head][head_dim + 4] f32: unnormalised result, then m, l, 0, 0;
//          out, act_out: see attention/out_*.
// Rows     four words each in step_meta from rows_at on:
//            0 token       row of out          2 slot0   partials of split 0
//            1 num_splits                      3 stride  slots from one split to the next
// Dispatch one invocation per row, head and eight dims.
// Parts    attention/out_*, act/*, lib/team_*, lib/softmax
override HEAD_DIM: u32 = 64u;

struct Params { rows_at: u32, num_rows: u32, num_heads: u32 }

@group(0) @binding(1) var<storage, read> step_meta: array<u32>;
@group(0) @binding(2) var<storage, read> partials: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(TEAM_SLOTS)
fn attention_merge(@builtin(workgroup_id) workgroup: vec3<u32>,
                   @builtin(num_workgroups) workgroups: vec3<u32>,
                   @builtin(local_invocation_index) lane: u32) {
    let octs = HEAD_DIM / 8u;
    let index = (workgroup.y * workgroups.x + workgroup.x) * TEAM_SLOTS + lane;
    let oct = index % octs;
    let head = index / octs % params.num_heads;
    let row = index / octs / params.num_heads;
    let own = row < params.num_rows;
    let at = params.rows_at + min(row, max(params.num_rows, 1u) - 1u) * 4u;
    let token = step_meta[at];
    let num_splits = select(0u, step_meta[at + 1u], own);
    let slot0 = step_meta[at + 2u];
    let stride = step_meta[at + 3u];

    var fold = SoftmaxFold(SOFTMAX_MASKED, 0.0, 1.0, 0.0);
    var folded = mat2x4<f32>();
    for (var split = 0u; split < num_splits; split++) {
        let state = ((slot0 + split * stride) * params.num_heads + head) * (octs * 2u + 1u);
        let stats = partials[state + octs * 2u];
        fold = softmax_fold(fold.m, fold.l, stats.x, stats.y);
        folded = mat2x4<f32>(softmax_fold_values(folded[0], partials[state + oct * 2u], fold.keep, fold.add),
                             softmax_fold_values(folded[1], partials[state + oct * 2u + 1u], fold.keep, fold.add));
    }
    let value = mat2x4<f32>(softmax_normalise(folded[0], fold.l), softmax_normalise(folded[1], fold.l));
    attention_out(token, head, oct, value, lane, own);
}
