//! What a file's bytes are known by before they come.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The name that bytes must have; lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checksum {
    Sha256(String),
    /// What git calls a file: SHA-1 of its length and bytes. The hub knows its small files by it.
    GitBlob(String),
}

impl Checksum {
    /// A sha256, if `text` is one.
    pub fn sha256(text: &str) -> Option<Checksum> {
        is_hex(text, 64).then(|| Checksum::Sha256(text.to_ascii_lowercase()))
    }

    /// Git's name of a file, if `text` is one.
    pub fn git_blob(text: &str) -> Option<Checksum> {
        is_hex(text, 40).then(|| Checksum::GitBlob(text.to_ascii_lowercase()))
    }

    /// The digits alone.
    pub fn hex(&self) -> &str {
        match self {
            Checksum::Sha256(hex) | Checksum::GitBlob(hex) => hex,
        }
    }
}

impl std::fmt::Display for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Checksum::Sha256(hex) => write!(f, "sha256 {hex}"),
            Checksum::GitBlob(hex) => write!(f, "git blob {hex}"),
        }
    }
}

/// Whether `text` is `len` hex digits.
pub fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Takes bytes in order, gives a [`Checksum`].
#[derive(Clone)]
pub enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    /// For what is to be compared with `expected`; sha256 where nothing is. `size` is that of the
    /// whole file, which git's names begin with.
    pub fn new(expected: Option<&Checksum>, size: Option<u64>) -> Hasher {
        match expected {
            None | Some(Checksum::Sha256(_)) => Hasher::Sha256(Sha256::new()),
            Some(Checksum::GitBlob(_)) => {
                let size = size.expect("a git blob is only expected with its size");
                Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {size}\0")))
            }
        }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    pub fn finish(self) -> Checksum {
        match self {
            Hasher::Sha256(hasher) => Checksum::Sha256(hex(&hasher.finalize())),
            Hasher::GitBlob(hasher) => Checksum::GitBlob(hex(&hasher.finalize())),
        }
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `expected`'s kind, over these bytes.
    fn of(expected: &Checksum, bytes: &[u8]) -> Checksum {
        let mut hasher = Hasher::new(Some(expected), Some(bytes.len() as u64));
        for byte in bytes {
            hasher.update(&[*byte]);
        }
        hasher.finish()
    }

    #[test]
    fn both_kinds_are_those_of_the_usual_tools() {
        // sha256sum, and git hash-object
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let sha256 = Checksum::sha256(&sha256.to_ascii_uppercase()).unwrap();
        assert_eq!(of(&sha256, b"abc"), sha256);
        let blob = Checksum::git_blob("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert_eq!(of(&blob, b"hello\n"), blob);
        assert!(Checksum::sha256("ab").is_none() && Checksum::git_blob(&"g".repeat(40)).is_none());
    }
}
