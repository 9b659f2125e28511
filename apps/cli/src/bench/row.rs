//! One test's result: the names of llama-bench where it has them, then ours.

use nelumbo::engine::EngineCore;
use nelumbo::kernels::peaks::Peaks;
use nelumbo::model::roofline::{ModelShape, Roofline, Run, Work as Least};
use serde::Serialize;

use super::against::Against;
use super::machine::Machine;
use super::plan::{Test, Work};
use super::stats::{deviation, mean};

/// One object of `-o json`, one line of `-o csv`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub machine: Machine,
    #[serde(flatten)]
    pub model: Model,
    pub n_parallel: u32,
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_depth: usize,
    pub test: String,
    /// Runs that are not counted.
    pub warmup: u32,
    pub reps: usize,
    pub avg_ns: u64,
    pub stddev_ns: u64,
    /// Tokens a second.
    pub avg_ts: f64,
    pub stddev_ts: f64,
    pub samples_ns: Vec<u64>,
    pub samples_ts: Vec<f64>,
    /// Bytes that a run of the test has to move at least.
    pub bytes_moved: u64,
    /// Operations that it has to do.
    pub flops: u64,
    /// The least time that those take at the peaks, over the time that it took.
    pub roofline_pct: f64,
    /// Tokens a second that the roofline of this run, with the shares that kernels reach, foretold.
    pub predicted_ts: Option<f64>,
    /// `avg_ts` over that, in percent.
    pub predicted_pct: Option<f64>,
    pub peak_stream_bytes_s: f64,
    pub peak_fma_flops: f64,
    pub peak_dot4_ops: f64,
    /// Bytes of all buffers on the device.
    pub peak_bytes: u64,
    /// `adapter_name` and `build_commit` again.
    pub adapter: String,
    pub commit: String,
    /// With `--against`: what became of it since.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<Against>,
}

/// The model, as every row tells it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    pub model_filename: String,
    pub model_type: String,
    /// Bytes of weights on the device.
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub type_k: String,
    pub type_v: String,
    /// `canonical` or `fast`.
    pub numerics: String,
}

impl Model {
    /// What `engine` runs, loaded from `filename` with `weights`.
    pub fn of(engine: &EngineCore, filename: String, weights: &str) -> Model {
        let decoder = engine.decoder();
        let params = decoder.config().num_params();
        let kept = decoder.kv().format().name();
        Model {
            model_filename: filename,
            model_type: format!(
                "{} {} {weights}",
                decoder.config().architecture,
                rounded(params)
            ),
            model_size: decoder.weights().size_bytes(),
            model_n_params: params,
            n_batch: decoder.max_batched_tokens(),
            n_ubatch: decoder.max_batched_tokens(),
            type_k: kept.to_owned(),
            type_v: kept.to_owned(),
            numerics: decoder.numerics().name().to_owned(),
        }
    }
}

/// `135M`, `1.2B`.
fn rounded(params: u64) -> String {
    if params < 1_000_000_000 {
        format!("{:.0}M", params as f64 / 1e6)
    } else {
        format!("{:.1}B", params as f64 / 1e9)
    }
}

/// The least that one run of `test` takes.
pub fn least(engine: &EngineCore, test: &Test) -> Least {
    let decoder = engine.decoder();
    let (step_tokens, head_rows) = match test.work {
        Work::Prompt(_) => (decoder.max_batched_tokens(), 1),
        Work::Generation(count) => (1, count),
    };
    ModelShape::of(decoder).least_work(&Run {
        depth: test.depth,
        tokens: test.tokens(),
        step_tokens,
        head_rows,
    })
}

/// Tokens a second of `test`, as `roofline` foretells.
pub fn predicted(engine: &EngineCore, roofline: &Roofline, test: &Test) -> f64 {
    let decoder = engine.decoder();
    let shape = ModelShape::of(decoder);
    let seconds = match test.work {
        Work::Prompt(count) => {
            roofline.prompt_seconds(&shape, test.depth, count, decoder.max_batched_tokens())
        }
        Work::Generation(count) => roofline.decode_seconds(&shape, test.depth, count),
    };
    test.tokens() as f64 / seconds
}

impl Row {
    /// The same with what was foretold.
    pub fn with_prediction(self, predicted_ts: Option<f64>) -> Row {
        Row {
            predicted_ts,
            predicted_pct: predicted_ts.map(|predicted| 100.0 * self.avg_ts / predicted),
            ..self
        }
    }

    /// The result of `test`, whose runs took these nanoseconds.
    pub fn new(
        (machine, model): (&Machine, &Model),
        test: &Test,
        samples_ns: Vec<u64>,
        least: Least,
        peaks: &Peaks,
        peak_bytes: u64,
    ) -> Row {
        let ns: Vec<f64> = samples_ns.iter().map(|&ns| ns as f64).collect();
        let ts: Vec<f64> = ns
            .iter()
            .map(|ns| test.tokens() as f64 * 1e9 / ns.max(1.0))
            .collect();
        let seconds = mean(&ns).max(1.0) / 1e9;
        let at_best = peaks.least_seconds(least.bytes, least.flops, peaks.matmul_flops());
        let (n_prompt, n_gen) = match test.work {
            Work::Prompt(count) => (count, 0),
            Work::Generation(count) => (0, count),
        };
        Row {
            n_parallel: 1,
            n_prompt,
            n_gen,
            n_depth: test.depth,
            test: test.name(),
            warmup: 1,
            reps: samples_ns.len(),
            avg_ns: mean(&ns) as u64,
            stddev_ns: deviation(&ns) as u64,
            avg_ts: mean(&ts),
            stddev_ts: deviation(&ts),
            samples_ns,
            samples_ts: ts,
            bytes_moved: least.bytes as u64,
            flops: least.flops as u64,
            roofline_pct: 100.0 * at_best / seconds,
            predicted_ts: None,
            predicted_pct: None,
            peak_stream_bytes_s: peaks.stream_bytes_s,
            peak_fma_flops: peaks.fma_flops,
            peak_dot4_ops: peaks.dot4_ops,
            peak_bytes,
            adapter: machine.adapter_name.clone(),
            commit: machine.build_commit.clone(),
            machine: machine.clone(),
            model: model.clone(),
            against: None,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::machine;
    use super::*;

    /// A row for this and other test modules.
    pub fn sample() -> Row {
        let model = Model {
            model_filename: "a,b.gguf".to_owned(),
            model_type: "llama 135M q8".to_owned(),
            model_size: 143_025_408,
            model_n_params: 134_515_008,
            n_batch: 128,
            n_ubatch: 128,
            type_k: "f16".to_owned(),
            type_v: "f16".to_owned(),
            numerics: "canonical".to_owned(),
        };
        let peaks = Peaks {
            stream_bytes_s: 10e9,
            fma_flops: 100e9,
            dot4_ops: 200e9,
            dispatch_s: 1e-5,
        };
        let test = Test {
            work: Work::Generation(10),
            depth: 512,
        };
        let least = Least {
            bytes: 1e9,
            flops: 1e9,
        };
        let samples = vec![400_000_000, 500_000_000, 600_000_000];
        let machine = machine::tests::sample();
        Row::new((&machine, &model), &test, samples, least, &peaks, 42)
    }

    #[test]
    fn speeds_and_shares_come_from_the_samples() {
        let row = sample();
        assert_eq!((row.avg_ns, row.stddev_ns), (500_000_000, 100_000_000));
        assert_eq!(row.samples_ts[..2], [25.0, 20.0]);
        assert!((row.avg_ts - (25.0 + 20.0 + 10.0 / 0.6) / 3.0).abs() < 1e-9);
        // a tenth of a second for the bytes, half a second measured
        assert!((row.roofline_pct - 20.0).abs() < 1e-9);
        assert_eq!((row.n_prompt, row.n_gen, row.n_depth), (0, 10, 512));
        assert_eq!((row.adapter.as_str(), row.reps), ("Card", 3));
        assert_eq!(row.predicted_ts.or(row.predicted_pct), None);
        let foretold = row.clone().with_prediction(Some(2.0 * row.avg_ts));
        assert_eq!(foretold.predicted_pct, Some(50.0));
    }

    #[test]
    fn parameters_are_rounded_as_people_say_them() {
        assert_eq!(rounded(134_515_008), "135M");
        assert_eq!(rounded(1_235_814_400), "1.2B");
    }
}
