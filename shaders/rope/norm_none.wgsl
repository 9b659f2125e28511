// Queries and keys are rotated as they are. An invocation has four dims of a head of a token.
fn rope_walk(workgroup: u32, lane: u32) {
    let quads = params.head_dim / 4u;
    let all_heads = params.num_heads + 2u * params.num_kv_heads;
    let index = workgroup * ROPE_WG + lane;
    // a division costs more than all else: remainders are what a product leaves
    let row = index / quads;
    let token = row / all_heads;
    if (token >= params.num_tokens) {
        return;
    }
    let head = row - token * all_heads;
    let quad = index - row * quads;
    let value = qkv[index];
    let turned = rope_turned(token, quad, value);
    if (head < params.num_heads) {
        if (params.write_q == 1u) {
            q[(token * params.num_heads + head) * quads + quad] = turned;
        }
        return;
    }
    let is_key = head < params.num_heads + params.num_kv_heads;
    let to = rope_row(token, head - params.num_heads - select(params.num_kv_heads, 0u, is_key));
    if (to == ROPE_ELSEWHERE) {
        return;
    }
    if (is_key) {
        k[to * quads + quad] = kv_pack4(turned);
    } else {
        v[to * quads + quad] = kv_pack4(value);
    }
}
