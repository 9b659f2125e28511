//! Plots as SVG: curves, clouds of points, bars.
//!
//! Words, axes and grid have the colour of the text around them, and nothing is behind them, so that a
//! page may be light or dark; [`standalone`] is for a file of its own.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Stands for the colour of text until the drawing is done; nothing else is drawn in it.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_TEXT: &str = "#010203";
/// Of series, in turn: apart from each other, and to be seen on white and on black.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x3b, 0x82, 0xd0),
    RGBColor(0xd9, 0x77, 0x1c),
    RGBColor(0x2f, 0x9e, 0x63),
    RGBColor(0xd6, 0x45, 0x50),
    RGBColor(0x8b, 0x62, 0xc9),
    RGBColor(0x17, 0x98, 0xa8),
    RGBColor(0xb0, 0x7d, 0x3a),
    RGBColor(0xc2, 0x4f, 0x9c),
];

const WIDTH: u32 = 640;
const HEIGHT: u32 = 360;
const FONT: (&str, u32) = ("sans-serif", 16);
/// What a line of the legend takes, in pixels.
const LEGEND_LINE: u32 = 20;
/// What a bar takes, and what is left of it for the gap.
const BAR_LINE: i32 = 40;
const BAR_GAP: i32 = 22;

/// Points with a name, in order.
#[derive(Debug, Clone)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// x and y.
    pub points: Vec<(f64, f64)>,
}

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
    fn place(&self, value: f64) -> Option<f64> {
        let placed = if self.log { value.log10() } else { value };
        placed.is_finite().then_some(placed)
    }
}

/// Curves through the points of each series.
pub fn lines(x: Axis, y: Axis, series: &[Series]) -> String {
    draw(x, y, series, Mark::Line)
}

/// The points of each series; the line where both are equal beneath, if `diagonal`.
pub fn scatter(x: Axis, y: Axis, series: &[Series], diagonal: bool) -> String {
    draw(x, y, series, Mark::Point { diagonal })
}

#[derive(Clone, Copy)]
enum Mark {
    Line,
    Point { diagonal: bool },
}

/// A bar for each name, with its value beside it; `None` where there is none, and why instead.
pub fn bars(rows: &[(String, Result<f64, String>)], unit: &str) -> String {
    let height = rows.len().max(1) as i32 * BAR_LINE + 8;
    let largest = rows.iter().filter_map(|row| row.1.as_ref().ok()).copied();
    let largest = largest.fold(f64::MIN_POSITIVE, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height as u32)).into_drawing_area();
        for (i, (name, value)) in rows.iter().enumerate() {
            let top = i as i32 * BAR_LINE + 4;
            let share = value.as_ref().map_or(0.0, |v| v / largest);
            // the value stands to the right of the longest bar, too
            let right = (share * f64::from(WIDTH as i32 - 140)).round() as i32;
            let colour = COLOURS[i % COLOURS.len()];
            let bar = Rectangle::new(
                [(0, top + BAR_GAP - 4), (right.max(1), top + BAR_LINE - 6)],
                colour.filled(),
            );
            let shown = match value {
                Ok(value) => format!("{} {unit}", short(*value)),
                Err(why) => why.clone(),
            };
            let beside = ink(16, HPos::Left, VPos::Center);
            let middle = top + (BAR_GAP + BAR_LINE - 10) / 2;
            plain(root.draw(&bar));
            plain(root.draw(&Text::new(
                name.clone(),
                (0, top),
                ink(16, HPos::Left, VPos::Top),
            )));
            plain(root.draw(&Text::new(shown, (right + 8, middle), beside)));
        }
        plain(root.present());
    }
    inked(&text)
}

/// The same as a file: with a background, by the reader's choice of light or dark.
pub fn standalone(svg: &str) -> String {
    const STYLE: &str = "<style>:root{color:#1f2328;background:#fff}\
                         @media (prefers-color-scheme:dark){:root{color:#e6edf3;background:#0d1117}}</style>";
    let at = svg
        .find("<svg")
        .and_then(|at| Some(at + svg[at..].find('>')? + 1));
    match at {
        Some(at) => format!("{}{STYLE}{}", &svg[..at], &svg[at..]),
        None => svg.to_owned(),
    }
}

fn draw(x: Axis, y: Axis, series: &[Series], mark: Mark) -> String {
    let placed: Vec<Vec<(f64, f64)>> = series
        .iter()
        .map(|s| {
            s.points
                .iter()
                .filter_map(|p| Some((x.place(p.0)?, y.place(p.1)?)))
                .collect()
        })
        .collect();
    let all = || placed.iter().flatten();
    let (mut xs, mut ys) = (span(&x, all().map(|p| p.0)), span(&y, all().map(|p| p.1)));
    if matches!(mark, Mark::Point { diagonal: true }) {
        let both = (xs.0.min(ys.0), xs.1.max(ys.1));
        (xs, ys) = (both, both);
    }
    let legend = series.len() as u32 * LEGEND_LINE + 6;
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT + legend)).into_drawing_area();
        let (head, area) = root.split_vertically(legend);
        draw_legend(&head, series);
        let mut chart = ChartBuilder::on(&area)
            .margin(6)
            .margin_right(16)
            .x_label_area_size(46)
            .y_label_area_size(72)
            .build_cartesian_2d(keyed(&x, xs), keyed(&y, ys))
            .expect("ranges are not empty");
        let done = chart
            .configure_mesh()
            .x_desc(x.label)
            .y_desc(y.label)
            .axis_desc_style(ink(16, HPos::Center, VPos::Top))
            .label_style(FONT.into_font().color(&INK))
            .x_label_formatter(&|v| tick_label(&x, *v))
            .y_label_formatter(&|v| tick_label(&y, *v))
            .axis_style(INK.mix(0.6))
            .bold_line_style(INK.mix(0.14))
            .light_line_style(TRANSPARENT)
            .max_light_lines(0)
            .draw();
        plain(done);
        if matches!(mark, Mark::Point { diagonal: true }) {
            let line = PathElement::new(vec![(xs.0, xs.0), (xs.1, xs.1)], INK.mix(0.35));
            plain(chart.draw_series([line]).map(|_| ()));
        }
        for (i, points) in placed.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            // what lies beneath is broader, so that equal series can both be seen
            let broader = (placed.len() - 1 - i).min(4) as u32;
            let dot = |size: u32, style: ShapeStyle| {
                points.iter().map(move |&p| Circle::new(p, size, style))
            };
            let drawn = match mark {
                Mark::Point { .. } => chart.draw_series(dot(2 + broader, colour.mix(0.6).filled())),
                Mark::Line => {
                    let line =
                        PathElement::new(points.clone(), colour.stroke_width(2 + 3 * broader));
                    plain(chart.draw_series([line]).map(|_| ()));
                    // few points are shown as such
                    let size = if points.len() <= 64 { 3 + broader } else { 0 };
                    chart.draw_series(dot(size, colour.filled()))
                }
            };
            plain(drawn.map(|_| ()));
        }
        plain(root.present());
    }
    inked(&text)
}

fn draw_legend(area: &DrawingArea<SVGBackend, Shift>, series: &[Series]) {
    for (i, series) in series.iter().enumerate() {
        let y = (i as u32 * LEGEND_LINE + LEGEND_LINE / 2) as i32;
        let colour = COLOURS[i % COLOURS.len()];
        plain(area.draw(&Rectangle::new([(70, y - 2), (92, y + 2)], colour.filled())));
        let name = Text::new(
            series.name.clone(),
            (100, y),
            ink(16, HPos::Left, VPos::Center),
        );
        plain(area.draw(&name));
    }
}

/// Text of the surrounding colour.
fn ink(size: u32, h: HPos, v: VPos) -> TextStyle<'static> {
    let style = TextStyle::from((FONT.0, size).into_font()).color(&INK);
    style.pos(Pos::new(h, v))
}

fn inked(svg: &str) -> String {
    svg.replace(INK_TEXT, "currentColor")
}

/// Drawing into memory has nothing to fail at.
fn plain<E: std::fmt::Display>(done: Result<(), E>) {
    if let Err(error) = done {
        panic!("drawing: {error}");
    }
}

/// A range with ticks of our choice.
struct Keyed {
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

fn keyed(axis: &Axis, (from, to): (f64, f64)) -> Keyed {
    let ticks = ticks(axis, (from, to));
    Keyed { from, to, ticks }
}

/// From the least to the largest value, with some air; never empty.
fn span(axis: &Axis, values: impl Iterator<Item = f64>) -> (f64, f64) {
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

fn tick_label(axis: &Axis, value: f64) -> String {
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

    fn series(name: &str, points: &[(f64, f64)]) -> Series {
        Series {
            name: name.to_owned(),
            points: points.to_vec(),
        }
    }

    #[test]
    fn names_are_there_and_escaped_and_the_ink_is_that_of_the_page() {
        let all = [
            series("A <fast> & B", &[(0.0, 1e-9), (1.0, 1e-6), (2.0, 0.0)]),
            series("C", &[(0.0, 1e-7), (1.0, f64::NAN), (2.0, 1e-5)]),
        ];
        for svg in [
            lines(Axis::linear("layer"), Axis::log("NMSE"), &all),
            scatter(Axis::linear("layer"), Axis::linear("NMSE"), &all, true),
        ] {
            assert!(
                svg.contains("A &lt;fast&gt; &amp; B") && svg.contains("NMSE"),
                "{svg}"
            );
            assert!(svg.contains("currentColor") && !svg.contains(INK_TEXT));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let shown = standalone(&svg);
            assert!(
                shown.contains("<style>") && shown.starts_with("<svg"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_curve_has_as_many_points_as_can_be_placed() {
        let some = [series(
            "s",
            &[(0.0, 1e-9), (1.0, 1e-6), (2.0, 0.0), (3.0, -1.0)],
        )];
        let svg = lines(Axis::linear("x"), Axis::log("y"), &some);
        assert_eq!(svg.matches("<circle").count(), 2, "{svg}");
        let none = lines(Axis::linear("x"), Axis::log("y"), &[series("s", &[])]);
        assert_eq!(none.matches("<circle").count(), 0);
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let rows = [
            ("a".to_owned(), Ok(10.0)),
            ("b".to_owned(), Ok(5.0)),
            ("c".to_owned(), Err("lost".to_owned())),
        ];
        let svg = bars(&rows, "tok/s");
        let width = |i: usize| -> f64 {
            let rect = svg.split("<rect").nth(i + 1).unwrap();
            let width = rect.split("width=\"").nth(1).unwrap();
            width.split('"').next().unwrap().parse().unwrap()
        };
        assert!(
            (width(0) / width(1) - 2.0).abs() < 0.02 && width(2) <= 1.0,
            "{svg}"
        );
        assert!(svg.contains("10 tok/s") && svg.contains("lost"), "{svg}");
    }

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
