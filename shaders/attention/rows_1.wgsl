// An invocation of the attention kernel holds four dims of one row.
const ROWS: u32 = 1u;
