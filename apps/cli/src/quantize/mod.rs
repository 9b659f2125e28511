//! `nelumbo quantize`: a model's files as others, with what each tensor lost.

pub mod args;
mod check;
mod place;
mod report;

use std::path::Path;

use nelumbo::formats;
use nelumbo::model::convert::{Conversion, Layout};

use crate::args::GlobalArgs;
use crate::exit::{Failure, say};
use crate::models::{self, Progress, human_bytes, space};
use crate::output::print_line;
use args::{Kind, Output, QuantizeArgs};
use place::Place;
use report::Report;

/// Everything from the arguments to the last line.
pub fn quantize(args: &QuantizeArgs, global: &GlobalArgs) -> Result<(), Failure> {
    let quiet = global.quiet;
    let model = models::resolve_local(&args.input, global)?;
    let files = formats::open(&model.path)?;
    let checkpoint = files.checkpoint();
    let mut sources: Vec<&Path> = checkpoint
        .tensors()
        .map(|tensor| checkpoint.file_of(tensor))
        .chain([model.path.as_path()])
        .collect();
    sources.sort_unstable();
    sources.dedup();
    let place = Place::new(&sources, &args.out, args.force)?;
    let kind = args.kind.unwrap_or(match place.layout() {
        Layout::Directory => Kind::Int8Channel,
        Layout::Gguf => Kind::Q8_0,
    });
    let target = kind.target();
    let text = args.check_text.as_deref();
    let text = text.map(|path| check::text(path, &files)).transpose()?;
    let shard_bytes = u64::from(args.max_shard_size) * 1_000_000;
    let plan = Conversion::plan(&files, target, place.layout(), shard_bytes)?;
    let bytes = plan.bytes();
    let out = args.out.display().to_string();
    space::fits(place.folder(), bytes, &out).map_err(Failure::Disk)?;
    let (_, all) = plan.tensor_bytes();
    if !quiet {
        say(&format!(
            "quantize: {} to {out}, {}: {}",
            model.path.display(),
            target.name(),
            human_bytes(bytes)
        ));
    }
    let mut bar = Progress::start("quantize", all, quiet);
    let written = place.begin()?;
    let tensors = plan.write(written.path(), &mut |done, _| bar.at(done))?;
    drop(bar);
    let result = place.out().to_owned();
    place.finish(written)?;
    let words = (model.path.display().to_string(), out, target.name());
    let mut report = Report::new(words, &tensors, bytes);
    let checked = text.map_or(Ok(None), |text| {
        check::check(&model.path, &result, &text, args, global)
    });
    // what was written is told whatever comes of the check
    let failed = checked.map(|check| report.check = check).err();
    if args.json || args.output == Output::Json {
        print_line(&serde_json::to_string(&report).expect("a report is plain data"))?;
    } else {
        print_line(&report.text())?;
    }
    failed.map_or(Ok(()), Err)
}
