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

// Zeros instead of what nobody may see: it may be NaN.
fn kv_seen(oct: KvOct, seen: bool) -> KvOct {
    return mat2x4<f32>(select(vec4<f32>(0.0), oct[0], seen), select(vec4<f32>(0.0), oct[1], seen));
}
