//! Whether a file fits on the disk, asked before its first byte.

use std::path::Path;

use super::progress::human_bytes;
use crate::exit::{Failure, say};

/// Refuses `bytes` more in `folder`, which need not exist yet, if they do not fit. `force` makes
/// a warning of it.
pub fn check(folder: &Path, bytes: u64, name: &str, force: bool) -> Result<(), Failure> {
    let Err(problem) = fits(folder, bytes, name) else {
        return Ok(());
    };
    if force {
        say(&format!("warning: {problem}; going on (--force)"));
        return Ok(());
    }
    Err(Failure::Disk(format!(
        "{problem}; `nelumbo pull --force` tries nevertheless"
    )))
}

/// Whether `bytes` more fit in `folder`; what to say where they do not. Where the system does not
/// tell, everything fits.
pub fn fits(folder: &Path, bytes: u64, name: &str) -> Result<(), String> {
    let there = folder.ancestors().find(|folder| folder.exists());
    let there = there.filter(|folder| !folder.as_os_str().is_empty());
    let free = match fs4::available_space(there.unwrap_or(Path::new("."))) {
        Ok(free) => free,
        Err(error) => {
            log::debug!("{}: free space unknown: {error}", folder.display());
            return Ok(());
        }
    };
    if bytes <= free {
        return Ok(());
    }
    Err(format!(
        "{name} takes {} more ({bytes} bytes), and {} has {} free ({free} bytes)",
        human_bytes(bytes),
        folder.display(),
        human_bytes(free)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_numbers_are_told_and_force_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("not/yet");
        assert!(check(&deep, 1, "m", false).is_ok());
        let failure = check(&deep, u64::MAX / 2, "m", false).unwrap_err();
        let message = failure.to_string();
        assert_eq!(failure.code(), 6);
        let free = fs4::available_space(folder.path()).unwrap().to_string();
        // other programs write meanwhile: only the first digits are sure
        assert!(
            message.contains(&(u64::MAX / 2).to_string()) && message.contains(&free[..2]),
            "{message}"
        );
        assert!(check(&deep, u64::MAX / 2, "m", true).is_ok());
    }
}
