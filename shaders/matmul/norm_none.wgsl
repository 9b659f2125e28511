// The factor of a token's sums where no norm comes before the matmul.
fn matmul_factor(x_at: u32, index: u32) -> f32 {
    return 1.0;
}
