//! Where the result goes: refused where that would harm what is there, beside its name until it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use nelumbo::model::convert::Layout;

use crate::exit::Failure;
use crate::temporary::{Temporary, remove};

/// The name that the result will have, and those that are taken until it has it.
pub struct Place {
    out: PathBuf,
    /// What is written.
    partial: PathBuf,
    /// What had the name before.
    old: PathBuf,
    layout: Layout,
}

impl Place {
    /// Looks at what is there. `inputs` are the model's path and its files.
    pub fn new(inputs: &[&Path], out: &Path, force: bool) -> Result<Place, Failure> {
        let usage = |problem: String| Err(Failure::Usage(format!("{}: {problem}", out.display())));
        let Some(name) = out.file_name() else {
            return usage("is no name for a file or a directory".to_owned());
        };
        let parent = out.parent().filter(|p| !p.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(Failure::io(parent))?;
        if !parent.is_dir() {
            let kind = std::io::ErrorKind::NotADirectory;
            return Err(Failure::io(&parent)(kind.into()));
        }
        let out = parent.join(name);
        let inputs = inputs
            .iter()
            .map(|path| path.canonicalize().map_err(Failure::io(path)))
            .collect::<Result<Vec<_>, _>>()?;
        // whatever has one of these is replaced or removed in the end
        let [partial, old] = ["partial", "old.partial"].map(|end| {
            let mut name = name.to_owned();
            name.push(format!(".{end}"));
            parent.join(name)
        });
        for name in [&out, &partial, &old] {
            // links aside: what is there may be the model by another name
            let there = name.canonicalize().unwrap_or_else(|_| name.clone());
            let hit = |input: &&PathBuf| there.starts_with(input) || input.starts_with(&there);
            if let Some(input) = inputs.iter().find(hit) {
                let (name, input) = (name.display(), input.display());
                return usage(format!(
                    "{name} is, is in, or holds the model itself, {input}"
                ));
            }
        }
        let layout = match out
            .extension()
            .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
        {
            true => Layout::Gguf,
            false => Layout::Directory,
        };
        match out.symlink_metadata() {
            Err(_) => {}
            Ok(_) if !force => return usage("is there already; --force replaces it".to_owned()),
            Ok(there) => {
                // a slip of the fingers must not delete a folder of something else
                let is_model = there.is_dir() && out.join("config.json").is_file();
                let is_empty =
                    there.is_dir() && fs::read_dir(&out).is_ok_and(|mut d| d.next().is_none());
                let fits = match layout {
                    Layout::Directory => is_model || is_empty,
                    Layout::Gguf => there.is_file(),
                };
                if !fits {
                    return usage(
                        "is something else than such a model, and not replaced".to_owned(),
                    );
                }
            }
        }
        Ok(Place {
            out,
            partial,
            old,
            layout,
        })
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The folder that it will be in.
    pub fn folder(&self) -> &Path {
        self.out.parent().expect("it has a name in a folder")
    }

    /// Where it will be.
    pub fn out(&self) -> &Path {
        &self.out
    }

    /// Where it is written: what an earlier run left there is removed, and what this one has is where it
    /// ends early.
    pub fn begin(&self) -> Result<Temporary, Failure> {
        remove(&self.partial)?;
        Temporary::new(self.partial.clone())
    }

    /// Gives the whole result its name; what had it is removed only then.
    pub fn finish(self, written: Temporary) -> Result<(), Failure> {
        let is_there = self.out.symlink_metadata().is_ok();
        if is_there {
            remove(&self.old)?;
        }
        written.complete(|partial| {
            if is_there {
                fs::rename(&self.out, &self.old).map_err(Failure::io(&self.out))?;
            }
            fs::rename(partial, &self.out).map_err(|error| {
                if is_there {
                    let _ = fs::rename(&self.old, &self.out); // it keeps its name where it can
                }
                Failure::io(&self.out)(error)
            })
        })?;
        if is_there {
            remove(&self.old)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_never_harms_the_model_or_anything_else() {
        let world = tempfile::tempdir().unwrap();
        let path = |name: &str| world.path().join(name);
        fs::create_dir_all(path("model/sub")).unwrap();
        fs::write(path("model/config.json"), "{}").unwrap();
        fs::create_dir(path("photos")).unwrap();
        fs::write(path("photos/cat.png"), "x").unwrap();
        fs::write(path("m.gguf"), "x").unwrap();
        fs::write(path("n.gguf.partial"), "x").unwrap();
        fs::create_dir_all(path("n.old.partial/sub")).unwrap();
        fs::write(path("second.gguf"), "x").unwrap();
        for (input, out, part) in [
            ("model", "model", "the model itself"),
            ("model", "model/int8", "the model itself"),
            ("model", "model/sub/../int8", "the model itself"),
            ("model/sub", "model", "the model itself"),
            ("m.gguf", "m.gguf", "the model itself"),
            ("m.gguf", "second.gguf", "the model itself"),
            ("n.gguf.partial", "n.gguf", "the model itself"),
            ("n.old.partial", "n", "the model itself"),
            ("n.old.partial/sub", "n", "the model itself"),
            ("m.gguf", "photos", "something else"),
            ("model", "m.gguf/x", "m.gguf"),
            ("model", "no/such/folder", "no/such"),
            ("model", "..", "no name"),
        ] {
            let inputs = [&*path(input), &*path("second.gguf")];
            let failure = Place::new(&inputs, &path(out), true).err().unwrap();
            assert!(failure.to_string().contains(part), "{out}: {failure}");
        }
        let failure = Place::new(&[&path("m.gguf")], &path("photos"), false)
            .err()
            .unwrap();
        assert!(failure.to_string().contains("--force"), "{failure}");
    }

    #[test]
    fn what_is_there_is_replaced_once_the_new_one_is_whole() {
        let world = tempfile::tempdir().unwrap();
        let path = |name: &str| world.path().join(name);
        fs::write(path("in.gguf"), "in").unwrap();
        fs::create_dir(path("out")).unwrap();
        fs::write(path("out/config.json"), "old").unwrap();
        let names = || {
            let mut names: Vec<String> = fs::read_dir(world.path())
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let place = || Place::new(&[&path("in.gguf")], &path("out"), true).unwrap();
        let write = |place: &Place| {
            let written = place.begin().unwrap();
            fs::create_dir(written.path()).unwrap();
            fs::write(written.path().join("config.json"), "new").unwrap();
            written
        };
        drop(write(&place()));
        assert_eq!(fs::read_to_string(path("out/config.json")).unwrap(), "old");
        assert_eq!(names(), ["in.gguf", "out"]);
        let whole = place();
        assert_eq!(
            (whole.layout(), whole.out().ends_with("out")),
            (Layout::Directory, true)
        );
        let written = write(&whole);
        whole.finish(written).unwrap();
        assert_eq!(fs::read_to_string(path("out/config.json")).unwrap(), "new");
        assert_eq!(names(), ["in.gguf", "out"]);
    }
}
