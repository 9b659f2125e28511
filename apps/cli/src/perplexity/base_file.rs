//! The file that a base's predictions are kept in: written beside and renamed, read row by row.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use nelumbo::Error;
use nelumbo::engine::perplexity::base::{Header, MAX_HEADER_BYTES, Row, put_row, row_bytes};
use nelumbo::engine::perplexity::{LogSoftmax, Windows};

use crate::exit::{Failure, say};
use crate::models::{human_bytes, space};
use crate::temporary::Temporary;

/// Bytes between two writes or reads.
const BUFFER: usize = 1 << 20;

/// A file of predictions that is being written. Ended before its end, it leaves nothing behind.
pub struct Writer {
    path: PathBuf,
    // closed before its file is removed
    file: BufWriter<File>,
    partial: Temporary,
    row: Vec<u8>,
}

impl Writer {
    /// Begins the file, after telling how large it will be. One that is there is never replaced: it may
    /// have taken hours.
    pub fn create(path: &Path, header: &Header, quiet: bool) -> Result<Writer, Failure> {
        check_absent(path)?;
        let bytes = header.file_bytes();
        let shown = path.display();
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new("."));
        space::fits(folder, bytes, &shown.to_string())
            .map_err(|problem| Failure::Disk(format!("{problem}; fewer --chunks take less")))?;
        if !quiet {
            say(&format!(
                "perplexity: predictions go to {shown}, {}",
                human_bytes(bytes)
            ));
        }
        let name = with_suffix(path);
        let file = File::create(&name).map_err(Failure::io(&name))?;
        let partial = Temporary::new(name)?;
        let mut writer = Writer {
            path: path.to_owned(),
            file: BufWriter::with_capacity(BUFFER, file),
            partial,
            row: Vec::new(),
        };
        writer.write(&header.bytes())?;
        Ok(writer)
    }

    /// Appends a prediction.
    pub fn put(&mut self, soft: &LogSoftmax, logits: &[f32], target: u32) -> Result<(), Failure> {
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        put_row(&mut row, soft, logits, target);
        let written = self.write(&row);
        self.row = row;
        written
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(bytes);
        written.map_err(Failure::io(self.partial.path()))
    }

    /// Gives the file its name, once everything is on the disk.
    pub fn finish(self) -> Result<(), Failure> {
        let Writer {
            path,
            file,
            partial,
            ..
        } = self;
        let name = partial.path();
        let file = file.into_inner();
        let file = file.map_err(|error| Failure::io(name)(error.into_error()))?;
        file.sync_all().map_err(Failure::io(name))?;
        check_absent(&path)?;
        partial.complete(|partial| fs::rename(partial, &path).map_err(Failure::io(&path)))
    }
}

/// Refuses to write over what is there.
pub fn check_absent(path: &Path) -> Result<(), Failure> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::io(path)(error)),
        Ok(metadata) if metadata.is_dir() => Err(Failure::Usage(format!(
            "--kl-divergence-base {}: is a directory",
            path.display()
        ))),
        Ok(_) => Err(Failure::Usage(format!(
            "--kl-divergence-base {}: is there already; add --kl-divergence to compare with it, or \
             remove it",
            path.display()
        ))),
    }
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Such a file is no model that could be downloaded once more.
fn refused(error: Error) -> Failure {
    Failure::Model(error.to_string())
}

/// A file of predictions that is being read.
pub struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    pub header: Header,
    row: Vec<u8>,
    read: u64,
}

impl Reader {
    /// Opens the file and holds its header against its length.
    pub fn open(path: &Path) -> Result<Reader, Failure> {
        let metadata = path.metadata().map_err(Failure::io(path))?;
        if !metadata.is_file() {
            return Err(refused(Error::file(path, "is not a regular file")));
        }
        let mut file = File::open(path).map_err(Failure::io(path))?;
        let mut start = Vec::new();
        (&mut file)
            .take(MAX_HEADER_BYTES as u64)
            .read_to_end(&mut start)
            .map_err(Failure::io(path))?;
        let (header, len) = Header::parse(&start)
            .map_err(|(field, problem)| refused(Error::field(path, field, problem)))?;
        let (expected, found) = (header.file_bytes(), metadata.len());
        if found != expected {
            let problem = format!("{found} bytes, its header tells of {expected}");
            return Err(refused(Error::file(path, problem)));
        }
        // what was read beyond the header is the beginning of the rows
        use std::io::{Seek, SeekFrom};
        file.seek(SeekFrom::Start(len as u64))
            .map_err(Failure::io(path))?;
        Ok(Reader {
            path: path.to_owned(),
            file: BufReader::with_capacity(BUFFER, file),
            row: vec![0; row_bytes(header.vocab_size as usize)],
            header,
            read: 0,
        })
    }

    /// That these are predictions of this text, cut in this way, by a model of this vocabulary; of all
    /// its windows or of the first ones.
    pub fn check(&self, windows: &Windows, vocab_size: usize) -> Result<(), Failure> {
        let header = &self.header;
        let wrong =
            |field: &str, problem: String| Err(refused(Error::field(&self.path, field, problem)));
        if header.vocab_size as usize != vocab_size {
            let found = header.vocab_size;
            return wrong(
                "vocabulary",
                format!("is {found}, this model's is {vocab_size}"),
            );
        }
        if header.window as usize != windows.size() {
            let (found, asked) = (header.window, windows.size());
            return wrong(
                "window",
                format!("is {found} tokens, not {asked}: give -c {found}"),
            );
        }
        if header.first as usize != windows.first() {
            let (found, asked) = (header.first, windows.first());
            let problem = format!("is position {found}, not {asked}: give the same --score");
            return wrong("first scored", problem);
        }
        let (kept, there) = (header.windows as usize, windows.count());
        if kept > there {
            return wrong("windows", format!("are {kept}, this text fills {there}"));
        }
        if header.tokens != windows.hash(kept) {
            let problem = "are not those of this text with this tokenizer";
            return wrong("token ids", problem.to_owned());
        }
        Ok(())
    }

    /// Calls `each` with the next prediction.
    pub fn next<T>(&mut self, each: impl FnOnce(&Row) -> T) -> Result<T, Failure> {
        let path = &self.path;
        self.file
            .read_exact(&mut self.row)
            .map_err(Failure::io(path))?;
        self.read += 1;
        match Row::parse(&self.row, self.header.vocab_size as usize) {
            Some(row) => Ok(each(&row)),
            None => {
                let problem = "does not fit its checksum: it is damaged";
                let field = format!("prediction {}", self.read);
                Err(refused(Error::field(path, field, problem)))
            }
        }
    }
}
