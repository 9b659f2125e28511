// Matrix times activations, weights in any format of shaders/quant.
//   out[t, r] = sum_k w[r, k] * x[t, k],   then the epilogue: store, add, swiglu
//
// Shapes   w: [num_rows, columns] in blocks of 4 rows and groups of 32 columns; x: [num_tokens,
//          x_stride / 4] vec4 f32; rows and columns ragged as they like, columns a multiple of 4.
// Order    for a format and a number of columns, one order whatever the number of tokens: lane l
//          takes groups l, l + LANES, ... ascending; inside a group 8 vec4 fma, then
//          (x + y) + (z + w); lanes are joined by the tree of lib/lanes.
// Dispatch LANES invocations share 4 rows and TOKENS tokens; x, y: blocks of rows, z: tiles of tokens.
// Parts    quant/*, lib/lanes*, matmul/tokens_*, matmul/x_*, matmul/{store,add,swiglu}
override RAGGED: u32 = 0u; // 1 where columns are no multiple of 32: the last group is cut

struct Params { num_tokens: u32, num_rows: u32, columns: u32, x_stride: u32, y_stride: u32, first_row: u32 }

@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;
@group(1) @binding(0) var<uniform> params: Params;

// Four activations of a token, `k4` in units of four; zero past the last column.
fn matmul_load(token_at: u32, k4: u32) -> vec4<f32> {
    if (RAGGED == 1u) {
        let last = params.columns / 4u - 1u;
        return select(vec4<f32>(0.0), x[token_at + min(k4, last)], k4 <= last);
    }
    return x[token_at + k4];
}

// Adds 16 products of a row to its four partial sums.
fn matmul_row(sum: vec4<f32>, w: mat4x4<f32>, x: mat4x4<f32>) -> vec4<f32> {
    return fma(w[3], x[3], fma(w[2], x[2], fma(w[1], x[1], fma(w[0], x[0], sum))));
}

fn matmul_join(v: vec4<f32>) -> f32 {
    return (v.x + v.y) + (v.z + v.w);
}

@compute @workgroup_size(WG)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>,
          @builtin(num_workgroups) workgroups: vec3<u32>,
          @builtin(local_invocation_index) index: u32) {
    let lane = index % LANES;
    let num_groups = (params.columns + 31u) / 32u;
    let last_block = (params.num_rows - 1u) / 4u;
    let own_block = (workgroup.y * workgroups.x + workgroup.x) * (WG / LANES) + index / LANES;
    // Invocations past the last block repeat it and store nothing: what follows wants all of them.
    let block = min(own_block, last_block);

    let token0 = workgroup.z * TOKENS;
    var x_at: array<u32, TOKENS>;
    var sum: array<vec4<f32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) {
        x_at[t] = min(token0 + t, params.num_tokens - 1u) * (params.x_stride / 4u);
        sum[t] = vec4<f32>(0.0);
    }

    // All lanes take as many turns, and the last may count for some of them only: parts that talk
    // across a subgroup must be reached by all of it.
    let turns = (num_groups + LANES - 1u) / LANES;
    for (var turn = 0u; turn < turns; turn++) {
        let own_group = turn * LANES + lane;
        let group = min(own_group, num_groups - 1u);
        let at = block * num_groups + group;
        var r0: array<vec4<f32>, TOKENS>;
        var r1: array<vec4<f32>, TOKENS>;
        var r2: array<vec4<f32>, TOKENS>;
        var r3: array<vec4<f32>, TOKENS>;
        var held: array<vec4<f32>, TOKENS>;
        for (var t = 0u; t < TOKENS; t++) {
            held[t] = matmul_hold(x_at[t], group, index);
        }

        let a0 = quant_w16(at, 0u, 0u);
        let a1 = quant_w16(at, 1u, 0u);
        let a2 = quant_w16(at, 2u, 0u);
        let a3 = quant_w16(at, 3u, 0u);
        for (var t = 0u; t < TOKENS; t++) {
            let x16 = matmul_x_low(held[t], x_at[t], group);
            r0[t] = matmul_row(r0[t], a0, x16);
            r1[t] = matmul_row(r1[t], a1, x16);
            r2[t] = matmul_row(r2[t], a2, x16);
            r3[t] = matmul_row(r3[t], a3, x16);
        }

        let b0 = quant_w16(at, 0u, 1u);
        let b1 = quant_w16(at, 1u, 1u);
        let b2 = quant_w16(at, 2u, 1u);
        let b3 = quant_w16(at, 3u, 1u);
        for (var t = 0u; t < TOKENS; t++) {
            let x16 = matmul_x_high(held[t], x_at[t], group);
            r0[t] = matmul_row(r0[t], b0, x16);
            r1[t] = matmul_row(r1[t], b1, x16);
            r2[t] = matmul_row(r2[t], b2, x16);
            r3[t] = matmul_row(r3[t], b3, x16);
        }

        let scale = quant_scale(at);
        for (var t = 0u; t < TOKENS; t++) {
            let joined = vec4<f32>(matmul_join(r0[t]), matmul_join(r1[t]), matmul_join(r2[t]), matmul_join(r3[t]));
            sum[t] = select(sum[t], quant_fold(joined, scale, sum[t]), own_group < num_groups);
        }
    }

    for (var t = 0u; t < TOKENS; t++) {
        let value = lanes_sum(sum[t], index);
        if (lane == 0u && own_block <= last_block && token0 + t < params.num_tokens) {
            epilogue(token0 + t, block * 4u, value);
        }
    }
}
