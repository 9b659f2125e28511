//! The same as a page with plots.

use super::About;
use super::format::{place, shape};
use super::outcome::{Figures, Outcome, Verdict};
use crate::models::human_bytes;
use crate::report::page::{Cell, Page, Plot, Section, Table};
use crate::report::svg::{self, Axis, Series, short};

/// The whole page.
pub fn page(about: &About, outcomes: &[Outcome]) -> Page {
    let facts = [
        ("model", about.model.clone()),
        ("weights, cache", format!("{}, {}", about.weights, about.kv)),
        (
            "tokens",
            format!("{}, and {} after them", about.tokens, about.greedy.len()),
        ),
        (
            "reference",
            format!("f64 on the CPU, {:.1} s", about.reference_s),
        ),
        ("goes on", about.continuation.clone()),
        (
            "nelumbo",
            format!("{} ({})", env!("CARGO_PKG_VERSION"), env!("NELUMBO_COMMIT")),
        ),
    ];
    Page {
        title: format!("nelumbo compare: {}", about.model),
        facts: facts.map(|(name, value)| (name.to_owned(), value)).to_vec(),
        sections: vec![
            verdicts(outcomes),
            accuracy(outcomes),
            speed(outcomes),
            memory(outcomes),
        ],
    }
}

fn strings<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

fn verdicts(outcomes: &[Outcome]) -> Section {
    let row = |outcome: &Outcome| {
        let class = match outcome.verdict {
            Verdict::Right => "good",
            Verdict::Wrong => "bad",
            Verdict::Unavailable => "",
        };
        let about = match (&outcome.first_bad_op, &outcome.reason) {
            (Some(bad), _) => format!(
                "{}; {}; {}; {}",
                place(bad),
                shape(bad),
                bad.step,
                bad.problem
            ),
            (None, Some(reason)) => reason.clone(),
            (None, None) => outcome.figures.as_ref().map_or(String::new(), |f| {
                format!(
                    "{} dispatches of {} kernels within their bounds",
                    f.dispatches_checked, f.kernels_checked
                )
            }),
        };
        vec![
            Cell::words(format!("{} {}", outcome.index, outcome.name)),
            Cell::words(&outcome.backend),
            Cell::words(&outcome.driver),
            Cell {
                text: outcome.verdict.name().to_owned(),
                class,
            },
            Cell::words(about),
        ]
    };
    Section {
        heading: "Adapters".to_owned(),
        table: Some(Table {
            header: strings(["adapter", "API", "driver", "verdict", ""]),
            rows: outcomes.iter().map(row).collect(),
        }),
        ..Section::default()
    }
}

/// Those with figures, each with its name for legends.
fn measured(outcomes: &[Outcome]) -> impl Iterator<Item = (String, &Figures)> {
    outcomes
        .iter()
        .filter_map(|o| Some((o.label(), o.figures.as_ref()?)))
}

fn accuracy(outcomes: &[Outcome]) -> Section {
    let curve = |(name, f): (String, &Figures)| Series {
        name: format!("{name}, {} activations", f.activations),
        points: f
            .layers
            .iter()
            .enumerate()
            .map(|(i, l)| (i as f64, l.nmse))
            .collect(),
    };
    let cloud = |(name, f): (String, &Figures)| Series {
        name,
        points: f
            .pairs
            .iter()
            .map(|&(e, f)| (f64::from(e), f64::from(f)))
            .collect(),
    };
    let curves: Vec<Series> = measured(outcomes).map(curve).collect();
    let clouds: Vec<Series> = measured(outcomes).map(cloud).collect();
    let row = |(name, f): (String, &Figures)| {
        let first = f.first_difference.map_or("none".to_owned(), |at| {
            format!(
                "{} of {}, from the {}. on",
                f.differing_tokens,
                f.greedy_tokens.len(),
                at + 1
            )
        });
        let worst = f.layers.iter().map(|l| l.max_abs).fold(0.0, f64::max);
        vec![
            Cell::words(name),
            Cell::number(
                f.layers
                    .last()
                    .map_or("-".to_owned(), |l| format!("{:.1e}", l.nmse)),
            ),
            Cell::number(format!("{worst:.1e}")),
            Cell::number(format!("{:.1} %", f.top1_agreement * 100.0)),
            Cell::number(format!("{:.1e}", f.kl_mean)),
            Cell::number(format!("{:.1e}", f.kl_max)),
            Cell::words(first),
        ]
    };
    Section {
        heading: "How far from the reference".to_owned(),
        text: vec![
            "The reference is the same model with the same weights, computed in f64. NMSE is the mean squared \
             error of a layer's residual stream as a share of its mean square; KL is in nats."
                .to_owned(),
        ],
        table: Some(Table {
            header: strings(["adapter", "NMSE, last layer", "largest error", "top-1", "KL mean", "KL max", "tokens that differ"]),
            rows: measured(outcomes).map(row).collect(),
        }),
        plots: vec![
            Plot {
                caption: "Error of the residual stream, layer by layer".to_owned(),
                svg: svg::lines(Axis::linear("layer"), Axis::log("NMSE"), &curves),
            },
            Plot {
                caption: "Logits: the adapter's over the reference's".to_owned(),
                svg: svg::scatter(Axis::linear("reference"), Axis::linear("adapter"), &clouds, true),
            },
        ],
    }
}

fn speed(outcomes: &[Outcome]) -> Section {
    let bars = |value: &dyn Fn(&Figures) -> f64, unit: &str| {
        let row = |o: &Outcome| {
            let value = o.figures.as_ref().map(value).filter(|v| v.is_finite());
            (o.label(), value.ok_or_else(|| o.verdict.name().to_owned()))
        };
        svg::bars(&outcomes.iter().map(row).collect::<Vec<_>>(), unit)
    };
    let plot = |caption: &str, svg: String| Plot {
        caption: caption.to_owned(),
        svg,
    };
    Section {
        heading: "Speed".to_owned(),
        text: vec!["One run of the text and its continuation, after one to warm up; nelumbo bench measures more closely.".to_owned()],
        table: None,
        plots: vec![
            plot("Prefill", bars(&|f| f.prefill_tok_s, "tok/s")),
            plot("Decode", bars(&|f| f.decode_tok_s, "tok/s")),
            plot("Time to the first token", bars(&|f| f.ttft_ms, "ms")),
            plot("Loading, of which compiling is a part", bars(&|f| f.load_ms, "ms")),
        ],
    }
}

fn memory(outcomes: &[Outcome]) -> Section {
    let row = |(name, f): (String, &Figures)| {
        let bytes = [f.weights_bytes, f.kv_bytes, f.scratch_bytes, f.peak_bytes];
        let cells = bytes.map(|bytes| Cell::number(human_bytes(bytes)));
        let mut row = vec![Cell::words(name)];
        row.extend(cells);
        row.push(Cell::number(format!("{} ms", short(f.compile_ms))));
        row
    };
    Section {
        heading: "Memory and compilation".to_owned(),
        table: Some(Table {
            header: strings([
                "adapter",
                "weights",
                "cache",
                "scratch",
                "all buffers",
                "compiling",
            ]),
            rows: measured(outcomes).map(row).collect(),
        }),
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::tests::about;
    use super::super::outcome::tests::{bad_op, sample};
    use super::*;

    #[test]
    fn a_page_holds_every_adapter_and_three_kinds_of_plots() {
        let mut wrong = sample(1);
        wrong.blame(bad_op());
        let mut away = sample(2);
        away.figures = None;
        away.fail(Verdict::Unavailable, "no compute shaders");
        let html = page(&about(), &[sample(0), wrong, away]).html();
        assert_eq!(html.matches("<svg").count(), 6, "{html}");
        for part in [
            "Card &lt;0&gt;",
            "attention of layer 3",
            "no compute shaders",
            "class=\"bad\">wrong",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
    }
}
