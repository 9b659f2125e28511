// Cached keys and values as f16, two to a word; unpacked without a capability.
alias KvPair = u32;       // two neighbouring dims
alias KvQuad = vec2<u32>; // four

// Values beyond f16 saturate: an infinity would make every later sum NaN.
fn kv_pack(value: vec2<f32>) -> KvPair {
    return pack2x16float(clamp(value, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

fn kv_unpack(quad: KvQuad) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(quad.x), unpack2x16float(quad.y));
}
