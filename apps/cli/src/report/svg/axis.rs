//! Axes of plots: how long they are, where their ticks lie, and how numbers are written there.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::Ranged;

/// One of the two axes.
#[derive(Debug, Clone, Copy)]
pub struct Axis<'a> {
    /// What is measured, with its unit.
    pub label: &'a str,
    /// Powers of ten are as far apart as each other; what is not above 0 is left out.
    pub log: bool,
    /// Begins at 0 at the latest, unless it is logarithmic.
    pub from_zero: bool,
}

impl<'a> Axis<'a> {
    /// A linear axis as long as its values.
    pub fn linear(label: &'a str) -> Axis<'a> {
        Axis {
            label,
            log: false,
            from_zero: false,
        }
    }

    /// A logarithmic axis.
    pub fn log(label: &'a str) -> Axis<'a> {
        Axis {
            log: true,
            ..Axis::linear(label)
        }
    }

    /// Where a value lies on the paper; `None` where it does not.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let placed = if self.log { value.log10() } else { value };
        placed.is_finite().then_some(placed)
    }
}

/// A range with ticks of our choice.
pub(super) struct Keyed {
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Ranged for Keyed {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (low, high): (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        low + (share * f64::from(high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

pub(super) fn keyed(axis: &Axis, (from, to): (f64, f64)) -> Keyed {
    let ticks = ticks(axis, (from, to));
    Keyed { from, to, ticks }
}

/// From the least to the largest value, with some air; never empty.
pub(super) fn span(axis: &Axis, values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut from, mut to) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| {
        (a.min(v), b.max(v))
    });
    if from > to {
        (from, to) = (0.0, 1.0);
    }
    if axis.from_zero && !axis.log {
        (from, to) = (from.min(0.0), to.max(0.0));
    }
    if axis.log {
        // whole powers of ten, so that there are ticks
        return (
            from.floor(),
            if to.ceil() > from.floor() {
                to.ceil()
            } else {
                from.floor() + 1.0
            },
        );
    }
    let air = if to > from {
        (to - from) * 0.03
    } else {
        from.abs().max(1.0) * 0.1
    };
    let below = if axis.from_zero && from == 0.0 {
        0.0
    } else {
        air
    };
    (from - below, to + air)
}

/// Round numbers, five to nine of them, where there is room for as many.
fn ticks(axis: &Axis, (from, to): (f64, f64)) -> Vec<f64> {
    let width = to - from;
    let step = if axis.log {
        (width / 8.0).ceil().max(1.0)
    } else {
        let rough = width / 7.0;
        let ten = 10f64.powf(rough.log10().floor());
        let nice = [1.0, 2.0, 5.0, 10.0].into_iter().find(|n| n * ten >= rough);
        nice.unwrap_or(10.0) * ten
    };
    let first = (from / step).ceil();
    let count = ((to / step).floor() - first).clamp(0.0, 32.0) as usize;
    (0..=count).map(|i| (first + i as f64) * step).collect()
}

pub(super) fn tick_label(axis: &Axis, value: f64) -> String {
    if axis.log {
        return format!("1e{value:.0}");
    }
    short(value)
}

/// Three digits that matter, without zeros that do not.
pub fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..7.0).contains(&magnitude) {
        return format!("{value:.1e}");
    }
    let text = format!("{value:.*}", (2.0 - magnitude).max(0.0) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_numbers_short() {
        assert_eq!(
            ticks(&Axis::linear(""), (0.0, 29.0)),
            [0.0, 5.0, 10.0, 15.0, 20.0, 25.0]
        );
        assert_eq!(
            ticks(&Axis::log(""), (-9.0, -5.0)),
            [-9.0, -8.0, -7.0, -6.0, -5.0]
        );
        let numbers = [0.0, 5.0, 0.25, 1234.6, 1.5e-9, 2e9, 12.345, 99.96];
        let shown = numbers.map(short);
        assert_eq!(
            shown,
            ["0", "5", "0.25", "1235", "1.5e-9", "2.0e9", "12.3", "100"]
        );
    }
}
