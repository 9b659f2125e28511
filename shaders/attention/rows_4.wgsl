// An invocation of the attention kernel holds eight dims of each of four rows.
const ROWS: u32 = 4u;
