// Matrix times activations by cooperative matrices, f16 times f16 with f32 sums: the matmul of many
// tokens in the fast mode, which leaves the contract that matmul keeps.
//   out[t, r] = factor[t] * sum_k f16(w[r, k]) * x[t, k] + bias[r],   then what matmul/out_* makes of it
//
// Shapes   w: as for matmul; x: [num_tokens][num_groups * 4 + 1] vec4<u32>, as halve leaves them: rows of
//          f16, then the token's factor; tokens and rows ragged as they like.
// Order    groups of 32 columns ascending; inside of a group as the hardware adds. Weights of 8 bits are
//          rounded to f16 with their scale: 2^-11 of each, or 2^-25 where that is more.
// Dispatch 64 tokens (z) times 64 rows (x, y) for a workgroup of four subgroups, which share the rows:
//          bands of a matrix's size, in turn. Where subgroups are smaller than the largest that the
//          adapter has, there are more than four: the surplus repeats what the others do.
// Parts    quant/*_half, matmul/coop_8 or coop_16, matmul/coop_plain, coop_swiglu, coop_geglu or coop_gelu,
//          matmul/out_*; matmul/bias or bias_none where a unit is one block, lib/gelu; act/*, act/record and lib/team_shared where records are written
override WG: u32 = 128u;
override STRIDE: u32 = 40u;        // f16 from a row of a tile to the next: a multiple of 8, at least 32
override TILE_HALVES: u32 = 2560u; // 64 times STRIDE

const LANES: u32 = 1u; // an invocation speaks for itself, as matmul/out_* see it
const COOP_BANDS: u32 = 4u;
const COOP_TILE: u32 = 64u;  // tokens, and rows
const COOP_ROUND: u32 = 16u; // tokens that are brought to an end at a time

struct Params {
    num_tokens: u32, num_rows: u32, num_groups: u32, first_row: u32, out_columns: u32, eps: f32, norm_columns: f32,
    slots_at: u32, rope_at: u32, num_heads: u32, num_kv_heads: u32, head_dim: u32, scale: f32,
}

@group(0) @binding(2) var<storage, read> x: array<vec4<u32>>;
@group(1) @binding(0) var<uniform> params: Params;

var<workgroup> coop_x: array<f16, TILE_HALVES>; // [token][column of the group]
var<workgroup> coop_w: array<f16, TILE_HALVES>; // [row][column of the group]
var<workgroup> coop_sums: array<f32, 1024>;     // [token of the round][row]

fn coop_halves(low: u32, high: u32) -> vec4<f16> {
    return vec4<f16>(vec4<f32>(unpack2x16float(low), unpack2x16float(high)));
}

// Sums begin as what is loaded from here.
fn coop_clear(index: u32) {
    for (var i = index; i < COOP_ROUND * COOP_TILE; i += WG) { coop_sums[i] = 0.0; }
    workgroupBarrier();
}

// Brings a group's columns of the own tokens and rows. What lies past the last of either repeats it, and
// is stored by nobody.
fn coop_stage(group: u32, first_row: u32, first_token: u32, index: u32) {
    workgroupBarrier(); // what was there may still be read
    for (var i = index; i < COOP_TILE * 4u; i += WG) {
        let token = min(first_token + i / 4u, params.num_tokens - 1u);
        let words = x[token * (params.num_groups * 4u + 1u) + group * 4u + i % 4u];
        let low = coop_halves(words.x, words.y);
        let high = coop_halves(words.z, words.w);
        let to = i / 4u * STRIDE + i % 4u * 8u;
        coop_x[to] = low.x;
        coop_x[to + 1u] = low.y;
        coop_x[to + 2u] = low.z;
        coop_x[to + 3u] = low.w;
        coop_x[to + 4u] = high.x;
        coop_x[to + 5u] = high.y;
        coop_x[to + 6u] = high.z;
        coop_x[to + 7u] = high.w;
    }
    let last_block = (params.num_rows + 3u) / 4u - 1u;
    for (var i = index; i < COOP_TILE * QUANT_SPANS; i += WG) {
        let row = i / QUANT_SPANS;
        let block = min((first_row + row) / 4u, last_block);
        var values = quant_span(block * params.num_groups + group, row % 4u, i % QUANT_SPANS);
        let to = row * STRIDE + i % QUANT_SPANS * (32u / QUANT_SPANS);
        for (var j = 0u; j < 8u / QUANT_SPANS; j++) {
            coop_w[to + 4u * j] = values[j].x;
            coop_w[to + 4u * j + 1u] = values[j].y;
            coop_w[to + 4u * j + 2u] = values[j].z;
            coop_w[to + 4u * j + 3u] = values[j].w;
        }
    }
    workgroupBarrier();
}

// What becomes of the sums of 16 tokens.
fn coop_end(round: u32, first_row: u32, first_token: u32, index: u32) {
    workgroupBarrier(); // the sums are there
    let units = 16u / BLOCKS; // of a token
    let num_units = (params.num_rows + 4u * BLOCKS - 1u) / (4u * BLOCKS);
    for (var first = 0u; first < COOP_ROUND * 16u / BLOCKS; first += WG) {
        let item = first + index;
        let row = item % units;
        let own = min(item / units, COOP_ROUND - 1u); // invocations may be more than items
        let unit = first_row / (4u * BLOCKS) + row;
        let token = first_token + round * COOP_ROUND + own;
        // Who has no item writes no record either.
        let there = item / units < COOP_ROUND;
        let live = there && unit < num_units && token < params.num_tokens;
        let end = min(token, params.num_tokens - 1u) * (params.num_groups * 4u + 1u) + params.num_groups * 4u;
        let value = coop_value(own * COOP_TILE + row * 4u * BLOCKS, bitcast<f32>(x[end].x), unit);
        matmul_out(select(params.num_tokens, token, there), unit, value, live, index);
    }
    workgroupBarrier(); // they may be replaced
}

@compute @workgroup_size(WG)
fn matmul_coop(@builtin(workgroup_id) workgroup: vec3<u32>,
               @builtin(num_workgroups) workgroups: vec3<u32>,
               @builtin(subgroup_id) subgroup: u32,
               @builtin(local_invocation_index) index: u32) {
    let tile = workgroup.y * workgroups.x + workgroup.x;
    coop_product(tile * COOP_TILE, workgroup.z * COOP_TILE, subgroup % COOP_BANDS, index);
}
