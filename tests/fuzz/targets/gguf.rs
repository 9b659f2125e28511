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
    if let Err(error) = Texts::load(&files) {
        super::names(&error, FILE);
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
    [each, values, head, model].map(GgufWriter::finish).into()
}
