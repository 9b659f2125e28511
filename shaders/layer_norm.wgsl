// The residual stream, normalised, as activations for the matmul that follows.
//   mean = mean of hidden[t],   var = mean of (hidden[t] - mean)^2
//   act_out[t] = records of (hidden[t, c] - mean) / sqrt(var + eps) * weight[c] + bias[c]
//
// Shapes   hidden: [num_tokens, columns] f32; weight, bias: [columns]; act_out: [num_tokens][records of
//          32 columns], columns a multiple of 4; sums of squares are 0, since the norm is done.
// Order    of both sums: lane l has every WG-th four columns from the l-th on, each of the four a chain;
//          (0 + 1) + (2 + 3), then the tree of lib/row_*.
// Dispatch a workgroup for each `slice` records of a token, a folded grid the slices; each adds up the
//          whole row. A team of eight has a record.
// Parts    act/*_store, act/record, lib/team_*, lib/row_*
struct Params { num_tokens: u32, columns: u32, slice: u32, eps: f32 }

@group(0) @binding(0) var<storage, read> hidden: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> bias: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> act_out: array<ActWords>;
@group(1) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>,
              @builtin(num_workgroups) workgroups: vec3<u32>,
              @builtin(local_invocation_index) lane: u32) {
    let quads = params.columns / 4u;
    let records = (params.columns + 31u) / 32u;
    let slices = (records + params.slice - 1u) / params.slice;
    let number = workgroup.y * workgroups.x + workgroup.x;
    // Workgroups past the last token repeat it and store nothing.
    let token = min(number / slices, params.num_tokens - 1u);
    let at = token * quads;

    var sums = vec4<f32>(0.0);
    for (var quad = lane; quad < quads; quad += WG) {
        sums += hidden[at + quad];
    }
    let mean = row_sum((sums.x + sums.y) + (sums.z + sums.w), lane) / f32(params.columns);
    var squares = vec4<f32>(0.0);
    for (var quad = lane; quad < quads; quad += WG) {
        let centred = hidden[at + quad] - mean;
        squares = fma(centred, centred, squares);
    }
    let total = row_sum((squares.x + squares.y) + (squares.z + squares.w), lane);
    let factor = inverseSqrt(total / f32(params.columns) + params.eps);

    let first = number % slices * params.slice;
    let end = min(first + params.slice, records);
    for (var turn = first; turn < end; turn += WG / 8u) {
        let record = turn + lane / 8u;
        let quad = record * 8u + lane % 8u;
        let live = record < end && number / slices < params.num_tokens;
        let read = min(quad, quads - 1u);
        let normed = fma((hidden[at + read] - mean) * factor, weight[read], bias[read]);
        let own = select(vec4<f32>(0.0), normed, live && quad < quads); // zeros past the last column
        let all = team_all(own, lane, true);
        if (live) {
            act_store(token * records + record, lane % 8u, own, all, 0.0);
        }
    }
}
