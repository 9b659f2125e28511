//! Texts from files and pipes: no longer than they may be, and UTF-8.

use std::io::Read;
use std::path::Path;

use crate::exit::Failure;

/// No prompt, message or conversation has more bytes: no context would hold it.
pub const MAX_TEXT_BYTES: u64 = 64 << 20;

/// All that `source` has; `path` is what errors call it.
///
/// # Errors
/// [`Failure::Io`]; [`Failure::Usage`] if there are more than `max_bytes`, or if it is no text.
pub fn read_text(source: impl Read, path: &Path, max_bytes: u64) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(Failure::io(path))?;
    let shown = path.display();
    if bytes.len() as u64 > max_bytes {
        return Err(Failure::Usage(format!(
            "{shown}: more than {max_bytes} bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::Usage(format!("{shown}: not valid UTF-8 at byte {at}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_no_text_is_told_by_name() {
        let read = |bytes: &[u8]| read_text(bytes, Path::new("p.txt"), 4);
        assert_eq!(read("한\n".as_bytes()).unwrap(), "한\n");
        for (bytes, part) in [
            (&b"abcde"[..], "more than 4 bytes"),
            (b"ab\xff", "not valid UTF-8 at byte 2"),
        ] {
            let message = read(bytes).unwrap_err().to_string();
            assert_eq!(message, format!("p.txt: {part}"));
        }
    }
}
