//! Peaks and shares as text: measured once for each adapter, driver and set of shaders, and kept
//! beside its pipelines.

use super::rates::{AttentionShares, Roofline, Shares};
use super::reckon::Subject;
use super::step::Division;
use crate::gpu::{Gpu, KeptFile};
use crate::kernels::peaks::Peaks;
use crate::kv::KvFormat;
use crate::quant::Format;
use serde_json::{Value, json};

/// Of what is measured and how: results of another one are measured again.
const VERSION: u64 = 2;

impl Peaks {
    /// What an earlier run measured on this adapter, where it was kept.
    pub fn kept(gpu: &Gpu) -> Option<Peaks> {
        let text = peaks_file(gpu)?.read()?;
        peaks_from(&serde_json::from_slice(&text).ok()?)
    }

    /// Keeps them for later runs, where a folder was given.
    pub fn keep(&self, gpu: &Gpu) {
        if let Some(file) = peaks_file(gpu) {
            file.write(peaks_json(self).to_string().as_bytes());
        }
    }
}

impl Roofline {
    /// What an earlier run measured on this adapter with weights and a cache of these formats, with
    /// the tuning, as [`Tuning::describe`](crate::kernels::Tuning::describe) tells it, that it was
    /// measured with.
    pub fn kept(gpu: &Gpu, weights: &Format, kv: KvFormat) -> Option<(Roofline, String)> {
        let text = file(gpu, weights, kv)?.read()?;
        from_text(&text)
    }

    /// Keeps it for later runs, where a folder was given, in place of one with another tuning.
    pub fn keep(&self, gpu: &Gpu, subject: Subject) {
        if let Some(file) = file(gpu, subject.weights, subject.kv) {
            file.write(to_text(self, &subject.tuning.describe()).as_bytes());
        }
    }
}

fn peaks_file(gpu: &Gpu) -> Option<KeptFile> {
    gpu.kept_file("peaks", &[&VERSION.to_le_bytes()])
}

fn file(gpu: &Gpu, weights: &Format, kv: KvFormat) -> Option<KeptFile> {
    let caps = format!("{} {:?}", gpu.caps(), gpu.caps().subgroup);
    let numbers = [VERSION, gpu.max_binding_bytes(), u64::from(gpu.checked())];
    let words = [weights.name, kv.name(), &caps];
    let about: Vec<&[u8]> = words
        .iter()
        .map(|word| word.as_bytes())
        .chain([bytemuck::cast_slice(&numbers)])
        .collect();
    gpu.kept_file("roofline", &about)
}

fn peaks_json(peaks: &Peaks) -> Value {
    json!({
        "stream_bytes_s": peaks.stream_bytes_s,
        "fma_flops": peaks.fma_flops,
        "dot4_ops": peaks.dot4_ops,
        "dispatch_s": peaks.dispatch_s,
    })
}

/// A number that a time or a rate can be.
fn number(value: &Value, name: &str) -> Option<f64> {
    let number = value.get(name)?.as_f64()?;
    (number.is_finite() && number > 0.0).then_some(number)
}

fn peaks_from(value: &Value) -> Option<Peaks> {
    Some(Peaks {
        stream_bytes_s: number(value, "stream_bytes_s")?,
        fma_flops: number(value, "fma_flops")?,
        dot4_ops: number(value, "dot4_ops")?,
        dispatch_s: number(value, "dispatch_s")?,
    })
}

fn to_text(roofline: &Roofline, tuning: &str) -> String {
    let shares = &roofline.shares;
    let attention = |a: &AttentionShares| json!({ "head_dim": a.head_dim, "of_one": a.of_one, "of_many": a.of_many });
    json!({
        "peaks": peaks_json(&roofline.peaks),
        "matmul_ops_s": roofline.matmul_ops_s,
        "matmul": shares.matmul,
        "result_s": shares.result_s,
        "attention": shares.attention.iter().map(attention).collect::<Vec<_>>(),
        "memory": shares.memory,
        "dispatch_s": roofline.dispatch_s,
        // nothing is below zero, and zero would not be read again
        "step_s": roofline.step_s.max(1e-9),
        "tile_tokens": roofline.division.tile_tokens,
        "wanted_teams": roofline.division.wanted_teams,
        "tuning": tuning,
    })
    .to_string()
}

/// What [`to_text`] wrote.
fn from_text(text: &[u8]) -> Option<(Roofline, String)> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let count = |value: &Value| {
        let count = usize::try_from(value.as_u64()?).ok()?;
        (1..=1 << 20).contains(&count).then_some(count)
    };
    let pair = |pair: &Value| Some((count(pair.get(0)?)?, pair.get(1)?.as_f64()?));
    let matmul = |of: &Value| pair(of).filter(|(_, share)| *share > 0.0);
    let result_s = |of: &Value| pair(of).filter(|(_, seconds)| *seconds >= 0.0);
    let attention = |value: &Value| {
        Some(AttentionShares {
            head_dim: count(value.get("head_dim")?)?,
            of_one: number(value, "of_one")?,
            of_many: number(value, "of_many")?,
        })
    };
    let list = |name: &str| value.get(name)?.as_array();
    let roofline = Roofline {
        peaks: peaks_from(value.get("peaks")?)?,
        matmul_ops_s: number(&value, "matmul_ops_s")?,
        shares: Shares {
            matmul: list("matmul")?.iter().map(matmul).collect::<Option<_>>()?,
            result_s: list("result_s")?
                .iter()
                .map(result_s)
                .collect::<Option<_>>()?,
            attention: list("attention")?
                .iter()
                .map(attention)
                .collect::<Option<_>>()?,
            memory: number(&value, "memory")?,
        },
        dispatch_s: number(&value, "dispatch_s")?,
        step_s: number(&value, "step_s")?,
        division: Division {
            tile_tokens: count(value.get("tile_tokens")?)?,
            wanted_teams: count(value.get("wanted_teams")?)?,
        },
    };
    Some((roofline, value.get("tuning")?.as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::rates::tests::sample;
    use super::*;

    #[test]
    fn a_roofline_comes_back() {
        let text = to_text(&sample(), "act=q8");
        assert_eq!(
            from_text(text.as_bytes()),
            Some((sample(), "act=q8".to_owned()))
        );
        let peaks = peaks_json(&sample().peaks);
        assert_eq!(peaks_from(&peaks), Some(sample().peaks));
    }

    #[test]
    fn what_is_no_roofline_is_none() {
        let text = to_text(&sample(), "act=q8");
        for (from, to) in [
            ("\"memory\":0.5", "\"memory\":0"),
            ("\"memory\":0.5", "\"memory\":-0.5"),
            ("\"memory\":0.5", "\"memory\":\"0.5\""),
            ("[1,0.8]", "[0,0.8]"),
            ("[1,0.8]", "[1,-0.8]"),
            ("[1,0.8]", "[1]"),
            ("[1,2e-8]", "[1,-2e-8]"),
            ("\"tile_tokens\":8", "\"tile_tokens\":8.5"),
            ("\"tuning\":\"act=q8\"", "\"tuning\":8"),
            ("\"peaks\"", "\"peak\""),
            ("{", "["),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text, "{from}");
            assert_eq!(from_text(damaged.as_bytes()), None, "{damaged}");
        }
        assert_eq!(peaks_from(&json!({ "stream_bytes_s": 1 })), None);
    }
}
