// A head has up to 128 dims: each of eight members holds two octs of a row.
const HELD: u32 = 2u;
