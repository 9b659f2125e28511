//! Compiled pipelines between runs: what the driver wants to remember, in one sealed file.
//!
//! ```text
//! 0   8 bytes  magic, with the version of this layout
//! 8   u64      FNV-1a of the key: adapter, ids, driver, backend, wgpu, shader sources
//! 16  u64      bytes of the body
//! 24  u64      FNV-1a of the body
//! 32           the body: what wgpu and the driver made of it
//! ```
//!
//! Numbers are little-endian. A file that is not exactly what was written under the same key is
//! taken for none, and replaced when something has been compiled. Nothing here is ever an error:
//! without a file the driver compiles.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A larger body is neither read nor written.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Files kept in a folder; the ones written longest ago go first.
const MAX_FILES: usize = 8;
const MAGIC: [u8; 8] = *b"nelumbo\x01";
const HEADER_BYTES: usize = 32;
const EXTENSION: &str = "pipelines";
/// Part of the key, and held against the manifest by a test.
const WGPU_VERSION: &str = "30.0";

/// A folder for compiled pipelines, and what tells this program's shaders from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineFolder {
    /// Made when the first file is written.
    pub folder: PathBuf,
    /// A hash of all shader sources.
    pub shaders: u64,
}

/// FNV-1a over `parts`, each closed by its length, so that a border between parts counts as well.
/// Stable over builds and systems. Any one byte that changes changes the result.
pub fn fnv1a<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    parts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let hash = part.iter().fold(hash, step);
        (part.len() as u64).to_le_bytes().iter().fold(hash, step)
    })
}

/// `body` with the header that tells whose it is and that it is whole.
fn seal(key: u64, body: &[u8]) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + body.len());
    file.extend_from_slice(&MAGIC);
    for number in [key, body.len() as u64, fnv1a([body])] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(body);
    file
}

/// The body of a file that [`seal`] made for `key`, or why it is none.
fn unseal(key: u64, file: &[u8]) -> Result<&[u8], &'static str> {
    let Some((header, body)) = file.split_at_checked(HEADER_BYTES) else {
        return Err("it is shorter than its header");
    };
    let number = |at: usize| {
        let bytes = header[at..at + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    if header[..8] != MAGIC {
        return Err("it is no file of pipelines, or of another version");
    }
    if number(8) != key {
        return Err("it is of another adapter, driver or set of shaders");
    }
    if number(16) != body.len() as u64 {
        return Err("it was cut");
    }
    if number(24) != fnv1a([body]) {
        return Err("it is damaged");
    }
    Ok(body)
}

pub(super) fn read(path: &Path, key: u64) -> Result<Vec<u8>, String> {
    let told = |error: io::Error| error.to_string();
    let file = File::open(path).map_err(told)?;
    let most = (HEADER_BYTES + MAX_BODY_BYTES) as u64;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() as u64 > most {
        return Err(format!("it has more than {most} bytes"));
    }
    unseal(key, &bytes)?;
    bytes.drain(..HEADER_BYTES);
    Ok(bytes)
}

/// Puts a file in place whole or not at all: readers see the old one or the new one.
pub(super) fn write(path: &Path, key: u64, body: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file in a folder");
    fs::create_dir_all(folder)?;
    // the process id keeps two programs from writing into one another's file
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(&seal(key, body)))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial); // what cannot be written may not be there either
    }
    written
}

/// Removes the files with this `extension` that were written longest ago, beyond `most`: those of
/// old drivers and shaders.
pub(super) fn prune(folder: &Path, extension: &str, most: usize) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            files.push((fs::metadata(&path)?.modified()?, path));
        }
    }
    files.sort();
    let spare = files.len().saturating_sub(most);
    files[..spare]
        .iter()
        .try_for_each(|(_, path)| fs::remove_file(path))
}

/// The driver's memory of pipelines, from a file and back to it.
pub(crate) struct Store {
    /// Handed along with each pipeline that is made.
    pub raw: wgpu::PipelineCache,
    /// Bytes that an earlier run left.
    pub recalled: usize,
    path: PathBuf,
    key: u64,
    /// What the file holds, as a hash: the same is not written twice.
    on_disk: Mutex<Option<u64>>,
}

impl Store {
    /// What `folder` holds for this adapter. `None` where the adapter keeps no pipelines.
    pub fn open(
        device: &wgpu::Device,
        adapter: &wgpu::AdapterInfo,
        folder: &PipelineFolder,
    ) -> Option<Store> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let key = key(adapter, folder.shaders);
        let path = folder.folder.join(format!("{key:016x}.{EXTENSION}"));
        let data = read(&path, key)
            .inspect_err(|why| log::debug!("{}: not used: {why}", path.display()))
            .ok();
        #[expect(
            unsafe_code,
            reason = "wgpu cannot know where the bytes of a pipeline cache come from"
        )]
        // SAFETY: the bytes are those that `get_data` returned for this adapter and driver: the key
        // and the checksum of their file say so, and wgpu holds its own header against the adapter.
        let raw = unsafe {
            device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                label: Some("pipelines"),
                data: data.as_deref(),
                fallback: true,
            })
        };
        let recalled = data.as_ref().map_or(0, Vec::len);
        let on_disk = Mutex::new(data.map(|data| fnv1a([data.as_slice()])));
        Some(Store {
            raw,
            recalled,
            path,
            key,
            on_disk,
        })
    }

    /// Writes what the driver remembers now, unless the file says so already.
    pub fn save(&self) {
        let Some(data) = self.raw.get_data() else {
            return;
        };
        let hash = fnv1a([data.as_slice()]);
        let mut on_disk = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner);
        if *on_disk == Some(hash) {
            return;
        }
        let saved = if data.len() > MAX_BODY_BYTES {
            // more than is worth reading: the next run begins anew
            fs::remove_file(&self.path)
        } else {
            write(&self.path, self.key, &data)
        };
        let folder = self.path.parent().expect("a file in a folder");
        match saved.and_then(|()| prune(folder, EXTENSION, MAX_FILES)) {
            Ok(()) => {
                *on_disk = Some(hash);
                log::debug!("{}: {} bytes kept", self.path.display(), data.len());
            }
            Err(error) => log::debug!("{}: not kept: {error}", self.path.display()),
        }
    }
}

/// What compiled code depends on.
pub(super) fn key(adapter: &wgpu::AdapterInfo, shaders: u64) -> u64 {
    fnv1a([
        adapter.name.as_bytes(),
        &adapter.vendor.to_le_bytes(),
        &adapter.device.to_le_bytes(),
        adapter.driver.as_bytes(),
        adapter.driver_info.as_bytes(),
        adapter.backend.to_str().as_bytes(),
        WGPU_VERSION.as_bytes(),
        &shaders.to_le_bytes(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 0x0123_4567_89ab_cdef;

    #[test]
    fn every_flipped_bit_is_seen() {
        let body: Vec<u8> = (0..=255).collect();
        let file = seal(KEY, &body);
        assert_eq!(unseal(KEY, &file), Ok(body.as_slice()));
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut damaged = file.clone();
                damaged[at] ^= 1 << bit;
                let why = match at {
                    0..8 => "it is no file of pipelines, or of another version",
                    8..16 => "it is of another adapter, driver or set of shaders",
                    16..24 => "it was cut",
                    _ => "it is damaged",
                };
                assert_eq!(unseal(KEY, &damaged), Err(why), "byte {at}, bit {bit}");
            }
        }
    }

    #[test]
    fn what_is_cut_or_longer_or_foreign_is_refused() {
        let file = seal(KEY, b"body");
        for length in 0..file.len() {
            assert!(unseal(KEY, &file[..length]).is_err(), "{length} bytes");
        }
        assert_eq!(unseal(KEY, &[&file[..], b"x"].concat()), Err("it was cut"));
        assert!(unseal(KEY + 1, &file).is_err());
        assert_eq!(unseal(KEY, &seal(KEY, b"")), Ok(&b""[..]));
    }

    #[test]
    fn the_hash_is_the_published_one_and_sees_borders() {
        // a part is followed by its length, here 0
        let zeros = (0..8).fold(0xcbf2_9ce4_8422_2325u64, |h, _| {
            h.wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(fnv1a([&b""[..]]), zeros);
        assert_ne!(fnv1a([&b"ab"[..], b"c"]), fnv1a([&b"a"[..], b"bc"]));
    }

    #[test]
    fn a_file_is_replaced_whole_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/a.pipelines");
        write(&path, KEY, b"first").unwrap();
        write(&path, KEY, b"second").unwrap();
        assert_eq!(read(&path, KEY), Ok(b"second".to_vec()));
        let there = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(there, 1, "nothing partial stays");
        assert!(read(&path, KEY + 1).is_err());
        assert!(read(&path.with_extension("none"), KEY).is_err());
    }

    #[test]
    fn a_file_beyond_the_limit_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pipelines");
        let file = File::create(&path).unwrap();
        file.set_len(1 << 40).unwrap(); // sparse
        assert!(read(&path, KEY).unwrap_err().contains("more than"));
    }

    #[test]
    fn the_oldest_files_go_and_foreign_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |i: usize| folder.path().join(format!("{i}.{EXTENSION}"));
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        for i in 0..MAX_FILES + 2 {
            write(&path(i), KEY, b"body").unwrap();
            let age = std::time::Duration::from_secs(1000 - i as u64);
            let time = std::time::SystemTime::now() - age;
            let file = File::options().write(true).open(path(i)).unwrap();
            file.set_modified(time).unwrap();
        }
        prune(folder.path(), EXTENSION, MAX_FILES).unwrap();
        let kept: Vec<bool> = (0..MAX_FILES + 2).map(|i| path(i).exists()).collect();
        assert_eq!(kept.iter().filter(|k| **k).count(), MAX_FILES);
        assert!(!kept[0] && !kept[1] && folder.path().join("notes.txt").exists());
    }

    #[test]
    fn the_version_is_that_of_the_manifest() {
        let manifest = include_str!("../../Cargo.toml");
        let line = manifest.lines().find(|l| l.starts_with("wgpu = "));
        let wanted = format!("version = \"{WGPU_VERSION}\"");
        assert!(line.unwrap().contains(&wanted), "{line:?}");
    }
}
