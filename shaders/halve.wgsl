// Activation records as rows of f16, for matmul_coop. A power of two brings each token's largest value
// to 2^10 .. 2^11, so that nothing overflows and what underflows is less than 2^-35 of the largest.
//   y[t, k] = f16(x[t, k] * 2^e[t]),   factor[t] = 2^-e[t] * (the norm's factor)
//
// Shapes   x: [num_tokens][num_groups] records of f32; halves: [num_tokens][num_groups * 4 + 1] vec4<u32>,
//          a token's values, eight to a vec4, then its factor, 0, 0, 0
// Order    of the norm's factor that of matmul/norm_rms; else a maximum and one rounding, which have none
// Dispatch a workgroup for each token, a folded grid the tokens
// Parts    act/f32, matmul/norm_none or norm_rms
override WG: u32 = 64u;

struct Params { num_tokens: u32, num_groups: u32, eps: f32, norm_columns: f32 }

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> halves: array<vec4<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> halve_peaks: array<f32, WG>;

// The four values of quad `quad` of a token's row.
fn halve_quad(x_at: u32, quad: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(x[x_at + quad / 8u * ACT_VEC4 + quad % 8u]);
}

@compute @workgroup_size(WG)
fn halve(@builtin(workgroup_id) workgroup: vec3<u32>,
         @builtin(num_workgroups) workgroups: vec3<u32>,
         @builtin(local_invocation_index) lane: u32) {
    let token = workgroup.y * workgroups.x + workgroup.x;
    // Workgroups past the last token repeat it and store nothing.
    let x_at = min(token, params.num_tokens - 1u) * params.num_groups * ACT_VEC4;
    var peak = 0.0;
    for (var quad = lane; quad < params.num_groups * 8u; quad += WG) {
        let v = abs(halve_quad(x_at, quad));
        peak = max(peak, max(max(v.x, v.y), max(v.z, v.w)));
    }
    halve_peaks[lane] = peak;
    workgroupBarrier();
    for (var i = 0u; i < WG; i++) { peak = max(peak, halve_peaks[i]); }
    // Of the largest value 2^a .. 2^(a + 1) the biased exponent, kept where both powers of two are
    // normal numbers.
    let exponent = clamp(bitcast<u32>(peak) >> 23u, 11u, 254u);
    let scale = bitcast<f32>((264u - exponent) << 23u);
    let inverse = bitcast<f32>((exponent - 10u) << 23u);
    let factor = matmul_factor(x_at, lane) * inverse;
    if (token >= params.num_tokens) {
        return;
    }
    let to = token * (params.num_groups * 4u + 1u);
    for (var i = lane; i < params.num_groups * 4u; i += WG) {
        let low = halve_quad(x_at, 2u * i) * scale;
        let high = halve_quad(x_at, 2u * i + 1u) * scale;
        halves[to + i] = vec4<u32>(pack2x16float(low.xy), pack2x16float(low.zw),
                                   pack2x16float(high.xy), pack2x16float(high.zw));
    }
    if (lane == 0u) {
        halves[to + params.num_groups * 4u] = vec4<u32>(bitcast<u32>(factor), 0u, 0u, 0u);
    }
}
