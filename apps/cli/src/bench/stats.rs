//! Mean and deviation of a few samples.

/// The mean; 0 of nothing.
pub fn mean(samples: &[f64]) -> f64 {
    match samples.len() {
        0 => 0.0,
        count => samples.iter().sum::<f64>() / count as f64,
    }
}

/// The standard deviation of what the samples are drawn from (`n - 1` in the denominator); 0 of one
/// sample.
pub fn deviation(samples: &[f64]) -> f64 {
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = mean(samples);
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    (squares / (samples.len() - 1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_known_samples() {
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&samples), 5.0);
        assert!((deviation(&samples) - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((mean(&[]), deviation(&[])), (0.0, 0.0));
        assert_eq!((mean(&[3.0]), deviation(&[3.0])), (3.0, 0.0));
    }
}
