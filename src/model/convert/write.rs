//! Writing what was planned.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::pieces::{Planned, TensorReport};
use super::plan::{Conversion, Output};
use crate::error::{Error, Result};
use crate::formats::hf;
use crate::formats::stream::{Entry, Stream};

impl Conversion<'_> {
    /// Writes everything: into the folder `out`, which is made, or to the file `out`; neither must be there
    /// yet. A folder is no model until all of it is there: `config.json` is written last. `progress` is told
    /// bytes of tensors done and in all.
    ///
    /// # Errors
    /// [`Error::Io`] where a file cannot be written; [`Error::Tensor`] for values that are NaN or infinite;
    /// [`Error::File`] where the model changes meanwhile. What was written until then stays.
    pub fn write(
        &self,
        out: &Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Vec<TensorReport>> {
        let (_, all) = self.tensor_bytes();
        let mut done = 0;
        let mut each = |bytes| {
            done += bytes;
            progress(done, all);
        };
        let mut reports = Vec::with_capacity(self.tensors.len());
        match &self.output {
            Output::Gguf { header, alignment } => {
                let file = (out, header.as_slice(), *alignment);
                self.write_file(file, &self.tensors, &mut each, &mut reports)?;
            }
            Output::Directory {
                shards,
                texts,
                copied,
                config,
            } => {
                fs::create_dir(out).map_err(Error::io(out))?;
                for (name, bytes) in texts {
                    write_whole(&out.join(name), bytes)?;
                }
                for (path, name) in copied {
                    let to = out.join(name);
                    if let Some(folder) = to.parent() {
                        fs::create_dir_all(folder).map_err(Error::io(folder))?;
                    }
                    fs::copy(path, &to).map_err(Error::io(&to))?;
                }
                let mut rest = self.tensors.as_slice();
                for (name, header, count) in shards {
                    let (tensors, after) = rest.split_at(*count);
                    let path = out.join(name);
                    self.write_file((&path, header, 1), tensors, &mut each, &mut reports)?;
                    rest = after;
                }
                self.files.checkpoint().check_unchanged()?;
                write_whole(&out.join(hf::CONFIG_NAME), config)?;
            }
        }
        self.files.checkpoint().check_unchanged()?;
        Ok(reports)
    }

    fn write_file(
        &self,
        (path, header, alignment): (&Path, &[u8], u64),
        tensors: &[Planned],
        each: &mut dyn FnMut(u64),
        reports: &mut Vec<TensorReport>,
    ) -> Result<()> {
        let entries: Vec<Entry> = tensors.iter().flat_map(Planned::entries).collect();
        let mut stream = Stream::create(path, header, &entries, alignment)?;
        for tensor in tensors {
            reports.push(tensor.write(self.files.checkpoint(), &mut stream, each)?);
        }
        stream.finish()
    }
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(Error::io(path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(Error::io(path))
}
