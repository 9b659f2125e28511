//! The real model with its weights stored in every type that GGUF files are read in: each is written
//! to a file, loaded from there, and has to answer.
//!
//! The types of 256 elements need rows that are a multiple of that long, which of this model's matrices
//! only those down to the residual stream have (1536; the others 576). What is too short for one gets
//! the type that usual files of such models fall back to: Q4_0 for Q2_K and Q3_K, Q5_0 for Q4_K, Q5_1
//! for Q5_K, Q8_0 for Q6_K and Q8_K. F32 and F64 take the same matrices alone, and F16 the rest, so that
//! the file stays small. Embedding and norms are taken over.

mod common;

use common::{answer, argmax, gpu, model_path, request};
use nelumbo::engine::{Engine, Sampling};
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf, TensorInfo};
use nelumbo::gpu::{OpenOptions, PipelineFolder};
use nelumbo::model::warm::shader_hash;
use nelumbo::quant::Format;
use nelumbo::text::Message;
use nelumbo::{LoadOptions, Model};
use std::path::Path;

/// One question as a chat and as a text to go on with. A model this small is sure of neither: with
/// weights that are a little off it may answer the one in French, or go on with the other's examples.
/// So one of the two has to be right.
const QUESTION: &str = "What is the capital of France?";
const EXAMPLES: &str =
    "The capital of Italy is Rome. The capital of Spain is Madrid. The capital of France is";

/// The text whose next tokens are compared; its own words, so that there is something to know.
const TEXT: &str = "Water boils at one hundred degrees and freezes at zero. The sun rises in the east \
    and sets in the west. A week has seven days, and a year has twelve months.";

/// The type that a matrix with such rows gets in a file of a type.
fn stored_as(encoding: Encoding, columns: usize) -> Encoding {
    match encoding {
        Encoding::F32 | Encoding::F64 if columns != 1536 => Encoding::F16,
        _ if columns.is_multiple_of(encoding.group_size()) => encoding,
        Encoding::Q2K | Encoding::Q3K => Encoding::Q4_0,
        Encoding::Q4K => Encoding::Q5_0,
        Encoding::Q5K => Encoding::Q5_1,
        Encoding::Q6K | Encoding::Q8K => Encoding::Q8_0,
        other => panic!("{} has no fallback", other.name()),
    }
}

/// The keys that matter, as they are in `from`.
fn keys(from: &Gguf) -> GgufWriter {
    let metadata = &from.metadata;
    let mut file = GgufWriter::new();
    for key in [
        "general.architecture",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.chat_template",
    ] {
        file = file.string(key, metadata.string(key).unwrap());
    }
    for key in [
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
    ] {
        file = file.u32(key, metadata.u32(key).unwrap());
    }
    for key in [
        "llama.rope.freq_base",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        file = file.f32(key, metadata.f32(key).unwrap());
    }
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        file = file.strings(key, metadata.strings(key).unwrap());
    }
    let types = "tokenizer.ggml.token_type";
    file.i32s(types, metadata.i32s(types).unwrap())
        .bool("tokenizer.ggml.add_bos_token", false)
}

/// A tensor's bytes in another encoding, made on two threads.
fn encoded(values: &[f32], encoding: Encoding) -> Vec<u8> {
    let half = values.len() / 2 / encoding.group_size() * encoding.group_size();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| encoding.encode(&values[half..]));
        let mut bytes = encoding.encode(&values[..half]);
        bytes.extend(second.join().unwrap());
        bytes
    })
}

/// Writes the model with its layers' matrices in `encoding`, and tells how many are in it exactly.
fn write_as(encoding: Encoding, from: &Gguf, path: &Path) -> usize {
    let mut file = keys(from);
    let mut values = Vec::new();
    let mut exactly = 0;
    for info in from.checkpoint.tensors() {
        let rows = 0..info.rows();
        from.checkpoint.read_rows(info, rows, &mut values).unwrap();
        let wanted = if is_matrix_of_a_layer(info) {
            stored_as(encoding, info.columns())
        } else {
            info.encoding
        };
        exactly += usize::from(is_matrix_of_a_layer(info) && wanted == encoding);
        file = file.tensor(&info.name, &info.shape, wanted, &encoded(&values, wanted));
    }
    std::fs::write(path, file.finish()).unwrap();
    exactly
}

fn is_matrix_of_a_layer(info: &TensorInfo) -> bool {
    info.name.starts_with("blk.") && info.shape.len() == 2
}

/// What a file answers to both, and its likeliest next token at every position of the text.
fn ask(path: &Path, pipelines: &Path) -> (String, Vec<u32>) {
    let options = LoadOptions {
        weights: Format::from_name("f16").unwrap(),
        ctx_size: Some(128),
        batch_size: Some(64),
        open: OpenOptions {
            pipelines: Some(PipelineFolder {
                folder: pipelines.to_owned(),
                shaders: shader_hash(),
            }),
            ..OpenOptions::default()
        },
        ..LoadOptions::default()
    };
    let model = Model::load(path, &options, &mut |_, _| ()).unwrap();
    let texts = model.texts;
    let tokenizer = &texts.tokenizer;
    let mut engine = Engine::new(model.decoder).unwrap();
    let mut text = String::new();
    let message = Message {
        role: "user".to_owned(),
        content: QUESTION.to_owned(),
    };
    for prompt in [
        texts.encode_chat(&[message], "2025-01-01"),
        tokenizer.encode_raw(EXAMPLES),
    ] {
        let request = request(&prompt.unwrap(), 7, Sampling::default());
        let answer = answer(&mut engine, request);
        let bytes = answer.tokens.iter().flat_map(|&t| tokenizer.token_bytes(t));
        text += &String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>());
        text += " |";
    }
    let words = tokenizer.encode_raw(TEXT).unwrap();
    let mut next = Vec::new();
    let each = |_: usize, row: &[f32]| {
        assert!(row.iter().all(|x| x.is_finite()));
        next.push(argmax(row));
    };
    engine.evaluate(&words, 64, 0, each).unwrap();
    assert_eq!(next.len(), words.len());
    (text, next)
}

#[test]
fn the_real_model_answers_from_every_type_of_file() {
    let (Some(path), Some(_)) = (model_path(), gpu(&OpenOptions::default())) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let original = Gguf::open(&path).unwrap();
    let (text, next) = ask(&path, folder.path());
    println!("the file itself: {text:?}");
    assert!(text.contains("Paris"), "{text:?}");
    for encoding in Encoding::all() {
        let name = encoding.name();
        let file = folder.path().join("again.gguf");
        let exactly = write_as(encoding, &original, &file);
        let (text, found) = ask(&file, folder.path());
        let same = found.iter().zip(&next).filter(|(a, b)| a == b).count();
        let of = next.len();
        println!("{name} in {exactly} matrices: {text:?}, {same} of {of} next tokens the same");
        // the types for rows of 256 are in one matrix of seven, the others in all
        assert!(exactly == 30 || exactly == 210, "{name}: {exactly}");
        let (few_bits, least) = match encoding {
            Encoding::Q2K => (true, of / 4),
            Encoding::Q3K => (true, of / 2),
            Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K => (false, of * 11 / 20),
            Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => (false, of * 3 / 4),
            _ => (false, of * 17 / 20),
        };
        assert!(few_bits || text.contains("Paris"), "{name}: {text:?}");
        assert!(same >= least, "{name}: {same} of {of}");
    }
}
