// An invocation of the attention kernel holds 4 pieces of a row's result, four dims each.
const PIECES: u32 = 4u;
