// Activations as f32, as one kernel leaves them for the next matmul. A token's row is a record for
// each 32 columns, zeros past the last column:
//   32 values, then sum of squares, 0, 0, 0    (9 vec4)
// The sum of squares is that of the values before a norm's weight was applied, where a norm follows.
const ACT_VEC4: u32 = 9u; // of a record
const ACT_SQUARES_VEC4: u32 = 8u; // where its sum of squares is
const ACT_SQUARES_WORD: u32 = 0u;
