// A team of the attention kernel holds eight rows.
const ROW_FOURS: u32 = 2u;
