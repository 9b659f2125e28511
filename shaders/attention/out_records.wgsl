// The result of attention as activations for the next matmul (act/*): a record for each 32 dims, so
// that a head's dims have to be a multiple of 32.
@group(0) @binding(0) var<storage, read_write> act_out: array<ActWords>;

// Eight neighbours store eight dims each, those for whom `speaks` is true; four make a record.
fn attention_out(token: u32, head: u32, oct: u32, value: mat2x4<f32>, slot: u32, speaks: bool) {
    let low = team_all(value[0], slot, true);
    let high = team_all(value[1], slot, true);
    let second = slot % 8u >= 4u;
    var all: array<vec4<f32>, 8>;
    for (var i = 0u; i < 4u; i++) {
        all[2u * i] = select(low[i], low[i + 4u], second);
        all[2u * i + 1u] = select(high[i], high[i + 4u], second);
    }
    if (speaks) {
        let record = (token * params.num_heads + head) * (HEAD_DIM / 32u) + oct / 4u;
        act_store(record, oct % 4u * 2u, value[0], all, 0.0);
        act_store(record, oct % 4u * 2u + 1u, value[1], all, 0.0);
    }
}
