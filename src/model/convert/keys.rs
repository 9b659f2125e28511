//! The keys of a GGUF file.

use super::Target;
use crate::error::Result;
use crate::formats::write::GgufWriter;
use crate::formats::{Gguf, HfDir, ModelFiles};
use crate::model::rope::RopeScaling;
use crate::model::texts::{TOOL_TEMPLATE, VOCABULARY_NAME};
use crate::model::{Config, Texts};
use crate::text::{TokenType, Vocab};

/// Keys that tell of the file instead of the model: they are written anew.
const OF_THE_FILE: &[&str] = &[
    "general.file_type",
    "general.quantization_version",
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
];

pub(super) fn keys(
    files: &ModelFiles,
    config: &Config,
    texts: &Texts,
    target: Target,
) -> Result<GgufWriter> {
    let file_type = match target {
        Target::Q8_0 => 7,
        Target::F16 | Target::Int8 { .. } => 1,
    };
    let file = match files {
        ModelFiles::Gguf(gguf) => copied(gguf),
        ModelFiles::HuggingFace(dir) => of_directory(dir, config, texts)?,
    };
    Ok(file
        .u32("general.file_type", file_type)
        .u32("general.quantization_version", 2))
}

fn copied(gguf: &Gguf) -> GgufWriter {
    let keep = |key: &str| !OF_THE_FILE.contains(&key);
    gguf.metadata.copy_to(GgufWriter::new(), keep)
}

fn of_directory(dir: &HfDir, config: &Config, texts: &Texts) -> Result<GgufWriter> {
    let name = dir.config["_name_or_path"].as_str().unwrap_or_default();
    let number = |n: usize| n as u32;
    let mut file = GgufWriter::new().string("general.architecture", "llama");
    if !name.is_empty() {
        file = file.string("general.name", name);
    }
    file = file
        .u32("llama.block_count", number(config.num_layers))
        .u32(
            "llama.context_length",
            number(config.max_position_embeddings),
        )
        .u32("llama.embedding_length", number(config.hidden_size))
        .u32(
            "llama.feed_forward_length",
            number(config.intermediate_size),
        )
        .u32("llama.attention.head_count", number(config.num_heads))
        .u32("llama.attention.head_count_kv", number(config.num_kv_heads))
        .u32("llama.attention.key_length", number(config.head_dim))
        .u32("llama.attention.value_length", number(config.head_dim))
        .f32("llama.attention.layer_norm_rms_epsilon", config.norm_eps)
        .u32("llama.vocab_size", number(config.vocab_size))
        .u32("llama.rope.dimension_count", number(config.head_dim))
        .f32("llama.rope.freq_base", config.ropes[0].theta as f32);
    // the other scalings are a tensor
    if let RopeScaling::Linear { factor } = config.ropes[0].scaling {
        file = file
            .string("llama.rope.scaling.type", "linear")
            .f32("llama.rope.scaling.factor", factor as f32);
    }
    let vocab_path = dir.dir.join(VOCABULARY_NAME);
    if vocab_path.is_file() {
        let gguf = Gguf::open(&vocab_path)?;
        return Ok(gguf
            .metadata
            .copy_to(file, |key| key.starts_with("tokenizer.")));
    }
    let path = dir.dir.join("tokenizer.json");
    let json = dir.read_text("tokenizer.json")?.unwrap_or_default();
    let mut vocab = Vocab::from_json(json.as_bytes(), &texts.tokenizer, &path)?;
    // a tokenizer need not name what ends an answer
    let end = &dir.config["eos_token_id"];
    let end = end.as_u64().or(end[0].as_u64());
    let end = end.and_then(|id| u32::try_from(id).ok());
    vocab.eos = vocab.eos.or(end.filter(|id| texts.end_tokens.contains(id)));
    file = with_vocab(file, vocab, config.vocab_size);
    let templates = Texts::template_sources(&ModelFiles::HuggingFace(dir.clone()))?;
    if let Some(template) = templates.with_tools {
        let key = format!("tokenizer.chat_template.{TOOL_TEMPLATE}");
        file = file
            .strings("tokenizer.chat_templates", &[TOOL_TEMPLATE.to_owned()])
            .string(&key, &template);
    }
    Ok(match templates.usual {
        Some(template) => file.string("tokenizer.chat_template", &template),
        None => file,
    })
}

/// The vocabulary, with a token for each of `rows` of the embedding.
fn with_vocab(file: GgufWriter, vocab: Vocab, rows: usize) -> GgufWriter {
    let mut tokens = vocab.tokens;
    let mut types: Vec<i32> = vocab.token_types.iter().map(|kind| kind.number()).collect();
    for id in tokens.len()..rows {
        tokens.push(format!("[PAD{id}]"));
        types.push(TokenType::Unused.number());
    }
    let mut file = file
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", &vocab.pre)
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &vocab.merges);
    for (name, id) in [("bos", vocab.bos), ("eos", vocab.eos)] {
        if let Some(id) = id {
            file = file.u32(&format!("tokenizer.ggml.{name}_token_id"), id);
        }
    }
    match vocab.add_bos {
        Some(add_bos) => file.bool("tokenizer.ggml.add_bos_token", add_bos),
        None => file,
    }
}
