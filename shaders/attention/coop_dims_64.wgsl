// A head has up to 64 dims: a workgroup of attention_coop has 32 rows, and takes 32 keys at a time.
const ROW_FOURS: u32 = 8u;
const COOP_DIMS: u32 = 64u;
const COOP_KEYS: u32 = 32u;
