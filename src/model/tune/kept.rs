//! A tuning as text, and what it depends on: what is kept of it between runs.

use super::bench::Shape;
use super::search::{Pins, Progress};
use crate::gpu::{Gpu, KeptFile};
use crate::kernels::{Activations, Tuning};
use serde_json::{Value, json};

/// Of candidates and measurement: what an earlier one chose is measured again.
const VERSION: u32 = 2;

/// The file of the tuning of models of this shape, from `base` on with these pins.
pub fn file(gpu: &Gpu, shape: &Shape, base: Tuning, pins: Pins) -> Option<KeptFile> {
    let caps = format!("{} {:?}", gpu.caps(), gpu.caps().subgroup);
    let numbers = [
        u64::from(VERSION),
        shape.hidden as u64,
        shape.intermediate as u64,
        shape.vocab as u64,
        gpu.max_binding_bytes(),
        u64::from(gpu.checked()),
        u64::from(pins.activations),
        u64::from(pins.lanes),
    ];
    let words = [shape.format.name, &caps, &base.describe()];
    let about: Vec<&[u8]> = words
        .iter()
        .map(|word| word.as_bytes())
        .chain([bytemuck::cast_slice(&numbers)])
        .collect();
    gpu.kept_file("tuning", &about)
}

/// How far a search has come, as JSON.
pub fn to_text(progress: &Progress) -> String {
    let Progress { best, next, late } = progress;
    json!({
        "activations": best.activations.name(),
        "lanes": best.lanes,
        "workgroup": best.workgroup,
        "tile_tokens": best.tile_tokens,
        "subgroups": best.subgroups,
        "wide": best.wide,
        "next": next,
        "late": late,
    })
    .to_string()
}

/// What [`to_text`] wrote. Whether the choices make sense is for the caller to see.
pub fn from_text(text: &[u8]) -> Option<Progress> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let number = |name: &str| u32::try_from(value.get(name)?.as_u64()?).ok();
    let flag = |name: &str| value.get(name)?.as_bool();
    let best = Tuning {
        activations: Activations::from_name(value.get("activations")?.as_str()?)?,
        lanes: number("lanes")?,
        workgroup: number("workgroup")?,
        tile_tokens: number("tile_tokens")?,
        subgroups: flag("subgroups")?,
        wide: flag("wide")?,
    };
    Some(Progress {
        best,
        next: number("next")? as usize,
        late: number("late")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::q8;

    const TUNING: Tuning = Tuning {
        activations: Activations::Q8,
        lanes: 16,
        workgroup: 128,
        tile_tokens: 4,
        subgroups: true,
        wide: false,
    };

    fn progress(best: Tuning) -> Progress {
        Progress {
            best,
            next: 3,
            late: 2,
        }
    }

    #[test]
    fn a_tuning_comes_back() {
        for activations in Activations::ALL {
            let progress = progress(Tuning {
                activations,
                ..TUNING
            });
            assert_eq!(from_text(to_text(&progress).as_bytes()), Some(progress));
        }
    }

    #[test]
    fn what_is_no_tuning_is_none() {
        let text = to_text(&progress(TUNING));
        for (from, to) in [
            ("q8", "q9"),
            ("16", "-16"),
            ("16", "16.5"),
            ("128", "4294967424"),
            ("true", "1"),
            ("\"wide\"", "\"wider\""),
            ("next\":3", "next\":-3"),
            ("{", "["),
        ] {
            let damaged = text.replacen(from, to, 1);
            assert_ne!(damaged, text);
            assert_eq!(from_text(damaged.as_bytes()), None, "{damaged}");
        }
        for cut in 0..text.len() {
            assert_eq!(from_text(&text.as_bytes()[..cut]), None);
        }
        assert_eq!(from_text(&[0xff, 0xfe]), None);
    }

    #[test]
    fn numbers_out_of_range_are_impossible() {
        assert!(TUNING.is_possible(&q8::Q8));
        let lanes = [0, 3, 64, u32::MAX].map(|lanes| Tuning { lanes, ..TUNING });
        let workgroup = [0, 1, 64, 192, 512, u32::MAX].map(|workgroup| Tuning {
            workgroup,
            ..TUNING
        });
        let tile = [0, 3, 16].map(|tile_tokens| Tuning {
            tile_tokens,
            ..TUNING
        });
        for tuning in lanes.iter().chain(&workgroup).chain(&tile) {
            let impossible = !tuning.is_possible(&q8::Q8);
            assert!(impossible, "{tuning:?}");
        }
        // single lanes share within teams of eight
        let single = |workgroup| Tuning {
            lanes: 1,
            workgroup,
            ..TUNING
        };
        assert!(single(8).is_possible(&q8::Q8) && !single(64).is_possible(&q8::Q8));
    }
}
