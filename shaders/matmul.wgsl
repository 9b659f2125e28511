// Matrix times activations, weights in any format of shaders/quant.
//   out[t, r] = sum_k w[r, k] * x[t, k],   then the epilogue: store, add, swiglu
//
// Shapes   w: [num_rows, columns] in blocks of 4 rows and groups of 32 columns; x: [num_tokens,
//          x_stride / 4] vec4 f32; rows and columns ragged as they like, columns a multiple of 4.
// Order    for a format and a number of columns, one order whatever the number of tokens: lane l
//          takes groups l, l + LANES, ... ascending; inside a group 8 vec4 fma, then
//          (x + y) + (z + w); lanes are joined by the tree of lib/lanes.
// Dispatch LANES invocations share 4 rows and TOKENS tokens; x, y: blocks of rows, z: tiles of tokens.
// Parts    quant/*, lib/lanes*, matmul/tokens_*, matmul/{store,add,swiglu}
override RAGGED: u32 = 0u; // 1 where columns are no multiple of 32: the last group is cut

struct Params { num_tokens: u32, num_rows: u32, columns: u32, x_stride: u32, y_stride: u32, first_row: u32 }

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

// Four activations of a token, `k4` in units of four; zero past the last column.
fn matmul_x(token_at: u32, k4: u32) -> vec4<f32> {
    if (RAGGED == 1u) {
        let last = params.columns / 4u - 1u;
        return select(vec4<f32>(0.0), x[token_at + min(k4, last)], k4 <= last);
    }
    return x[token_at + k4];
}

fn matmul_join(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(num_workgroups) workgroups: vec3<u32>,
          @builtin(local_invocation_index) index: u32) {
    let lane = index % LANES;
    let block = (workgroup.y * workgroups.x + workgroup.x) * (WG / LANES) + index / LANES;
    let num_groups = (params.columns + 31u) / 32u;
    let in_range = block * 4u < params.num_rows;
    // Invocations past the last block take no group: a barrier follows, so they may not return.
    let end = select(0u, num_groups, in_range);

    let token0 = workgroup.z * TOKENS;
    var x_at: array<u32, TOKENS>;
    var sum: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        x_at[t] = min(token0 + t, params.num_tokens - 1u) * (params.x_stride / 4u);
        sum[t] = vec4<f32>(0.0);
    }

    for (var group = lane; group < end; group += LANES) {
        let at = block * num_groups + group;
        var r0: array<vec4<f32>, TOKENS>;
        var r1: array<vec4<f32>, TOKENS>;
        var r2: array<vec4<f32>, TOKENS>;
        var r3: array<vec4<f32>, TOKENS>;
        for (var half = 0u; half < 2u; half++) {
            let w0 = quant_w16(at, 0u, half);
            let w1 = quant_w16(at, 1u, half);
            let w2 = quant_w16(at, 2u, half);
            let w3 = quant_w16(at, 3u, half);
            let k4 = group * 8u + half * 4u;
            for (var t = 0u; t < TOKENS; t++) {
                let a = matmul_x(x_at[t], k4);
                let b = matmul_x(x_at[t], k4 + 1u);
                let c = matmul_x(x_at[t], k4 + 2u);
                let d = matmul_x(x_at[t], k4 + 3u);
                r0[t] = fma(w0[3], d, fma(w0[2], c, fma(w0[1], b, fma(w0[0], a, r0[t]))));
                r1[t] = fma(w1[3], d, fma(w1[2], c, fma(w1[1], b, fma(w1[0], a, r1[t]))));
                r2[t] = fma(w2[3], d, fma(w2[2], c, fma(w2[1], b, fma(w2[0], a, r2[t]))));
                r3[t] = fma(w3[3], d, fma(w3[2], c, fma(w3[1], b, fma(w3[0], a, r3[t]))));
            }
        }
        let scale = quant_scale(at);
        for (var t = 0u; t < TOKENS; t++) {
            let joined = vec4<f32>(matmul_join(r0[t]), matmul_join(r1[t]), matmul_join(r2[t]), matmul_join(r3[t]));
            sum[t] = quant_fold(joined, scale, sum[t]);
        }
    }

    for (var t = 0u; t < TOKENS; t++) {
        let value = lanes_sum(sum[t], index);
        if (lane == 0u && in_range && token0 + t < params.num_tokens) {
            epilogue(token0 + t, block * 4u, value);
        }
    }
}
