//! A model that drafts for itself.

use crate::quantile::quantile;
use crate::report::Report;
use crate::runs::{Lane, prompts};
use crate::speculate;
use nelumbo::engine::Speculate;
use nelumbo::engine::speculate::{DraftDraws, DraftModel};
use nelumbo::formats;
use nelumbo::model::families::family;
use nelumbo::model::load::decoder_from_parts;
use nelumbo::quant::{FORMATS, Format};
use nelumbo::{Error, LoadOptions, kernels};
use serde_json::json;
use std::path::Path;

const ANSWER: usize = 96;
const TURNS: usize = 3;

/// Acceptance by the number of proposed tokens, and the speed-up.
pub fn drafts(path: &Path, load: &LoadOptions, report: &mut Report) -> Result<(), Error> {
    let files = formats::open(path)?;
    let family = family(&files)?;
    let whole = (family.config)(&files)?;
    let names = (family.names)(&files);
    let mut off = Lane::open(path, load, speculate(Speculate::Off, None), None)?;
    report.begin("draft", &off.engine);
    let named = |format: &&&Format| format.name == "f16";
    let other: &Format = FORMATS.iter().find(named).expect("a format");
    let half = whole.num_layers / 2;
    report.line("draft                  k  accepted          predicted  measured");
    for (name, layers, format) in [
        ("f16 weights", whole.num_layers, other),
        ("first half of layers", half, load.weights),
    ] {
        for count in [1, 2, 4, 8] {
            let config = nelumbo::model::Config {
                num_layers: layers,
                ..whole.clone()
            };
            let options = LoadOptions {
                weights: format,
                ..load.clone()
            };
            let gpu = kernels::open(&options.open)?;
            let decoder = decoder_from_parts(&gpu, &config, &names, files.checkpoint(), &options)?;
            let draft = DraftModel::new(decoder, config.vocab_size, DraftDraws::Alike)?;
            let way = speculate(Speculate::Draft, Some(count));
            let mut on = Lane::open(path, load, way, Some(Box::new(draft)))?;
            let (mut plain, mut speculated) = (Vec::new(), Vec::new());
            let before = on.engine.speculation();
            let mut drawn = 0;
            for _ in 0..TURNS {
                let (mut off_seconds, mut on_seconds) = (0.0, 0.0);
                for (_, text) in prompts(&["quote_back", "list_sort"]) {
                    let expected = off.answer(&text, ANSWER)?;
                    let got = on.answer(&text, ANSWER)?;
                    assert_eq!(expected.tokens, got.tokens, "{name}, {count} tokens");
                    off_seconds += expected.seconds;
                    on_seconds += got.seconds;
                    drawn += got.tokens.len();
                }
                plain.push(off_seconds);
                speculated.push(on_seconds);
            }
            let totals = on.engine.speculation();
            let proposed = totals.proposed - before.proposed;
            let accepted = totals.accepted - before.accepted;
            // of a step that verifies: what it brings, against what it and its draft take
            let steps = totals.proposals - before.proposals;
            let brings = 1.0 + accepted as f64 / steps.max(1) as f64;
            let plain_step = quantile(&plain, 0.5) * TURNS as f64 / drawn as f64;
            let verify = totals.verify_seconds / steps.max(1) as f64;
            let propose = totals.propose_seconds / steps.max(1) as f64;
            let predicted = brings * plain_step / (verify + propose);
            let measured = quantile(&plain, 0.5) / quantile(&speculated, 0.5);
            let share = accepted as f64 / proposed.max(1) as f64;
            report.line(&format!(
                "{name:21} {count:2}  {accepted:4}/{proposed:<4} {share:6.3}  {predicted:8.2}x {measured:8.2}x"
            ));
            report.row(json!({
                "draft": name, "k": count, "proposed": proposed, "accepted": accepted,
                "predicted": predicted, "measured": measured,
                "verify_seconds": verify, "propose_seconds": propose, "plain_seconds": plain_step,
            }));
        }
    }
    Ok(())
}
