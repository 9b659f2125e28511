//! The date that templates may write, in English and without a clock.

use std::fmt::Write;

use minijinja::{Error as JinjaError, ErrorKind};

use crate::error::{Error, Result};

/// A point in time for `strftime_now`, told by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Date {
    year: u32,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Date {
    /// `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM:SS`; an empty text is no date.
    pub(super) fn parse(text: &str) -> Result<Option<Date>> {
        if text.is_empty() {
            return Ok(None);
        }
        let bad = || {
            Error::request(
                "date",
                format!("\"{text}\", expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS"),
            )
        };
        let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
        let numbers = |text: &str, separator: char, widths: [usize; 3]| -> Option<[u32; 3]> {
            let mut out = [0; 3];
            let mut parts = text.split(separator);
            for (number, width) in out.iter_mut().zip(widths) {
                let part = parts.next().filter(|part| {
                    part.len() == width && part.bytes().all(|b| b.is_ascii_digit())
                })?;
                *number = part.parse().ok()?;
            }
            parts.next().is_none().then_some(out)
        };
        let [year, month, day] = numbers(date, '-', [4, 2, 2]).ok_or_else(bad)?;
        let [hour, minute, second] = numbers(time, ':', [2, 2, 2]).ok_or_else(bad)?;
        let date = Date {
            year,
            month,
            day,
            hour,
            minute,
            second,
        };
        let in_range = (1..=12).contains(&month)
            && (1..=days_in(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        if in_range { Ok(Some(date)) } else { Err(bad()) }
    }

    /// C's `strftime` in English, for the conversions that a date and a time can answer.
    pub(super) fn format(self, format: &str) -> Result<String, JinjaError> {
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut conversion = chars.next();
            let unpadded = conversion == Some('-');
            if unpadded {
                conversion = chars.next();
            }
            let month = MONTHS[self.month as usize - 1];
            let weekday = WEEKDAYS[self.weekday() as usize];
            let (number, width) = match conversion {
                Some('Y') => (self.year, 4),
                Some('y') => (self.year % 100, 2),
                Some('m') => (self.month, 2),
                Some('d') => (self.day, 2),
                Some('j') => (self.day_of_year(), 3),
                Some('H') => (self.hour, 2),
                Some('I') => ((self.hour + 11) % 12 + 1, 2),
                Some('M') => (self.minute, 2),
                Some('S') => (self.second, 2),
                other => {
                    match other {
                        Some('B') => out.push_str(month),
                        Some('b' | 'h') => out.push_str(&month[..3]),
                        Some('A') => out.push_str(weekday),
                        Some('a') => out.push_str(&weekday[..3]),
                        Some('p') => out.push_str(if self.hour < 12 { "AM" } else { "PM" }),
                        Some('F') => out.push_str(&self.format("%Y-%m-%d")?),
                        Some('T') => out.push_str(&self.format("%H:%M:%S")?),
                        Some('e') => out.push_str(&format!("{:2}", self.day)),
                        Some('%') => out.push('%'),
                        _ => {
                            let problem =
                                format!("strftime_now does not know the conversion in {format:?}");
                            return Err(JinjaError::new(ErrorKind::InvalidOperation, problem));
                        }
                    }
                    continue;
                }
            };
            let width = if unpadded { 0 } else { width };
            write!(out, "{number:0width$}").expect("writing to a string does not fail");
        }
        Ok(out)
    }

    fn day_of_year(self) -> u32 {
        (1..self.month)
            .map(|month| days_in(self.year, month))
            .sum::<u32>()
            + self.day
    }

    /// 0 is Sunday. Counts days since the (proleptic Gregorian) year 0, whose first day was a Saturday.
    fn weekday(self) -> u32 {
        let leap_days = if self.year == 0 {
            0
        } else {
            (self.year - 1) / 4 - (self.year - 1) / 100 + (self.year - 1) / 400 + 1
        };
        (self.year * 365 + leap_days + self.day_of_year() - 1 + 6) % 7
    }
}

fn days_in(year: u32, month: u32) -> u32 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u32::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let date = Date::parse("2026-03-05T15:04:09").unwrap().unwrap();
        assert_eq!(
            date.format("%d %b %Y, %A %-d %B %I:%M:%S %p %j %y %e %%")
                .unwrap(),
            "05 Mar 2026, Thursday 5 March 03:04:09 PM 064 26  5 %"
        );
        let weekday = |text| Date::parse(text).unwrap().unwrap().format("%a").unwrap();
        assert_eq!(
            [
                weekday("2000-01-01"),
                weekday("2024-02-29"),
                weekday("1970-01-01")
            ],
            ["Sat", "Thu", "Thu"]
        );
        assert_eq!(
            [
                weekday("0000-01-01"),
                weekday("0001-01-01"),
                weekday("9999-12-31")
            ],
            ["Sat", "Mon", "Fri"]
        );
        assert!(date.format("%Q").is_err() && date.format("%").is_err());
        assert_eq!(Date::parse("").unwrap(), None);
        for bad in [
            "today",
            "2026-02-29",
            "2026-13-01",
            "2026-1-01",
            "2026-01-01T24:00:00",
            "+026-01-01",
        ] {
            assert!(
                Date::parse(bad)
                    .unwrap_err()
                    .to_string()
                    .starts_with("date: "),
                "{bad}"
            );
        }
    }
}
