// A head has up to 128 dims: a workgroup of attention_coop has 16 rows, and takes 64 keys at a time.
const ROW_FOURS: u32 = 4u;
const COOP_DIMS: u32 = 128u;
const COOP_KEYS: u32 = 64u;
