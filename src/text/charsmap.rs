//! Character replacements as SentencePiece compiles them into its models.
//!
//! The layout: a length in bytes (u32), as many bytes of a double-array trie, then the replacements,
//! each ended by a zero byte. The trie maps a piece of text to where its replacement begins. A unit of
//! the trie is a u32: bits 0 to 7 are the byte that leads here, bit 8 tells that a value hangs below,
//! bits 10 to 30 say how far to jump, times 256 where bit 9 is set; a value is the lower 31 bits.

use std::path::Path;

use crate::error::{Error, Result};

/// The largest map; that of NFKC with case folding has a fifth of a MiB.
const MAX_BYTES: usize = 4 << 20;
/// The longest replacement: what one character may become. The longest in Unicode has 33 bytes.
const MAX_REPLACEMENT: usize = 256;
/// The longest text that is looked up, in bytes: a trie may lead back into itself. Those of NFKC are a
/// few characters.
const MAX_KEY: usize = 256;

/// A checked map.
#[derive(Debug)]
pub(super) struct Charsmap {
    trie: Vec<u32>,
    replacements: String,
}

impl Charsmap {
    /// Checks a map; `field` and `path` are for errors.
    pub(super) fn new(blob: &[u8], field: &str, path: &Path) -> Result<Charsmap> {
        let fail = |problem: String| Err(Error::field(path, field, problem));
        if blob.len() > MAX_BYTES {
            return fail(format!("{} bytes, allowed are {MAX_BYTES}", blob.len()));
        }
        let Some((len, rest)) = blob.split_first_chunk::<4>() else {
            return fail(format!("{} bytes, expected at least 4", blob.len()));
        };
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 || !len.is_multiple_of(4) || len > rest.len() {
            return fail(format!(
                "declares {len} bytes of trie, {} follow; expected a multiple of 4 above 0",
                rest.len()
            ));
        }
        let (trie, replacements) = rest.split_at(len);
        let units = trie.as_chunks::<4>().0;
        let Ok(replacements) = std::str::from_utf8(replacements) else {
            return fail("the replacements are not UTF-8".to_owned());
        };
        let longest = replacements.split('\0').map(str::len).max().unwrap_or(0);
        if longest > MAX_REPLACEMENT {
            return fail(format!(
                "a replacement of {longest} bytes, allowed are {MAX_REPLACEMENT}"
            ));
        }
        Ok(Charsmap {
            trie: units.iter().map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: replacements.to_owned(),
        })
    }

    /// What the longest known beginning of `text` becomes, and its length in bytes; `None` where no
    /// beginning is known. What leads out of the map is not known.
    pub(super) fn longest(&self, text: &str) -> Option<(&str, usize)> {
        let jump = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut at = jump(*self.trie.first()?);
        let mut found = None;
        for (i, &byte) in text.as_bytes().iter().take(MAX_KEY).enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.trie.get(at) else {
                break;
            };
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= jump(unit);
            if unit & (1 << 8) != 0 && text.is_char_boundary(i + 1) {
                let value = self.trie.get(at).map(|unit| unit & !(1 << 31));
                let rest = value.and_then(|start| self.replacements.get(start as usize..));
                let replacement = rest.and_then(|rest| rest.split('\0').next());
                found = replacement.map(|text| (text, i + 1)).or(found);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(units: &[u32], replacements: &str) -> Vec<u8> {
        let mut blob = (4 * units.len() as u32).to_le_bytes().to_vec();
        blob.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        blob.extend(replacements.as_bytes());
        blob
    }

    #[test]
    fn t5_bad_maps_are_named_and_lead_nowhere() {
        let path = Path::new("m.gguf");
        let long = "x".repeat(257);
        let cases: [(Vec<u8>, &str); 6] = [
            (vec![1, 2], "2 bytes"),
            (map(&[], ""), "declares 0 bytes"),
            (vec![6, 0, 0, 0, 0, 0, 0, 0, 0, 0], "declares 6 bytes"),
            (vec![255, 255, 255, 255, 0], "declares 4294967295"),
            (map(&[0], &long), "a replacement of 257"),
            ([map(&[0], ""), vec![0xFF]].concat(), "not UTF-8"),
        ];
        for (blob, part) in cases {
            let error = Charsmap::new(&blob, "tokenizer.ggml.precompiled_charsmap", path);
            let error = error.unwrap_err().to_string();
            assert!(
                error.starts_with("m.gguf: tokenizer.ggml.precompiled_charsmap: ")
                    && error.contains(part),
                "{error}"
            );
        }
        // units that point beyond the trie, at themselves, or beyond the replacements
        for unit in [u32::MAX, 1 << 9, 0x3FF, 0x161, 0x7FFF_FF61, 0] {
            let map = Charsmap::new(&map(&[unit; 256], "é\0"), "", path).unwrap();
            for text in ["a", "aaaaaaaa", "é", "\0", ""] {
                if let Some((_, len)) = map.longest(text) {
                    assert!(text.is_char_boundary(len));
                }
            }
        }
    }

    #[test]
    fn t5_a_trie_that_leads_back_into_itself_is_left_in_time() {
        // at 0 and 0x60 an `a` leads on to the other, and has its value one further
        let node = 0x61 | 1 << 8 | 1 << 10;
        let mut units = [0; 0x62];
        (units[0], units[0x60]) = (node, node);
        let map = Charsmap::new(&map(&units, "b\0"), "", Path::new("m.gguf")).unwrap();
        assert_eq!(map.longest("aa."), Some(("b", 2)));
        assert_eq!(map.longest(&"a".repeat(1000)), Some(("b", MAX_KEY)));
    }
}
