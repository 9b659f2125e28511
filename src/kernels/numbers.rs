//! Numbers for cases: seeded inputs, and how far a rounded result may be off.

/// Unit roundoff of f32.
pub const U: f64 = 1.0 / (1 << 24) as f64;

/// The error bound of a sum of products: `2 * gamma(n) * sum |a b|` with `n` serial steps
/// (Higham, "Accuracy and Stability of Numerical Algorithms", section 3.1).
pub fn dot_bound(steps: usize, abs_sum: f64) -> f64 {
    let n = (steps + 3) as f64 * U;
    2.0 * n / (1.0 - n) * abs_sum + 1e-30
}

/// Numbers for cases: seeded, the same everywhere (splitmix64).
pub struct Data(u64);

impl Data {
    /// A stream of its own for each seed.
    pub fn new(seed: u64) -> Data {
        Data(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// `n` values, about normally distributed, none beyond 4 deviations.
    pub fn normal(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| {
                let sum: f64 = (0..8).map(|_| self.unit()).sum();
                ((sum - 4.0) * (12.0f64 / 8.0).sqrt()) as f32
            })
            .collect()
    }
}
