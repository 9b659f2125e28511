// Adds a norm's result to the residual stream, and packs the stream, times the weight of the norm that
// follows, for the next matmul.
//   hidden[t, c] += scale * y[t, c] / sqrt(mean of y[t]^2 + eps) * weight[c]
//   act_out[t]    = records of hidden[t, c] * gamma[c], with the sums of squares of hidden
//
// Shapes   y, hidden: [num_tokens, columns] f32, hidden in place; weight, gamma: [columns];
//          act_out: [num_tokens][records of 32 columns]; columns a multiple of 4.
// Order    lane l has every WG-th four columns of y from the l-th on, each of the four a chain; (0 + 1) +
//          (2 + 3), then the tree of lib/row_*. The factor, rounded with scale, times y, then one fma.
// Dispatch a workgroup for each `slice` records of a token, a folded grid the slices; each adds up the
//          squares of the whole row. A team of eight has a record.
// Parts    act/*_store, act/record, lib/team_*, lib/row_*
struct Params { num_tokens: u32, columns: u32, slice: u32, eps: f32, scale: f32 }

@group(0) @binding(0) var<storage, read> y: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> hidden: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> gamma: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> act_out: array<ActWords>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn add_norm(@builtin(workgroup_id) workgroup: vec3<u32>,
            @builtin(num_workgroups) workgroups: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
    let quads = params.columns / 4u;
    let records = (params.columns + 31u) / 32u;
    let slices = (records + params.slice - 1u) / params.slice;
    let number = workgroup.y * workgroups.x + workgroup.x;
    // Workgroups past the last token repeat it and store nothing.
    let token = min(number / slices, params.num_tokens - 1u);
    let at = token * quads;

    var squares = vec4<f32>(0.0);
    for (var quad = lane; quad < quads; quad += WG) {
        let value = y[at + quad];
        squares = fma(value, value, squares);
    }
    let total = row_sum((squares.x + squares.y) + (squares.z + squares.w), lane);
    let factor = inverseSqrt(total / f32(params.columns) + params.eps) * params.scale;

    let first = number % slices * params.slice;
    let end = min(first + params.slice, records);
    for (var turn = first; turn < end; turn += WG / 8u) {
        let record = turn + lane / 8u;
        let quad = record * 8u + lane % 8u;
        let live = record < end && number / slices < params.num_tokens;
        var own = vec4<f32>(0.0); // zeros past the last column
        var own_squares = 0.0;
        if (live && quad < quads) {
            let next = fma(y[at + quad] * factor, weight[quad], hidden[at + quad]);
            hidden[at + quad] = next;
            own = next * gamma[quad];
            own_squares = act_squares(next);
        }
        let all = team_all(own, lane, true);
        let all_squares = team_all(vec4<f32>(own_squares), lane, true);
        if (live) {
            act_store(token * records + record, lane % 8u, own, all, act_join(all_squares));
        }
    }
}
