// An invocation of the attention kernel holds 1 piece of a row's result, four dims each.
const PIECES: u32 = 1u;
