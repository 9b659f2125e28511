//! What speculation may lose. A plain step earns it a share of its seconds; a step that verified something
//! is charged what it took longer than a plain one, less what the plain steps would have taken that it saved.
//!
//! Nothing is verified that could cost more than there is. So all steps together take at most that share
//! longer than plain ones, and the credit of the beginning: whatever texts, odds and devices do.

/// The share of a plain step's seconds that may be lost.
pub const EARNED: f64 = 0.02;
/// Plain steps' worth that is there at the beginning, so that what pays is found out soon.
pub const FIRST_STEPS: f64 = 1.5;
/// Plain steps' worth that plain steps can earn: a long rest is no reason for a great loss.
pub const MOST_EARNED: f64 = 4.0;
/// Plain steps' worth that is kept of what was gained, so that a few unlucky steps do not end what pays.
pub const MOST_GAINED: f64 = 12.0;

/// Seconds that may be lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Account {
    /// `None` before the first plain step.
    seconds: Option<f64>,
}

impl Account {
    /// Seconds that may be lost now; negative where too many were.
    pub fn credit(&self) -> f64 {
        self.seconds.unwrap_or(0.0)
    }

    /// A plain step took `plain` seconds.
    pub fn earn(&mut self, plain: f64) {
        let before = self.seconds.unwrap_or(FIRST_STEPS * plain);
        self.seconds = Some(grown(before, EARNED * plain, MOST_EARNED * plain));
    }

    /// So many seconds were lost, or gained where negative. A plain step takes `plain`.
    pub fn settle(&mut self, lost: f64, plain: f64) {
        let after = |before| grown(before, -lost, MOST_GAINED * plain);
        self.seconds = self.seconds.map(after);
    }
}

/// What is there after `more`, up to `most`; what is more than that already stays.
fn grown(before: f64, more: f64, most: f64) -> f64 {
    (before + more).min(before.max(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_earned_lost_and_bounded() {
        let mut account = Account::default();
        account.settle(-5.0, 1.0);
        assert_eq!(account.credit(), 0.0, "nothing before the first plain step");
        account.earn(1.0);
        assert_eq!(account.credit(), FIRST_STEPS + EARNED);
        account.settle(3.0, 1.0);
        assert!(account.credit() < -1.4);
        (0..50).for_each(|_| account.earn(1.0));
        assert!(account.credit() < -0.4, "a hundredth of that each");
        (0..1000).for_each(|_| account.earn(1.0));
        assert_eq!(account.credit(), MOST_EARNED);
        account.settle(-100.0, 1.0);
        assert_eq!(account.credit(), MOST_GAINED);
        account.earn(1.0);
        account.settle(-1.0, 0.5);
        assert_eq!(account.credit(), MOST_GAINED, "nothing is taken away");
        account.settle(2.0, 1.0);
        assert_eq!(account.credit(), MOST_GAINED - 2.0);
    }
}
