// Activations as f32, as one kernel leaves them for the next matmul. A token's row is a record for
// each 32 columns, zeros past the last column:
//   32 values, then sum of squares, 0, 0, 0    (9 vec4)
// The sum of squares is that of the values before a norm's weight was applied, where a norm follows.
alias ActWords = vec4<u32>; // what one invocation of eight stores
const ACT_VEC4: u32 = 9u; // of a record
const ACT_SQUARES_VEC4: u32 = 8u; // where its sum of squares is
const ACT_SQUARES_WORD: u32 = 0u;

// Member `member` of the eight that own record `record` stores its four values; `all` are everybody's.
fn act_store(record: u32, member: u32, own: vec4<f32>, all: array<vec4<f32>, 8>, squares: f32) {
    act_out[record * 9u + member] = bitcast<vec4<u32>>(own);
    if (member == 0u) {
        act_out[record * 9u + 8u] = vec4<u32>(bitcast<u32>(squares), 0u, 0u, 0u);
    }
}
