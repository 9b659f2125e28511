// An invocation of the attention kernel holds eight dims of one row.
const ROWS: u32 = 1u;
