//! `--slo ttft:MS,tpot:MS,itl:MS`.

use nelumbo::engine::simulate::Slo;
use serde_json::{Value, json};

/// What users are promised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise(pub Slo);

/// A promise of an hour is none.
const MOST_MS: f64 = 3_600_000.0;

/// Reads a list of promises; says what is wrong with it.
pub fn promise(text: &str) -> Result<Promise, String> {
    let mut slo = Slo::default();
    for item in text.split(',') {
        let expected = || format!("\"{item}\" is not ttft:MS, tpot:MS or itl:MS");
        let (name, value) = item.trim().split_once(':').ok_or_else(expected)?;
        let place = match name {
            "ttft" => &mut slo.ttft,
            "tpot" => &mut slo.tpot,
            "itl" => &mut slo.itl,
            _ => return Err(expected()),
        };
        let ms: f64 = value.parse().map_err(|_| expected())?;
        if !(ms > 0.0 && ms <= MOST_MS) {
            return Err(format!(
                "\"{item}\": {ms} is not above 0 and up to {MOST_MS}"
            ));
        }
        if place.replace(ms / 1e3).is_some() {
            return Err(format!("\"{name}\" is there twice"));
        }
    }
    Ok(Promise(slo))
}

impl Promise {
    fn parts(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let Slo { ttft, tpot, itl } = self.0;
        let all = [("ttft", ttft), ("tpot", tpot), ("itl", itl)];
        all.into_iter()
            .filter_map(|(name, limit)| Some((name, 1e3 * limit?)))
    }

    /// In words.
    pub fn words(&self) -> String {
        let parts: Vec<String> = self
            .parts()
            .map(|(name, ms)| format!("{name} within {ms} ms"))
            .collect();
        parts.join(", ")
    }

    /// In milliseconds, by name.
    pub fn json(&self) -> Value {
        let parts = self
            .parts()
            .map(|(name, ms)| (format!("{name}_ms"), json!(ms)));
        Value::Object(parts.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_read_by_name() {
        let read = promise("ttft:1500,tpot:50").unwrap();
        assert_eq!(
            (read.0.ttft, read.0.tpot, read.0.itl),
            (Some(1.5), Some(0.05), None)
        );
        assert_eq!(read.words(), "ttft within 1500 ms, tpot within 50 ms");
        assert_eq!(read.json(), json!({ "ttft_ms": 1500.0, "tpot_ms": 50.0 }));
        assert_eq!(promise("itl:20").unwrap().0.itl, Some(0.02));
        for bad in [
            "",
            "ttft",
            "ttft:",
            "ttft:x",
            "ttft:0",
            "ttft:-1",
            "ttft:nan",
            "e2e:5",
            "itl:1e9",
            "ttft:1,ttft:2",
            "ttft:1,,tpot:2",
        ] {
            assert!(promise(bad).is_err(), "{bad}");
        }
    }
}
