// Cached keys and values as f32, as computed.
alias KvPair = vec2<f32>;   // two neighbouring dims
alias KvQuad = vec4<f32>;   // four
alias KvOct = mat2x4<f32>;  // eight

fn kv_pack(value: vec2<f32>) -> KvPair {
    return value;
}

fn kv_pack4(value: vec4<f32>) -> KvQuad {
    return value;
}

fn kv_unpack(oct: KvOct) -> mat2x4<f32> {
    return oct;
}
