//! Today's date, which some chat templates tell the model.

use std::time::{SystemTime, UNIX_EPOCH};

/// `YYYY-MM-DD` in UTC; empty if the clock stands before 1970.
pub fn today() -> String {
    let Ok(since) = SystemTime::now().duration_since(UNIX_EPOCH) else {
        return String::new();
    };
    let (year, month, day) = civil(since.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The Gregorian date of a day counted from 1970-01-01.
fn civil(mut day: u64) -> (u64, usize, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        for (day, date) in [
            (0, (1970, 1, 1)),
            (364, (1970, 12, 31)),
            (789, (1972, 2, 29)),
            (11_016, (2000, 2, 29)),
            (20_786, (2026, 11, 29)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil(day), date);
        }
        assert_eq!(today().len(), 10);
    }
}
