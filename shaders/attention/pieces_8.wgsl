// An invocation of the attention kernel holds 8 pieces of a row's result, four dims each.
const PIECES: u32 = 8u;
