// Activations as 8-bit integers, as one kernel leaves them for the next matmul. A token's row is a
// record for each 32 columns, zeros past the last column:
//   8 words of four i8, then scale, sum of squares, 0, 0 as f32 bits    (3 vec4)
//   value = i8 * scale,   scale = amax / 127,   i8 = round(value / scale)
// The sum of squares is that of the values before a norm's weight was applied, where a norm follows.
const ACT_VEC4: u32 = 3u; // of a record
const ACT_SQUARES_VEC4: u32 = 2u; // where its sum of squares is
const ACT_SQUARES_WORD: u32 = 1u;
