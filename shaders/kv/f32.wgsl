// Cached keys and values as f32, as computed.
alias KvPair = vec2<f32>; // two neighbouring dims
alias KvQuad = vec4<f32>; // four

fn kv_pack(value: vec2<f32>) -> KvPair {
    return value;
}

fn kv_unpack(quad: KvQuad) -> vec4<f32> {
    return quad;
}
