// The result of attention as rows of f32: [num_tokens, num_heads, head_dim].
@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;

// Eight neighbours store eight dims each, those for whom `speaks` is true.
fn attention_out(token: u32, head: u32, oct: u32, value: mat2x4<f32>, slot: u32, speaks: bool) {
    if (speaks) {
        let to = ((token * params.num_heads + head) * (HEAD_DIM / 8u) + oct) * 2u;
        out[to] = value[0];
        out[to + 1u] = value[1];
    }
}
