//! Files and folders that are under way: where a command ends early, by an error or by Ctrl-C, they go.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::exit::{Failure, on_ctrl_c};

/// All there are now.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file or a folder by this name. It is removed when this is dropped.
pub struct Temporary {
    path: PathBuf,
}

impl Temporary {
    /// What is at `path`, or will be, is the caller's: it goes in the end.
    pub fn new(path: PathBuf) -> Result<Temporary, Failure> {
        listen()?;
        under_way().push(path.clone());
        Ok(Temporary { path })
    }

    /// Its name until it is complete.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It is complete, and `rename` gives it the name it stays under. Ctrl-C waits meanwhile, so that it has
    /// either name and never none.
    pub fn complete(
        self,
        rename: impl FnOnce(&Path) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let all = under_way();
        let renamed = rename(&self.path);
        drop(all);
        renamed
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        under_way().retain(|path| *path != self.path);
        let _ = remove(&self.path); // gone under its own name, or there is an error to be told already
    }
}

fn under_way() -> MutexGuard<'static, Vec<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From the first of them on Ctrl-C takes all away that there are then.
fn listen() -> Result<(), Failure> {
    static LISTENING: Mutex<bool> = Mutex::new(false);
    let mut listening = LISTENING.lock().unwrap_or_else(PoisonError::into_inner);
    if *listening {
        return Ok(());
    }
    on_ctrl_c(|| {
        for path in under_way().iter() {
            let _ = remove(path); // the program ends either way
        }
        true
    })?;
    *listening = true;
    Ok(())
}

/// Removes a file or a folder, if there is one.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let removed = match path.symlink_metadata() {
        Err(_) => return Ok(()),
        Ok(there) if there.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(Failure::io(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_completed_goes_and_what_is_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let half = Temporary::new(path("half")).unwrap();
        fs::create_dir(half.path()).unwrap();
        fs::write(half.path().join("of"), "x").unwrap();
        assert!(under_way().contains(&path("half")));
        drop(half);
        assert!(!path("half").exists() && !under_way().contains(&path("half")));

        let whole = Temporary::new(path("half")).unwrap();
        fs::write(whole.path(), "x").unwrap();
        whole
            .complete(|from| fs::rename(from, path("whole")).map_err(Failure::io(from)))
            .unwrap();
        assert!(path("whole").exists() && !under_way().contains(&path("half")));
    }
}
