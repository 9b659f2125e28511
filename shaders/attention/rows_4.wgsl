// A team of the attention kernel holds four rows.
const ROW_FOURS: u32 = 1u;
