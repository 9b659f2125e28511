//! Results as a table and as JSON.

use serde_json::{Value, json};

use super::About;
use super::outcome::{FirstBadOp, Outcome};
use crate::models::human_bytes;
use crate::output::table;
use crate::report::svg::short;

/// Characters of a name in the table.
const NAME: usize = 20;

/// A table that a terminal of 100 columns holds, and a line for each adapter that is not right.
pub fn markdown(about: &About, outcomes: &[Outcome]) -> String {
    let header = [
        "#", "ADAPTER", "API", "VERDICT", "NMSE", "TOP-1", "KL", "TTFT", "PREFILL", "DECODE",
        "MEMORY",
    ];
    let rows = outcomes.iter().map(row);
    let mut text = table(std::iter::once(header.map(str::to_owned)).chain(rows));
    for outcome in outcomes {
        if let Some(bad) = &outcome.first_bad_op {
            text += &format!(
                "\n{}: first wrong operation: {}\n",
                outcome.label(),
                place(bad)
            );
            text += &format!("  shape    {}\n", shape(bad));
            text += &format!("  step     {}\n  problem  {}\n", bad.step, bad.problem);
        } else if let Some(reason) = &outcome.reason {
            text += &format!(
                "\n{}: {}: {reason}\n",
                outcome.label(),
                outcome.verdict.name()
            );
        }
        let differs = outcome
            .figures
            .as_ref()
            .and_then(|f| Some((f.differing_tokens, f.first_difference?)));
        if let Some((count, first)) = differs {
            let all = about.greedy.len();
            text += &format!(
                "\n{}: {count} of {all} generated tokens differ, from the {}. on\n",
                outcome.label(),
                first + 1
            );
        }
    }
    text += &format!(
        "\n{} with {} weights and an {} cache; {} tokens and {} after them\n\
         NMSE of the last layer's residual stream, KL in nats, tok/s; the reference (f64, CPU) took {:.1} s\n\
         it goes on: {:?}\n",
        about.model,
        about.weights,
        about.kv,
        about.tokens,
        about.greedy.len(),
        about.reference_s,
        about.continuation,
    );
    text
}

fn row(outcome: &Outcome) -> [String; 11] {
    let mut name: String = outcome.name.chars().take(NAME).collect();
    if outcome.name.chars().count() > NAME {
        name.pop();
        name.push('…');
    }
    let mut row = std::array::from_fn(|_| "-".to_owned());
    row[..4].clone_from_slice(&[
        outcome.index.to_string(),
        name,
        outcome.backend.clone(),
        outcome.verdict.name().to_owned(),
    ]);
    if let Some(f) = &outcome.figures {
        let nmse = f
            .layers
            .last()
            .map_or("-".to_owned(), |l| format!("{:.0e}", l.nmse));
        let figures = [
            nmse,
            format!("{:.1}%", f.top1_agreement * 100.0),
            format!("{:.0e}", f.kl_mean),
            format!("{} ms", short(f.ttft_ms)),
            short(f.prefill_tok_s),
            short(f.decode_tok_s),
            human_bytes(f.peak_bytes),
        ];
        row[4..].clone_from_slice(&figures);
    }
    row
}

/// "attention of layer 3 (kernel attention_merge)".
pub fn place(bad: &FirstBadOp) -> String {
    let layer = bad
        .layer
        .map_or(String::new(), |layer| format!(" of layer {layer}"));
    format!("{}{layer} (kernel {})", bad.op, bad.kernel)
}

/// "q [128, 576], out [128, 576]".
pub fn shape(bad: &FirstBadOp) -> String {
    let one = |(name, dims): (&String, &Value)| format!("{name} {dims}").replace(',', ", ");
    let all: Vec<String> = bad.shape.iter().map(one).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

/// One JSON object.
pub fn json(about: &About, outcomes: &[Outcome]) -> String {
    let object = json!({
        "model": about.model,
        "weights": about.weights,
        "kv": about.kv,
        "tokens": about.tokens,
        "greedy_tokens": about.greedy,
        "continuation": about.continuation,
        "reference_s": about.reference_s,
        "build_commit": env!("NELUMBO_COMMIT"),
        "build_version": env!("CARGO_PKG_VERSION"),
        "adapters": outcomes,
    });
    format!("{object:#}")
}

#[cfg(test)]
pub mod tests {
    use super::super::outcome::Verdict;
    use super::super::outcome::tests::{bad_op, sample};
    use super::*;

    /// What all adapters were given, for this and other test modules.
    pub fn about() -> About {
        About {
            model: "m.gguf".to_owned(),
            weights: "q8".to_owned(),
            kv: "f16".to_owned(),
            tokens: 64,
            greedy: vec![5, 6],
            continuation: " so".to_owned(),
            reference_s: 3.25,
        }
    }

    #[test]
    fn a_table_fits_a_terminal_and_names_what_is_wrong() {
        let mut wrong = sample(1);
        wrong.name = "A card with a name that is long (and more)".to_owned();
        wrong.blame(bad_op());
        let mut away = sample(2);
        away.figures = None;
        away.fail(Verdict::Unavailable, "no compute shaders");
        let text = markdown(&about(), &[sample(0), wrong, away]);
        let table: Vec<&str> = text.lines().take(4).collect();
        assert!(
            table.iter().all(|line| line.chars().count() <= 100),
            "{text}"
        );
        for part in [
            "right",
            "A card with a name …",
            "first wrong operation: attention of layer 3 (kernel attention)",
            "q [128, 576]",
            "unavailable: no compute shaders",
            "17 tokens at 28",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn json_has_an_object_for_each_adapter() {
        let mut wrong = sample(1);
        wrong.blame(bad_op());
        let mut away = sample(2);
        away.figures = None;
        away.fail(Verdict::Unavailable, "no compute shaders");
        let value: Value =
            serde_json::from_str(&json(&about(), &[sample(0), wrong, away])).unwrap();
        let adapters = value["adapters"].as_array().unwrap();
        let verdicts: Vec<&str> = adapters
            .iter()
            .map(|a| a["verdict"].as_str().unwrap())
            .collect();
        assert_eq!(verdicts, ["right", "wrong", "unavailable"]);
        assert!(adapters[0]["first_bad_op"].is_null() && adapters[0]["reason"].is_null());
        assert_eq!(adapters[1]["first_bad_op"]["op"], "attention");
        assert_eq!(adapters[1]["first_bad_op"]["shape"]["q"], json!([128, 576]));
        assert_eq!(adapters[0]["layers"][1]["nmse"], 2e-8);
        assert!(adapters[0]["pairs"].is_null() && adapters[2]["layers"].is_null());
    }
}
