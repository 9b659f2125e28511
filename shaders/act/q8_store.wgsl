// How records of 8-bit activations are written.
alias ActWords = u32; // what one invocation of eight stores

fn act_amax(v: vec4<f32>) -> f32 {
    let a = abs(v);
    return max(max(a.x, a.y), max(a.z, a.w));
}

fn act_scale(amax: f32) -> f32 {
    return amax / 127.0;
}

// Four values as four i8.
fn act_pack(v: vec4<f32>, scale: f32) -> u32 {
    let divisor = select(1.0, scale, scale > 0.0);
    return pack4xI8(vec4<i32>(round(clamp(v / divisor, vec4<f32>(-127.0), vec4<f32>(127.0)))));
}

// Member `member` of the eight that own record `record` stores its four values; `all` are everybody's.
fn act_store(record: u32, member: u32, own: vec4<f32>, all: array<vec4<f32>, 8>, squares: f32) {
    let amax = max(max(max(act_amax(all[0]), act_amax(all[1])), max(act_amax(all[2]), act_amax(all[3]))),
                   max(max(act_amax(all[4]), act_amax(all[5])), max(act_amax(all[6]), act_amax(all[7]))));
    let scale = act_scale(amax);
    act_out[record * 12u + member] = act_pack(own, scale);
    if (member == 0u) {
        act_out[record * 12u + 8u] = bitcast<u32>(scale);
        act_out[record * 12u + 9u] = bitcast<u32>(squares);
    }
}
