// A head has up to 256 dims: a workgroup of attention_coop has 16 rows, and takes 32 keys at a time.
const ROW_FOURS: u32 = 4u;
const COOP_DIMS: u32 = 256u;
const COOP_KEYS: u32 = 32u;
