//! One writer at a time: locks that are files beside what is written, and go with it.
//!
//! A file that is removed can still be locked by whoever has it open, while the next one makes and
//! locks another of the same name. So the name is removed only under the lock, and a lock counts only
//! while its file has the name.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::time::Duration;

use super::partial;
use crate::exit::{Failure, say};

/// How long to wait before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// How often a file or a folder may vanish under a try before something else must be wrong.
const VANISHED: usize = 100;

/// Held until it is dropped. The system frees it when a process dies, so there is no stale lock to
/// clean up.
#[derive(Debug)]
pub struct Lock(File);

impl Lock {
    /// Waits for it; a remark says so. Makes the folder of `path`, which a removal may take away.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn wait(path: &Path) -> Result<Lock, Failure> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let (mut told, mut vanished) = (false, 0);
        loop {
            fs::create_dir_all(folder).map_err(Failure::io(folder))?;
            match Lock::try_hold(path) {
                Ok(Some(lock)) => return Ok(lock),
                Ok(None) => {}
                // the folder went in between
                Err(Failure::Io { source, .. })
                    if source.kind() == std::io::ErrorKind::NotFound && vanished < VANISHED =>
                {
                    vanished += 1;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            if !told {
                say("another process is downloading this model; waiting for it");
                told = true;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The lock, unless somebody holds it. Its folder must be there.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn try_hold(path: &Path) -> Result<Option<Lock>, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            let file = File::create(path).map_err(Failure::io(path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                // Some network file systems have no locks; one writer is then the user's care.
                Err(TryLockError::Error(error))
                    if error.kind() == std::io::ErrorKind::Unsupported => {}
                Err(TryLockError::Error(error)) => return Err(Failure::io(path)(error)),
            }
            // nor do all of them give a file the same number twice
            if has_name(&file, path) || tries > VANISHED {
                return Ok(Some(Lock(file)));
            }
        }
    }

    /// Frees it and takes its file away, where the next one can tell.
    ///
    /// # Errors
    /// [`Failure::Io`].
    pub fn remove(self, path: &Path) -> Result<(), Failure> {
        if cfg!(unix) {
            partial::remove_if_there(path)?;
        }
        drop(self.0);
        Ok(())
    }
}

/// Whether the file that is open still lies at `path`.
#[cfg(unix)]
fn has_name(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_same = |of: &fs::Metadata, there: &fs::Metadata| {
        (of.dev(), of.ino()) == (there.dev(), there.ino())
    };
    file.metadata()
        .and_then(|of| Ok(is_same(&of, &fs::metadata(path)?)))
        .unwrap_or(false)
}

/// Nobody removes a lock's file here: see [`Lock::remove`].
#[cfg(not(unix))]
fn has_name(_: &File, _: &Path) -> bool {
    true
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_was_removed_while_waited_for_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model").join("m.gguf.lock");
        let first = Lock::wait(&path).unwrap();
        assert!(Lock::try_hold(&path).unwrap().is_none());
        // opened before the removal, locked after it: what two processes do to one another
        let opened = File::create(&path).unwrap();
        first.remove(&path).unwrap();
        assert!(!path.exists());
        opened.try_lock().unwrap();
        assert!(!has_name(&opened, &path));
        let second = Lock::try_hold(&path).unwrap().unwrap();
        assert!(!has_name(&opened, &path) && has_name(&second.0, &path));
        assert!(Lock::try_hold(&path).unwrap().is_none());
    }

    #[test]
    fn a_name_that_no_file_can_have_is_an_error_and_no_wait_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf.lock");
        std::os::unix::fs::symlink(folder.path().join("no").join("where"), &path).unwrap();
        let failure = Lock::wait(&path).unwrap_err().to_string();
        assert!(failure.contains("m.gguf.lock"), "{failure}");
    }

    #[test]
    fn of_many_that_take_and_remove_it_one_holds_it_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model").join("m.gguf.lock");
        let (holders, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _ = fs::create_dir(path.parent().unwrap());
                        let Ok(Some(lock)) = Lock::try_hold(&path) else {
                            continue; // somebody has it, or has just taken the folder away
                        };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        held.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        holders.fetch_sub(1, Ordering::SeqCst);
                        lock.remove(&path).unwrap();
                        let _ = fs::remove_dir(path.parent().unwrap());
                    }
                });
            }
        });
        assert!(held.into_inner() >= 4);
    }
}
