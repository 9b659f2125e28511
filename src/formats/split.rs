//! A model split over several GGUF files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Every part is a GGUF file with some of the tensors. Its keys say which one it is: `split.no`
//! counts from 0 (names count from 1), `split.count` and `split.tensors.count` are the same in all
//! parts. All other keys are in the first part.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::{Checkpoint, listed};
use super::gguf::{Gguf, Part};
use super::metadata::Metadata;
use super::source::FileSource;
use crate::error::{Error, Result};

const COUNT_KEY: &str = "split.count";
const NUMBER_KEY: &str = "split.no";
const TENSORS_KEY: &str = "split.tensors.count";

/// Parts of one model; each is a file that stays open.
const MAX_PARTS: u32 = 1_000;

/// What a part's keys say of the split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Split {
    /// Which part this is, from 0.
    pub number: u32,
    /// How many there are; at least 2.
    pub count: u32,
    /// Tensors in all parts together.
    pub num_tensors: Option<u32>,
}

impl Split {
    /// `None` for a file that is all there is.
    pub fn of(metadata: &Metadata) -> Result<Option<Split>> {
        let wrong = |key: &str, problem| Err(Error::field(metadata.path(), key, problem));
        let count = match metadata.opt_u32(COUNT_KEY)? {
            None | Some(0 | 1) => return Ok(None),
            Some(count) if count > MAX_PARTS => {
                let problem = format!("is {count}, at most {MAX_PARTS} parts are read");
                return wrong(COUNT_KEY, problem);
            }
            Some(count) => count,
        };
        let number = metadata.u32(NUMBER_KEY)?;
        if number >= count {
            let problem = format!("is {number}, expected 0 to {} of {count} parts", count - 1);
            return wrong(NUMBER_KEY, problem);
        }
        Ok(Some(Split {
            number,
            count,
            num_tensors: metadata.opt_u32(TENSORS_KEY)?,
        }))
    }
}

/// The name of a part: what all have in common, which one it is (from 1), and how many there are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PartName {
    stem: String,
    number: u32,
    count: u32,
}

impl PartName {
    fn of(path: &Path) -> Option<PartName> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
            all.then(|| text.parse().ok()).flatten()
        };
        Some(PartName {
            stem: stem.to_owned(),
            number: digits(number)?,
            count: digits(count)?,
        })
    }

    fn file(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// Whether these files go by the names of parts of one model.
pub(super) fn are_parts_of_one(paths: &[&PathBuf]) -> bool {
    let names: Option<Vec<PartName>> = paths.iter().map(|path| PartName::of(path)).collect();
    let Some(names) = names else { return false };
    names.windows(2).all(|pair| {
        let (a, b) = (&pair[0], &pair[1]);
        a.stem == b.stem && a.count == b.count
    })
}

/// Opens the parts that lie beside one of them; all of them, in their order.
///
/// # Errors
/// [`Error::Field`] naming the file that was opened first if its name is not that of the part that
/// its keys say it is, or if a part is missing; otherwise what [`Part::read`] returns.
pub(super) fn open_beside(part: Part, split: Split) -> Result<Vec<Part>> {
    let path = part.source.path.clone();
    let wrong = |key: &str, problem| Err(Error::field(&path, key, problem));
    let Split { number, count, .. } = split;
    let Some(name) = PartName::of(&path) else {
        let problem = format!(
            "is {count}: the other parts are found by their names, and this one is not called \
             NAME-{:05}-of-{count:05}.gguf",
            number + 1
        );
        return wrong(COUNT_KEY, problem);
    };
    if name.count != count {
        let problem = format!("is {count}, the file's name says {}", name.count);
        return wrong(COUNT_KEY, problem);
    }
    if name.number != number + 1 {
        let problem = format!(
            "is {number}, counted from 0, the file's name says part {}",
            name.number
        );
        return wrong(NUMBER_KEY, problem);
    }
    let beside = |number| path.with_file_name(name.file(number));
    let missing: Vec<String> = (1..=count)
        .filter(|&other| other != name.number && !beside(other).exists())
        .map(|other| name.file(other))
        .collect();
    if !missing.is_empty() {
        let verb = if missing.len() == 1 { "is" } else { "are" };
        let problem = format!("is {count}, but {} {verb} missing", listed(&missing));
        return wrong(COUNT_KEY, problem);
    }
    let mut opened = Some(part);
    (1..=count)
        .map(|other| match opened.take_if(|_| other == name.number) {
            Some(part) => Ok(part),
            None => {
                let path = beside(other);
                Part::read(&path, Arc::new(FileSource::open(&path)?))
            }
        })
        .collect()
}

/// Makes one model of its parts, which are in their order.
///
/// # Errors
/// [`Error::Field`] naming the key of a part that does not fit the first one; [`Error::Tensor`] if a
/// tensor is in two parts.
pub(super) fn join(parts: Vec<Part>) -> Result<Gguf> {
    let path = parts[0].source.path.clone();
    let expected = Split {
        number: 0,
        count: parts.len() as u32,
        num_tensors: parts[0].metadata.opt_u32(TENSORS_KEY)?,
    };
    let mut first_metadata = None;
    let mut files = Vec::with_capacity(parts.len());
    let mut num_tensors = 0;
    for (number, part) in parts.into_iter().enumerate() {
        let expected = Split {
            number: number as u32,
            ..expected
        };
        check(&part.metadata, expected, &path)?;
        first_metadata.get_or_insert(part.metadata);
        num_tensors += part.tensors.len();
        files.push((part.source, part.tensors));
    }
    // Names before numbers: which tensor is there twice says more than that there is one too many.
    let checkpoint = Checkpoint::from_files(path, files)?;
    let metadata = first_metadata.expect("there is a first part");
    if let Some(declared) = expected.num_tensors
        && declared as usize != num_tensors
    {
        let problem = format!("is {declared}, the parts hold {num_tensors}");
        return Err(Error::field(metadata.path(), TENSORS_KEY, problem));
    }
    Ok(Gguf {
        checkpoint,
        metadata,
    })
}

fn check(metadata: &Metadata, expected: Split, first: &Path) -> Result<()> {
    let wrong = |key: &str, problem| Err(Error::field(metadata.path(), key, problem));
    // Files that are all there is do not number themselves.
    let found = Split::of(metadata)?.unwrap_or(Split {
        number: 0,
        count: 1,
        num_tensors: expected.num_tensors,
    });
    if found.count != expected.count {
        let (found, expected) = (found.count, expected.count);
        let problem = format!("is {found}, but this is one of {expected} parts");
        return wrong(COUNT_KEY, problem);
    }
    if found.number != expected.number {
        let (found, expected) = (found.number, expected.number);
        return wrong(NUMBER_KEY, format!("is {found}, expected {expected} here"));
    }
    if found.num_tensors != expected.num_tensors {
        let text = |n: Option<u32>| n.map_or("missing".to_owned(), |n| n.to_string());
        let problem = format!(
            "is {}, but {} in {}",
            text(found.num_tensors),
            text(expected.num_tensors),
            first.display()
        );
        return wrong(TENSORS_KEY, problem);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let name = PartName::of(Path::new("a/m-of-3-q4-00002-of-00013.gguf")).unwrap();
        assert_eq!(name.stem, "m-of-3-q4");
        assert_eq!((name.number, name.count), (2, 13));
        assert_eq!(name.file(13), "m-of-3-q4-00013-of-00013.gguf");
        for other in [
            "m.gguf",
            "m-00001-of-00002.bin",
            "m-1-of-2.gguf",
            "m-0000a-of-00002.gguf",
            "m-+0001-of-00002.gguf",
            "00001-of-00002.gguf",
            "",
        ] {
            assert_eq!(PartName::of(Path::new(other)), None, "{other}");
        }
    }
}
