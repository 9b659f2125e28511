//! A GGUF file: header, metadata, tensors, and what a model makes of them.

use super::Target;
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf, ModelFiles};
use nelumbo::model::tensors::TensorMap;
use nelumbo::model::{Texts, family};
use std::path::Path;
use std::sync::Arc;

#[path = "../../faults/tiny_llama.rs"]
mod tiny_llama;

pub const TARGET: Target = Target {
    name: "gguf",
    run,
    seeds,
};

const FILE: &str = "fuzzed.gguf";

fn run(data: &[u8]) {
    let gguf = match Gguf::read(Path::new(FILE), Arc::new(data.to_vec())) {
        Ok(gguf) => gguf,
        Err(error) => return super::names(&error, FILE),
    };
    super::read_all(&gguf.checkpoint);
    for key in gguf.metadata.keys() {
        // whichever type it has, every way of asking for it answers
        let _ = gguf.metadata.opt_string(key);
        let _ = gguf.metadata.opt_u32(key);
        let _ = gguf.metadata.opt_strings(key);
    }
    let files = ModelFiles::Gguf(gguf);
    match Texts::load(&files) {
        Ok(texts) => super::encode(&texts.tokenizer, "hi A \u{2581}hi"),
        Err(error) => super::names(&error, FILE),
    }
    let config = family(&files).and_then(|family| Ok((family, (family.config)(&files)?)));
    match config {
        Ok((family, config)) => {
            let names = (family.names)(&files);
            if let Err(error) = TensorMap::new(&config, &names, files.checkpoint()) {
                super::names(&error, FILE);
            }
        }
        Err(error) => super::names(&error, FILE),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let each = Encoding::all().fold(GgufWriter::new(), |file, encoding| {
        let bytes = vec![7; encoding.group_bytes() * 2];
        file.tensor(
            encoding.name(),
            &[2, encoding.group_size()],
            encoding,
            &bytes,
        )
    });
    let values = GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 2)
        .i32("general.number", -1)
        .u64("general.big", u64::MAX)
        .f32("llama.rope.freq_base", 10_000.0)
        .bool("tokenizer.ggml.add_bos_token", true)
        .strings("tokenizer.ggml.tokens", &["a", "", "\u{120}b"])
        .i32s("tokenizer.ggml.token_type", &[1, 3, -1])
        .f32s("tokenizer.ggml.scores", &[0.5, -1.0, 0.0])
        .alignment(64)
        .tensor("norm", &[3], Encoding::F32, &[0; 12]);
    let head = GgufWriter::new()
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["h", "i", "hi", "<|im_end|>"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3])
        .strings("tokenizer.ggml.merges", &["h i"])
        .string("tokenizer.chat_template", "{{ messages[0].content }}")
        .u32("tokenizer.ggml.eos_token_id", 3);
    let model = tiny_llama::TinyLlama::new().gguf(|file| file);
    [each, values, head, pieces("llama"), pieces("t5"), model]
        .map(GgufWriter::finish)
        .into()
}

/// A vocabulary of scored pieces, with a byte, a word of the user's, and a map by which `A` becomes `a`.
fn pieces(kind: &str) -> GgufWriter {
    let tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
        "\u{2581}",
        "h",
        "i",
        "hi",
        "\u{2581}hi",
        "a",
        "<mask>",
    ];
    let scores = [0.0, 0.0, 0.0, 0.0, -2.0, -3.0, -3.0, -1.5, -1.0, -4.0, 0.0];
    let mut trie = [0u32; 256];
    trie[usize::from(b'A')] = u32::from(b'A') | 1 << 8 | 1 << 10; // a value, one unit away
    trie[usize::from(b'A') ^ 1] = 1 << 31; // the first replacement
    let units = trie.iter().flat_map(|unit| unit.to_le_bytes());
    let map: Vec<u8> = (4 * trie.len() as u32)
        .to_le_bytes()
        .into_iter()
        .chain(units)
        .chain(*b"a\0")
        .collect();
    GgufWriter::new()
        .string("general.architecture", "llama")
        .string("tokenizer.ggml.model", kind)
        .strings("tokenizer.ggml.tokens", &tokens)
        .f32s("tokenizer.ggml.scores", &scores)
        .i32s(
            "tokenizer.ggml.token_type",
            &[2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 4],
        )
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
        .bool("tokenizer.ggml.remove_extra_whitespaces", true)
        .array("tokenizer.ggml.precompiled_charsmap", 0, map.len(), &map)
}
