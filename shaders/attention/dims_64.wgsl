// A head has up to 64 dims: each of eight members holds one oct of a row.
const HELD: u32 = 1u;
