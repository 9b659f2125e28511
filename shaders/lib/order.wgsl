// f32 bits as u32 keys in the same order, so that values compare, and sort by digits, as integers.
//   -inf < ... < -0 = +0 < ... < +inf, and below all of them every NaN, as key 0
// Works on bits alone: no float operation, so nothing is flushed or assumed away.

fn order_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let positive = bits >> 31u == 0u || magnitude == 0u;
    let key = select(~bits, magnitude | 0x80000000u, positive);
    return select(key, 0u, magnitude > 0x7f800000u);
}

// The bits of the number with that key. Not for key 0.
fn order_bits(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, key >> 31u == 1u);
}
