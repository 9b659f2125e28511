// As q8, loaded 32 bytes at a time: where a load is dear and its width is not, on a CPU.
@group(0) @binding(0) var<storage, read> w: array<vec4<u64>>;
@group(0) @binding(1) var<storage, read> w_scales: array<vec2<u32>>;

alias QuantGroup = array<vec4<u32>, 8>; // two for each row

fn quant_words(a: u64, b: u64) -> vec4<u32> {
    return vec4<u32>(u32(a), u32(a >> 32u), u32(b), u32(b >> 32u));
}

fn quant_group(at: u32) -> QuantGroup {
    let i = at * 4u;
    let r0 = w[i];
    let r1 = w[i + 1u];
    let r2 = w[i + 2u];
    let r3 = w[i + 3u];
    return QuantGroup(quant_words(r0.x, r0.y), quant_words(r0.z, r0.w), quant_words(r1.x, r1.y), quant_words(r1.z, r1.w),
                      quant_words(r2.x, r2.y), quant_words(r2.z, r2.w), quant_words(r3.x, r3.y), quant_words(r3.z, r3.w));
}
