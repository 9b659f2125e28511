// An invocation of the attention kernel holds four dims of each of four rows.
const ROWS: u32 = 4u;
