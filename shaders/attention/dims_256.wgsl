// A head has up to 256 dims: each of eight members holds four octs of a row.
const HELD: u32 = 4u;
