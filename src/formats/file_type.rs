//! What a GGUF file as a whole is called: `Q4_K_M` for one that is mostly Q4_K.

use std::collections::BTreeMap;

use super::encoding::Encoding;
use super::gguf::Gguf;
use crate::error::Result;

const KEY: &str = "general.file_type";

/// Set in the number where the writer was not told the type and went by the tensors.
const GUESSED: u32 = 1024;

/// Numbers under which files of the encodings that are read here go. The letter at the end tells
/// small, medium and large mixtures apart: how many tensors are stored with more bits.
const NAMES: [(u32, &str); 18] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (21, "Q2_K_S"),
    (32, "BF16"),
];

impl Gguf {
    /// The name that the file's quantisation goes by, from `general.file_type`. Without that key, or
    /// with a number that says nothing, it is the encoding that takes the most bytes; `None` for a
    /// file without tensors.
    ///
    /// # Errors
    /// [`Error::Field`](crate::Error::Field) if the key holds something else than such a number.
    pub fn quantisation(&self) -> Result<Option<&'static str>> {
        let declared = self.metadata.opt_u32(KEY)?.and_then(|number| {
            let number = number & !GUESSED;
            NAMES.iter().find(|(known, _)| *known == number)
        });
        Ok(declared.map(|(_, name)| *name).or_else(|| {
            let by_bytes = self.encodings();
            let most = by_bytes.iter().max_by_key(|(_, bytes)| *bytes);
            most.map(|(encoding, _)| encoding.name())
        }))
    }

    /// The bytes that each encoding takes, for those that occur, by GGUF type.
    pub fn encodings(&self) -> Vec<(Encoding, u64)> {
        let mut bytes = BTreeMap::new();
        for tensor in self.checkpoint.tensors() {
            let (_, sum) = bytes
                .entry(tensor.encoding.gguf_type())
                .or_insert((tensor.encoding, 0));
            *sum += tensor.bytes();
        }
        bytes.into_values().collect()
    }
}
