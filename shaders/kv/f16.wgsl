// Cached keys and values as f16, two to a word; unpacked without a capability.
alias KvPair = u32;      // two neighbouring dims
alias KvQuad = vec2<u32>; // four
alias KvOct = vec4<u32>; // eight

// Values beyond f16 saturate: an infinity would make every later sum NaN.
fn kv_pack(value: vec2<f32>) -> KvPair {
    return pack2x16float(clamp(value, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}

fn kv_pack4(value: vec4<f32>) -> KvQuad {
    return vec2<u32>(kv_pack(value.xy), kv_pack(value.zw));
}

fn kv_unpack(oct: KvOct) -> mat2x4<f32> {
    return mat2x4<f32>(vec4<f32>(unpack2x16float(oct.x), unpack2x16float(oct.y)),
                       vec4<f32>(unpack2x16float(oct.z), unpack2x16float(oct.w)));
}

// Zeros instead of what nobody may see: it may be NaN.
fn kv_seen(oct: KvOct, seen: bool) -> KvOct {
    return select(vec4<u32>(0u), oct, seen);
}
