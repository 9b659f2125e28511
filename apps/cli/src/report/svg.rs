//! Plots as SVG: curves, clouds of points, bars.
//!
//! Words, axes and grid have the colour of the text around them, and nothing is behind them, so that a
//! page may be light or dark; [`standalone`] is for a file of its own.

mod axis;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub use axis::{Axis, short};
use axis::{keyed, span, tick_label};

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
}
