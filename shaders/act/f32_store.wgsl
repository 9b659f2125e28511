// How records of f32 activations are written.
alias ActWords = vec4<u32>; // what one invocation of eight stores

// Member `member` of the eight that own record `record` stores its four values; `all` are everybody's.
fn act_store(record: u32, member: u32, own: vec4<f32>, all: array<vec4<f32>, 8>, squares: f32) {
    act_out[record * 9u + member] = bitcast<vec4<u32>>(own);
    if (member == 0u) {
        act_out[record * 9u + 8u] = vec4<u32>(bitcast<u32>(squares), 0u, 0u, 0u);
    }
}
