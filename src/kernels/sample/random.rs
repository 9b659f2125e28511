//! Random numbers by counter: the twin of `shaders/lib/rng.wgsl`. What (seed, position, purpose) draws
//! depends on nothing else.

/// The Gumbel noise of tokens.
pub(super) const NOISE: u32 = 0x6E65_6C75;
/// Whether a drafted token is accepted.
pub(super) const ACCEPTANCE: u32 = 0x6163_6365;
/// Which token is drafted.
pub(super) const DRAFT: u32 = 0x6472_6166;

/// The stream of one position of a seeded sequence, for one purpose. The hash is a permutation: no two
/// have a state in common.
pub(super) fn stream(seed: u64, position: u32, purpose: u32) -> [u32; 4] {
    pcg4d([seed as u32, (seed >> 32) as u32, position, purpose])
}

/// A draw from the Gumbel distribution for `id` of a stream.
pub(super) fn gumbel(stream: [u32; 4], id: u32) -> f64 {
    -(-(-unit(stream, id)).ln_1p()).ln()
}

/// A number above 0 and below 1 for `id` of a stream.
pub(super) fn unit([x, y, z, w]: [u32; 4], id: u32) -> f64 {
    let bits = pcg4d([x, y, z, w ^ id])[0];
    (f64::from(bits) + 0.5) / 2f64.powi(32)
}

/// The twin of `rng_pcg4d`.
fn pcg4d(value: [u32; 4]) -> [u32; 4] {
    let [mut x, mut y, mut z, mut w] =
        value.map(|v| v.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    let mix = |x: &mut u32, y: &mut u32, z: &mut u32, w: &mut u32| {
        *x = x.wrapping_add(y.wrapping_mul(*w));
        *y = y.wrapping_add(z.wrapping_mul(*x));
        *z = z.wrapping_add(x.wrapping_mul(*y));
        *w = w.wrapping_add(y.wrapping_mul(*z));
    };
    mix(&mut x, &mut y, &mut z, &mut w);
    [x, y, z, w] = [x, y, z, w].map(|v| v ^ (v >> 16));
    mix(&mut x, &mut y, &mut z, &mut w);
    [x, y, z, w]
}
