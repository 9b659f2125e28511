//! What every token id stands for: its bytes in the output and its text for display.

use std::collections::BTreeMap;

/// How a vocabulary writes bytes in its token strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// GPT-2's: every byte has a printable character of its own.
    ByteLevel,
    /// SentencePiece's: `▁` is a space and, where the flag is set, `<0xNN>` is a byte.
    Metaspace { byte_fallback: bool },
}

/// The bytes of all tokens in one allocation, and the control tokens by id.
#[derive(Debug, Default)]
pub(super) struct TokenTable {
    bytes: Vec<u8>,
    /// `ends[id]`: where the bytes of `id` end; they begin at `ends[id - 1]`.
    ends: Vec<usize>,
    /// Tokens that stand for no text, with the text by which a prompt names them.
    control: BTreeMap<u32, String>,
}

/// One entry of the vocabulary on its way into the table.
pub(super) enum Entry<'a> {
    /// A token of the model, written in the vocabulary's alphabet.
    Normal(&'a str),
    /// A token whose string is its text.
    Literal(&'a str),
    /// A token that stands for no text.
    Control(&'a str),
}

impl TokenTable {
    /// Appends the token of the next id, which is the number of tokens so far.
    pub(super) fn push(&mut self, entry: &Entry<'_>, alphabet: Alphabet) {
        match *entry {
            Entry::Normal(token) => push_bytes(&mut self.bytes, token, alphabet),
            Entry::Literal(token) => self.bytes.extend_from_slice(token.as_bytes()),
            Entry::Control(token) => {
                let id = u32::try_from(self.ends.len()).expect("the vocabulary's size is limited");
                self.control.insert(id, token.to_owned());
            }
        }
        self.ends.push(self.bytes.len());
    }

    /// Forgets all ids from `count` on.
    pub(super) fn truncate(&mut self, count: usize) {
        self.ends.truncate(count);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self.control.retain(|&id, _| (id as usize) < count);
    }

    /// Number of ids.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes that `id` adds to the output: none for control tokens and ids beyond the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// The text of `id` for people: control tokens by name, broken characters as U+FFFD.
    pub(super) fn text(&self, id: u32) -> String {
        match self.control.get(&id) {
            Some(name) => name.clone(),
            None => String::from_utf8_lossy(self.bytes(id)).into_owned(),
        }
    }

    /// Whether `id` stands for no text.
    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.contains_key(&id)
    }

    /// All control tokens, ascending.
    pub(super) fn control(&self) -> impl Iterator<Item = (u32, &str)> {
        self.control.iter().map(|(&id, name)| (id, name.as_str()))
    }

    /// Bytes that no single token stands for. A byte-level text holding one cannot be encoded in full.
    pub(super) fn missing_bytes(&self) -> Vec<u8> {
        let mut seen = [false; 256];
        for id in 0..self.ends.len() {
            if let [byte] = self.bytes(u32::try_from(id).expect("the vocabulary's size is limited"))
            {
                seen[usize::from(*byte)] = true;
            }
        }
        // These never occur in UTF-8.
        let never = |b: u8| b == 0xC0 || b == 0xC1 || b >= 0xF5;
        (0..=255)
            .filter(|&b| !seen[usize::from(b)] && !never(b))
            .collect()
    }
}

fn push_bytes(out: &mut Vec<u8>, token: &str, alphabet: Alphabet) {
    match alphabet {
        Alphabet::ByteLevel => {
            let start = out.len();
            for c in token.chars() {
                match byte_of_char(c) {
                    Some(byte) => out.push(byte),
                    None => {
                        // Not written in the alphabet: the string is the text.
                        out.truncate(start);
                        out.extend_from_slice(token.as_bytes());
                        return;
                    }
                }
            }
        }
        Alphabet::Metaspace { byte_fallback } => match byte_token(token) {
            Some(byte) if byte_fallback => out.push(byte),
            _ => out.extend_from_slice(token.replace('▁', " ").as_bytes()),
        },
    }
}

/// The byte that `<0xNN>` stands for.
pub(super) fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's alphabet backwards. Printable Latin-1 characters stand for themselves; the other 68 bytes
/// are numbered in ascending order from U+0100.
fn byte_of_char(c: char) -> Option<u8> {
    match u32::from(c) {
        n @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => u8::try_from(n).ok(),
        n @ 0x100..=0x120 => u8::try_from(n - 0x100).ok(), // 0x00..=0x20
        n @ 0x121..=0x142 => u8::try_from(n - 0x121 + 0x7F).ok(), // 0x7F..=0xA0
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn the_alphabet_covers_every_byte_once() {
        let bytes: std::collections::BTreeSet<u8> = ByteLevel::alphabet()
            .into_iter()
            .map(|c| byte_of_char(c).unwrap())
            .collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!((byte_of_char(' '), byte_of_char('\u{144}')), (None, None));
    }

    #[test]
    fn tables_in_both_alphabets() {
        let mut table = TokenTable::default();
        table.push(&Entry::Control("<s>"), Alphabet::ByteLevel);
        table.push(&Entry::Normal("Ġcaf"), Alphabet::ByteLevel);
        table.push(&Entry::Normal("Ã"), Alphabet::ByteLevel);
        table.push(&Entry::Literal("<think>"), Alphabet::ByteLevel);
        let spm = Alphabet::Metaspace {
            byte_fallback: true,
        };
        table.push(&Entry::Normal("▁the"), spm);
        table.push(&Entry::Normal("<0xE2>"), spm);
        table.push(&Entry::Normal("<0x+1>"), spm);
        let bytes: Vec<&[u8]> = (0..8).map(|id| table.bytes(id)).collect();
        assert_eq!(
            bytes,
            [
                b"".as_slice(),
                b" caf",
                b"\xC3",
                b"<think>",
                b" the",
                b"\xE2",
                b"<0x+1>",
                b""
            ]
        );
        assert_eq!(
            (table.text(0), table.text(2), table.text(u32::MAX)),
            ("<s>".into(), "\u{FFFD}".into(), String::new())
        );
        assert!(table.is_control(0) && !table.is_control(1) && !table.is_control(u32::MAX));
    }
}
