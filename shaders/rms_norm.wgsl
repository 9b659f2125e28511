// RMSNorm over the last axis.
//   y[r, c] = x[r, c] * inverseSqrt(mean_c(x[r, c]^2) + eps) * weight[c]
//
// Shapes   x, y: [num_rows, hidden]; weight: [hidden]. f32 in, f32 out, f32 sum.
// Order    one partial sum per 32 elements, each in ascending order; partials folded ascending.
// Dispatch one workgroup per row; lanes stride over partials, then over columns.
const RMS_NORM_WG: u32 = 64u;
const RMS_NORM_PARTIAL: u32 = 32u;

struct Params { num_rows: u32, hidden: u32, eps: f32 }

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> rms_norm_partials: array<f32, 1024>;

@compute @workgroup_size(RMS_NORM_WG)
fn rms_norm(@builtin(workgroup_id) workgroup: vec3<u32>,
            @builtin(local_invocation_index) lane: u32) {
    let row = workgroup.x * params.hidden;
    let num_partials = (params.hidden + RMS_NORM_PARTIAL - 1u) / RMS_NORM_PARTIAL;

    for (var p = lane; p < num_partials; p += RMS_NORM_WG) {
        let end = min((p + 1u) * RMS_NORM_PARTIAL, params.hidden);
        var sum = 0.0;
        for (var c = p * RMS_NORM_PARTIAL; c < end; c++) {
            let value = x[row + c];
            sum = fma(value, value, sum);
        }
        rms_norm_partials[p] = sum;
    }
    workgroupBarrier();

    // Every lane folds all partials: cheaper than a second barrier, and the same bits in each.
    var total = 0.0;
    for (var p = 0u; p < num_partials; p++) {
        total += rms_norm_partials[p];
    }
    let scale = inverseSqrt(total / f32(params.hidden) + params.eps);
    for (var c = lane; c < params.hidden; c += RMS_NORM_WG) {
        y[row + c] = x[row + c] * scale * weight[c];
    }
}
