//! What `nelumbo quantize` prints.

use nelumbo::model::convert::TensorReport;
use serde::Serialize;

use crate::models::human_bytes;
use crate::output::table;
use crate::perplexity::report::Report as Scored;

/// The result: the JSON object of `--json`, field by field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    #[serde(rename = "in")]
    pub input: String,
    pub out: String,
    #[serde(rename = "type")]
    pub kind: String,
    /// Of tensors, scales included.
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// After over before.
    pub ratio: f64,
    pub file_bytes: u64,
    pub max_abs: f64,
    /// Over all tensors; its square is the normalised mean square error.
    pub relative_rms: f64,
    pub nmse: f64,
    pub tensors: Vec<Tensor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Check>,
}

/// One tensor under its new name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub from: String,
    pub to: String,
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub max_abs: f64,
    pub relative_rms: f64,
    pub nmse: f64,
}

/// Both models on one text. KL in nats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    pub ppl_before: f64,
    pub ppl_after: f64,
    pub ppl_error: f64,
    pub ratio: f64,
    pub mean_kl: f64,
    pub max_kl: f64,
    pub top1_agree: f64,
    pub tokens_scored: u64,
}

impl Check {
    /// From predictions that were compared.
    pub fn new(scored: &Scored) -> Option<Check> {
        let compared = scored.divergence.as_ref()?;
        Some(Check {
            ppl_before: compared.base.ppl,
            ppl_after: scored.ppl,
            ppl_error: scored.ppl_error,
            ratio: compared.summary.ratio,
            mean_kl: compared.summary.mean_kl,
            max_kl: compared.summary.max_kl,
            top1_agree: compared.summary.top1_agree,
            tokens_scored: scored.tokens_scored,
        })
    }
}

impl Report {
    /// Of what was written.
    pub fn new(
        (input, out, kind): (String, String, String),
        tensors: &[TensorReport],
        file_bytes: u64,
    ) -> Report {
        let sum = |part: fn(&TensorReport) -> u64| tensors.iter().map(part).sum::<u64>();
        let (before, after) = (sum(|t| t.bytes.0), sum(|t| t.bytes.1));
        let squares = |part: fn(&TensorReport) -> f64| tensors.iter().map(part).sum::<f64>();
        let (lost, all) = (squares(|t| t.squares.0), squares(|t| t.squares.1));
        let nmse = if all > 0.0 { lost / all } else { 0.0 };
        Report {
            input,
            out,
            kind,
            bytes_before: before,
            bytes_after: after,
            ratio: after as f64 / before as f64,
            file_bytes,
            max_abs: tensors.iter().map(|t| t.max_abs).fold(0.0, f64::max),
            relative_rms: nmse.sqrt(),
            nmse,
            tensors: tensors.iter().map(Tensor::new).collect(),
            check: None,
        }
    }

    /// A line for each tensor, and the sums below.
    pub fn text(&self) -> String {
        let header = [
            "TENSOR",
            "SHAPE",
            "FROM",
            "TO",
            "BYTES",
            "LARGEST ERROR",
            "RELATIVE RMS",
        ];
        let rows = self.tensors.iter().map(|t| {
            let shape: Vec<String> = t.shape.iter().map(usize::to_string).collect();
            [
                t.name.clone(),
                shape.join(" x "),
                t.from.clone(),
                t.to.clone(),
                t.bytes_after.to_string(),
                error(t.max_abs),
                error(t.relative_rms),
            ]
        });
        let header = header.map(str::to_owned);
        let mut text = table(std::iter::once(header).chain(rows));
        text += &format!(
            "\n{} tensors as {}: {} before, {} after ({:.1} %); largest error {}, relative RMS {}\n{}: {}\n",
            self.tensors.len(),
            self.kind,
            human_bytes(self.bytes_before),
            human_bytes(self.bytes_after),
            100.0 * self.ratio,
            error(self.max_abs),
            error(self.relative_rms),
            self.out,
            human_bytes(self.file_bytes),
        );
        if let Some(check) = &self.check {
            text += &format!(
                "perplexity {:.4} before, {:.4} after (x {:.6}); mean KL {:.6}, largest {:.6}; same likeliest \
                 token {:.2} % of {}\n",
                check.ppl_before,
                check.ppl_after,
                check.ratio,
                check.mean_kl,
                check.max_kl,
                100.0 * check.top1_agree,
                check.tokens_scored,
            );
        }
        text
    }
}

impl Tensor {
    fn new(report: &TensorReport) -> Tensor {
        let (from, to) = report.encodings.clone();
        Tensor {
            name: report.name.clone(),
            shape: report.shape.clone(),
            from,
            to,
            bytes_before: report.bytes.0,
            bytes_after: report.bytes.1,
            max_abs: report.max_abs,
            relative_rms: report.relative_rms,
            nmse: report.relative_rms.powi(2),
        }
    }
}

/// Three digits, 0 as it is.
fn error(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value => format!("{value:.2e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_errors_are_those_of_all_tensors() {
        let tensor = |name: &str, bytes, squares: (f64, f64), max_abs| TensorReport {
            name: name.to_owned(),
            encodings: ("F16".to_owned(), "INT8/row".to_owned()),
            shape: vec![4, 8],
            bytes,
            max_abs,
            relative_rms: (squares.0 / squares.1).sqrt(),
            squares,
        };
        let tensors = [
            tensor("a", (100, 50), (1.0, 60.0), 0.5),
            tensor("b", (100, 60), (3.0, 40.0), 0.25),
        ];
        let words = ("i".to_owned(), "o".to_owned(), "int8-channel".to_owned());
        let report = Report::new(words, &tensors, 123);
        assert_eq!(
            (report.bytes_before, report.bytes_after, report.ratio),
            (200, 110, 0.55)
        );
        assert_eq!((report.max_abs, report.nmse), (0.5, 0.04));
        let text = report.text();
        for part in [
            "a       4 x 8  F16   INT8/row  50     5.00e-1",
            "(55.0 %)",
            "relative RMS 2.00e-1",
            "o: 123 B",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["tensors"][1]["nmse"]
                .as_f64()
                .map(|n| (n * 1e6).round()),
            Some(75_000.0)
        );
        assert!(json.get("check").is_none() && json["type"] == "int8-channel");
    }
}
