//! What `nelumbo perplexity` prints.

use nelumbo::engine::perplexity::{Divergence, Perplexity, Summary, Windows};
use serde::Serialize;

use crate::output::{Device, Numerics, markdown_table};

/// The result: the JSON object of `-o json`, field by field.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub model: String,
    pub ppl: f64,
    /// A standard error, as all errors here.
    pub ppl_error: f64,
    /// Mean negative log-likelihood, in nats.
    pub nll: f64,
    pub tokens_scored: u64,
    pub windows: usize,
    pub window: usize,
    /// `all` or `second-half`.
    pub scored: String,
    pub per_window_nll: Vec<f64>,
    #[serde(flatten)]
    pub divergence: Option<Compared>,
    pub settings: Numerics,
    pub device: Device,
    pub seconds: f64,
}

/// How far the predictions are from those of the base.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    pub base: Base,
    #[serde(flatten)]
    pub summary: Summary,
}

/// What was compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Base {
    /// Over the same predictions.
    pub ppl: f64,
    /// What it says of itself.
    pub about: String,
}

impl Compared {
    /// With a base that says this of itself.
    pub fn new(divergence: &Divergence, about: String) -> Compared {
        Compared {
            base: Base {
                ppl: divergence.base_ppl(),
                about,
            },
            summary: divergence.summary(),
        }
    }
}

impl Report {
    /// Of all windows.
    pub fn new(
        model: String,
        all: &Perplexity,
        windows: &Windows,
        divergence: Option<Compared>,
        (settings, device): (Numerics, Device),
        seconds: f64,
    ) -> Report {
        Report {
            model,
            ppl: all.ppl(),
            ppl_error: all.ppl_error(),
            nll: all.nll(),
            tokens_scored: all.count(),
            windows: windows.count(),
            window: windows.size(),
            scored: windows.scored().name().to_owned(),
            per_window_nll: all.windows().to_vec(),
            divergence,
            settings,
            device,
            seconds,
        }
    }

    /// A table in Markdown, and below it another one for a comparison.
    pub fn markdown(&self) -> String {
        let s = &self.settings;
        let mut text = markdown(&[
            ["model", &self.model],
            ["weights, activations, KV", &about(s)],
            [
                "scored",
                &format!(
                    "{} tokens ({}) of {} windows of {}",
                    self.tokens_scored, self.scored, self.windows, self.window
                ),
            ],
            ["perplexity", &plus_minus(self.ppl, self.ppl_error, 4)],
        ]);
        if let Some(Compared { base, summary: d }) = &self.divergence {
            let percent = |value: f64| format!("{:.3} %", 100.0 * value);
            text.push('\n');
            text += &markdown(&[
                ["base", &base.about],
                ["perplexity of the base", &format!("{:.4}", base.ppl)],
                ["this / base", &plus_minus(d.ratio, d.ratio_error, 6)],
                ["mean KL, nats", &plus_minus(d.mean_kl, d.mean_kl_error, 6)],
                ["largest KL", &format!("{:.6}", d.max_kl)],
                ["99.9 % of KL", &format!("{:.6}", d.kl_p999)],
                ["99 %", &format!("{:.6}", d.kl_p99)],
                ["95 %", &format!("{:.6}", d.kl_p95)],
                ["median", &format!("{:.6}", d.kl_median)],
                [
                    "same likeliest token",
                    &format!(
                        "{} ± {}",
                        percent(d.top1_agree),
                        percent(d.top1_agree_error)
                    ),
                ],
                ["mean change of p", &percent(d.mean_delta_p)],
                ["root mean square of it", &percent(d.rms_delta_p)],
            ]);
        }
        text
    }
}

/// What made predictions, on one line.
pub fn about(numerics: &Numerics) -> String {
    let mode = match numerics.mode.as_str() {
        "canonical" => String::new(),
        other => format!(", {other}"),
    };
    format!(
        "{}, {}, {}{mode}",
        numerics.weights, numerics.activations, numerics.kv
    )
}

fn plus_minus(value: f64, error: f64, digits: usize) -> String {
    format!("{value:.digits$} ± {error:.digits$}")
}

/// Two columns of words, of which the first names the second; the first row is the head.
fn markdown(rows: &[[&str; 2]]) -> String {
    let owned = |row: &[&str; 2]| row.map(str::to_owned);
    let (head, rows) = rows.split_first().expect("a table has a head");
    let rows: Vec<Vec<String>> = rows.iter().map(|row| owned(row).to_vec()).collect();
    markdown_table(&owned(head), &[0, 1], &rows)
}

#[cfg(test)]
mod tests {
    use nelumbo::engine::perplexity::Scored;

    use super::*;

    fn report(divergence: Option<Compared>) -> Report {
        let mut all = Perplexity::default();
        for p in [0.5f64, 0.25, 0.25] {
            all.add(p.ln());
        }
        all.end_window();
        let windows = Windows::new(vec![1; 4], 4, Scored::All, None).unwrap();
        let word = |w: &str| w.to_owned();
        let settings = Numerics {
            mode: word("canonical"),
            weights: word("q8"),
            activations: word("f32"),
            kv: word("f16"),
            lanes: 1,
        };
        let device = Device {
            adapter: word("Card"),
            backend: word("vulkan"),
            driver: word("drv"),
            caps: vec![],
        };
        let about = (settings, device);
        Report::new(word("m.gguf"), &all, &windows, divergence, about, 1.5)
    }

    fn compared() -> Compared {
        Compared {
            base: Base {
                ppl: 3.0,
                about: "b.gguf: f16, f32, f16".to_owned(),
            },
            summary: Summary {
                ratio: 1.05,
                ratio_error: 0.01,
                mean_kl: 0.001,
                mean_kl_error: 0.0001,
                max_kl: 0.5,
                kl_p999: 0.4,
                kl_p99: 0.3,
                kl_p95: 0.2,
                kl_median: 0.0005,
                top1_agree: 0.975,
                top1_agree_error: 0.001,
                mean_delta_p: -0.0001,
                rms_delta_p: 0.01,
            },
        }
    }

    #[test]
    fn tables_are_aligned_and_name_settings_and_errors() {
        let text = report(Some(compared())).markdown();
        for part in [
            "| q8, f32, f16 ",
            "3 tokens (all) of 1 windows of 4",
            "| perplexity               | 3.1748 ± ",
            "| this / base            | 1.050000 ± 0.010000",
            "| same likeliest token   | 97.500 % ± 0.100 %",
            "b.gguf: f16, f32, f16",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let (above, below) = text.split_once("\n\n").unwrap();
        for table in [above, below] {
            let widths: Vec<usize> = table.lines().map(|l| l.chars().count()).collect();
            assert!(widths.iter().all(|w| *w == widths[0]), "{table}");
        }
        assert_eq!(report(None).markdown().matches("\n| -").count(), 1);
    }

    #[test]
    fn json_has_the_promised_fields() {
        let json = serde_json::to_value(report(Some(compared()))).unwrap();
        for key in "ppl ppl_error nll tokens_scored windows window scored per_window_nll ratio ratio_error \
                    mean_kl mean_kl_error max_kl kl_p999 kl_p99 kl_p95 kl_median top1_agree \
                    top1_agree_error mean_delta_p rms_delta_p settings device model seconds"
            .split_whitespace()
        {
            assert!(!json[key].is_null(), "{key}: {json}");
        }
        assert_eq!(json["base"]["ppl"], 3.0);
        assert_eq!(json["settings"]["weights"], "q8");
        let alone = serde_json::to_value(report(None)).unwrap();
        assert!(alone.get("base").is_none() && alone.get("mean_kl").is_none());
    }
}
