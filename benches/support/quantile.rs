//! What a share of measurements is at most.

/// The least of `values` that at least `share` of them, 0 to 1, do not exceed.
///
/// # Panics
/// Without values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).ceil() as usize]
}
