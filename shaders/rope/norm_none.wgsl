// Queries and keys are rotated as they are. An invocation has four dims of a head of a token.
fn rope_walk(workgroup: u32, lane: u32) {
    let quads = params.head_dim / 4u;
    let all_heads = params.num_heads + 2u * params.num_kv_heads;
    let index = workgroup * ROPE_WG + lane;
    let quad = index % quads;
    let head = index / quads % all_heads;
    let token = index / quads / all_heads;
    if (token < params.num_tokens) {
        rope_put(token, head, quad, qkv[index]);
    }
}
