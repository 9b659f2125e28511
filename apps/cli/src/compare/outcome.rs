//! What came of an adapter, as every format tells it.

use nelumbo::Error;
use nelumbo::engine::compare::{BadOp, Found};
use nelumbo::gpu::AdapterReport;
use serde::Serialize;

/// Largest NMSE of a residual stream that is no fault: some hundred times what healthy adapters have, 7e-8
/// with f32 activations and 4e-4 with q8. The operations' own bounds are far narrower; this is for what
/// they cannot see.
const MOST_NMSE: f64 = 1e-5;
const MOST_NMSE_Q8: f64 = 5e-2;
/// Of the fast mode, which rounds to f16.
const MOST_NMSE_FAST: f64 = 1e-3;

/// Whether an adapter computes the right thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Right,
    Wrong,
    /// It cannot be used, or not for this.
    Unavailable,
}

impl Verdict {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Right => "right",
            Verdict::Wrong => "wrong",
            Verdict::Unavailable => "unavailable",
        }
    }
}

/// One adapter: who it is, the verdict, and all figures there are.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    pub index: usize,
    pub name: String,
    pub backend: String,
    pub driver: String,
    #[serde(rename = "type")]
    pub device_type: String,
    pub verdict: Verdict,
    /// Why it is wrong or unavailable.
    pub reason: Option<String>,
    /// The first operation that wrote what it must not.
    pub first_bad_op: Option<FirstBadOp>,
    #[serde(flatten)]
    pub figures: Option<Figures>,
}

/// An operation, its place, its shape, and what is wrong.
#[derive(Debug, Clone, Serialize)]
pub struct FirstBadOp {
    pub op: String,
    pub layer: Option<usize>,
    pub kernel: String,
    pub variant: String,
    /// Name and dims of each tensor that it binds.
    pub shape: serde_json::Map<String, serde_json::Value>,
    /// What the step computed.
    pub step: String,
    pub problem: String,
}

/// What was measured on an adapter.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    pub activations: String,
    pub numerics: String,
    pub layers: Vec<Layer>,
    /// Share of tokens after which the likeliest one is that of the reference.
    pub top1_agreement: f64,
    /// Nats.
    pub kl_mean: f64,
    pub kl_max: f64,
    pub greedy_tokens: Vec<u32>,
    /// Tokens of the continuation that are not those of the reference.
    pub differing_tokens: usize,
    /// The first of them, from 0.
    pub first_difference: Option<usize>,
    pub ttft_ms: f64,
    pub prefill_tok_s: f64,
    pub decode_tok_s: f64,
    pub load_ms: f64,
    pub compile_ms: f64,
    pub weights_bytes: u64,
    pub kv_bytes: u64,
    pub scratch_bytes: u64,
    /// Of all buffers, once the model is loaded.
    pub peak_bytes: u64,
    /// Dispatches that were judged one by one.
    pub dispatches_checked: usize,
    /// Kernels among them, and those that were held against their cases instead.
    pub kernels_checked: usize,
    /// For the plot; not printed.
    #[serde(skip)]
    pub pairs: Vec<(f32, f32)>,
}

/// The error of one layer's residual stream.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Layer {
    pub nmse: f64,
    pub max_abs: f64,
}

impl Outcome {
    /// An adapter of which nothing is known yet.
    pub fn of(report: &AdapterReport) -> Outcome {
        Outcome {
            index: report.index,
            name: report.name.clone(),
            backend: report.backend.name().to_owned(),
            driver: report.driver_text(),
            device_type: report.device_type.name().to_owned(),
            verdict: Verdict::Right,
            reason: None,
            first_bad_op: None,
            figures: None,
        }
    }

    /// The same, wrong or unavailable for this reason. What was wrong before stays.
    pub fn fail(&mut self, verdict: Verdict, reason: impl Into<String>) {
        if self.verdict == Verdict::Right {
            self.verdict = verdict;
            self.reason = Some(reason.into());
        }
    }

    /// What an error says of an adapter: what it lacks is no fault of it, what breaks on the way is.
    pub fn fail_by(&mut self, error: &Error) {
        let verdict = match error {
            Error::NoAdapter { .. }
            | Error::AdapterLimit { .. }
            | Error::AdapterLacks { .. }
            | Error::DoesNotFit { .. }
            | Error::OutOfMemory { .. }
            | Error::Request { .. }
            | Error::RequestTooLong { .. } => Verdict::Unavailable,
            _ => Verdict::Wrong,
        };
        self.fail(verdict, error.to_string());
    }

    /// A wrong operation.
    pub fn blame(&mut self, bad: BadOp) {
        let layer = bad
            .layer
            .map_or(String::new(), |layer| format!(" of layer {layer}"));
        self.fail(
            Verdict::Wrong,
            format!("{}{layer} is the first that is wrong", bad.op),
        );
        self.first_bad_op.get_or_insert(FirstBadOp {
            op: bad.op,
            layer: bad.layer,
            kernel: bad.kernel.to_owned(),
            variant: bad.variant,
            shape: bad
                .shape
                .into_iter()
                .map(|(name, dims)| (name, dims.into()))
                .collect(),
            step: bad.step,
            problem: bad.problem,
        });
    }

    /// "0 llvmpipe (vulkan)".
    pub fn label(&self) -> String {
        format!("{} {} ({})", self.index, self.name, self.backend)
    }
}

/// Why the results are wrong, where they are, although no operation is; `activations` and `numerics` as
/// figures tell them.
pub fn judge(found: &Found, activations: &str, numerics: &str) -> Option<String> {
    let limit = match (activations, numerics) {
        ("q8", _) => MOST_NMSE_Q8,
        (_, "fast") => MOST_NMSE_FAST,
        _ => MOST_NMSE,
    };
    let off = found
        .layers
        .iter()
        .position(|l| l.nmse.is_nan() || l.nmse > limit);
    if let Some(layer) = off {
        let nmse = found.layers[layer].nmse;
        return Some(format!(
            "the residual stream after layer {layer} is off by an NMSE of {nmse:.1e}, over {limit:.0e}"
        ));
    }
    found
        .kl()
        .0
        .is_nan()
        .then(|| "there are logits that are no numbers".to_owned())
}

#[cfg(test)]
pub mod tests {
    use nelumbo::engine::compare::{Divergence, LayerError};

    use super::*;

    fn found(nmse: f64, kl: f64) -> Found {
        Found {
            layers: vec![
                LayerError {
                    nmse: 1e-9,
                    max_abs: 0.0,
                },
                LayerError { nmse, max_abs: 1.0 },
            ],
            divergences: vec![Divergence { kl, same_top: true }],
            pairs: Vec::new(),
        }
    }

    #[test]
    fn a_stream_far_off_is_wrong_and_names_its_layer() {
        assert_eq!(judge(&found(1e-6, 0.0), "f32", "canonical"), None);
        assert_eq!(judge(&found(1e-3, 0.0), "q8", "canonical"), None);
        for nmse in [1e-3, f64::INFINITY, f64::NAN] {
            let why = judge(&found(nmse, 0.0), "f32", "canonical").unwrap();
            assert!(why.contains("after layer 1"), "{why}");
        }
        assert!(
            judge(&found(1e-6, f64::NAN), "f32", "canonical")
                .unwrap()
                .contains("no numbers")
        );
    }

    #[test]
    fn what_is_lacking_is_no_fault() {
        let memory = Error::OutOfMemory {
            what: "kv".into(),
            bytes: 1,
        };
        let lost = Error::DeviceLost {
            reason: "reset".into(),
        };
        let mut outcome = sample(0);
        outcome.fail_by(&memory);
        assert_eq!(outcome.verdict, Verdict::Unavailable);
        let mut outcome = sample(0);
        outcome.fail_by(&lost);
        outcome.fail_by(&memory);
        assert_eq!(outcome.verdict, Verdict::Wrong);
        assert!(outcome.reason.unwrap().contains("reset"));
    }

    /// An adapter that is right, for this and other test modules.
    pub fn sample(index: usize) -> Outcome {
        Outcome {
            index,
            name: format!("Card <{index}>"),
            backend: "vulkan".to_owned(),
            driver: "drv 1.2".to_owned(),
            device_type: "discrete".to_owned(),
            verdict: Verdict::Right,
            reason: None,
            first_bad_op: None,
            figures: Some(Figures {
                activations: "f32".to_owned(),
                numerics: "canonical".to_owned(),
                layers: vec![
                    Layer {
                        nmse: 1e-9,
                        max_abs: 1e-4,
                    },
                    Layer {
                        nmse: 2e-8,
                        max_abs: 2e-3,
                    },
                ],
                top1_agreement: 1.0,
                kl_mean: 1e-7,
                kl_max: 3e-6,
                greedy_tokens: vec![5, 6],
                differing_tokens: 0,
                first_difference: None,
                ttft_ms: 120.0,
                prefill_tok_s: 533.0,
                decode_tok_s: 48.25,
                load_ms: 900.0,
                compile_ms: 400.0,
                weights_bytes: 143_000_000,
                kv_bytes: 47_000_000,
                scratch_bytes: 9_000_000,
                peak_bytes: 201_000_000,
                dispatches_checked: 500,
                kernels_checked: 9,
                pairs: vec![(1.0, 1.001), (-2.0, -2.0)],
            }),
        }
    }

    /// The operation that a faulty one is told by.
    pub fn bad_op() -> BadOp {
        BadOp {
            op: "attention".to_owned(),
            layer: Some(3),
            kernel: "attention",
            variant: "attention+kv/f16".to_owned(),
            shape: vec![("q".to_owned(), vec![128, 576])],
            step: "17 tokens at 28".to_owned(),
            problem: "act_out from word 0: element 5 is 1e0, expected 2e0 +- 1e-3".to_owned(),
        }
    }
}
