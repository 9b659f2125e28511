//! The real model with weights stored in every type that GGUF files are read in: each is written to a
//! file, loaded from there, and has to answer.
//!
//! The matrices of every third layer get the type, which is what two cores encode in the time there is;
//! the rest is F16. The types of 256 elements need rows that are a multiple of that long, which only the
//! matrices down to the residual stream have here (1536; the others 576). What is too short for one
//! gets the type that usual files of such models fall back to: Q4_0 for Q2_K and Q3_K, Q5_0 for Q4_K,
//! Q5_1 for Q5_K, Q8_0 for Q6_K and Q8_K.

mod common;

use common::{answer, argmax, gpu, model_path, request};
use nelumbo::engine::{EngineCore, Sampling};
use nelumbo::formats::write::GgufWriter;
use nelumbo::formats::{Encoding, Gguf, TensorInfo};
use nelumbo::gpu::{OpenOptions, PipelineFolder};
use nelumbo::model::warm::shader_hash;
use nelumbo::quant::Format;
use nelumbo::{LoadOptions, Model};
use std::path::Path;

/// Two examples show how to go on: a model this small is not sure of an answer to the bare question.
const QUESTION: &str =
    "The capital of Italy is Rome. The capital of Spain is Madrid. The capital of France is";

/// The text whose next tokens are compared; its own words, so that there is something to know.
const TEXT: &str = "Water boils at one hundred degrees and freezes at zero. The sun rises in the east \
    and sets in the west. A week has seven days, and a year has twelve months.";

/// The type that a matrix with such rows gets in a file of a type.
fn stored_as(encoding: Encoding, columns: usize) -> Encoding {
    match encoding {
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

/// Writes the model with some layers' matrices in `encoding`, and tells how many are in it exactly.
fn write_as(encoding: Encoding, from: &Gguf, path: &Path) -> usize {
    let mut file = keys(from);
    let mut values = Vec::new();
    let mut exactly = 0;
    for info in from.checkpoint.tensors() {
        let rows = 0..info.rows();
        from.checkpoint.read_rows(info, rows, &mut values).unwrap();
        let wanted = match layer_of_matrix(info) {
            Some(layer) if layer % 3 == 0 => stored_as(encoding, info.columns()),
            _ if info.shape.len() == 1 => Encoding::F32,
            _ => Encoding::F16,
        };
        let chosen = layer_of_matrix(info).is_some_and(|layer| layer % 3 == 0);
        exactly += usize::from(chosen && wanted == encoding);
        file = file.tensor(&info.name, &info.shape, wanted, &encoded(&values, wanted));
    }
    std::fs::write(path, file.finish()).unwrap();
    exactly
}

/// The layer that a matrix belongs to.
fn layer_of_matrix(info: &TensorInfo) -> Option<usize> {
    let layer = info.name.strip_prefix("blk.")?.split('.').next()?;
    (info.shape.len() == 2).then(|| layer.parse().unwrap())
}

/// What a file answers, and its likeliest next token at every position of the text.
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
    let tokenizer = model.texts.tokenizer;
    let mut engine = EngineCore::new(model.decoder).unwrap();
    let prompt = tokenizer.encode_raw(QUESTION).unwrap();
    let answer = answer(&mut engine, request(&prompt, 7, Sampling::default()));
    let bytes = answer.tokens.iter().flat_map(|&t| tokenizer.token_bytes(t));
    let text = String::from_utf8_lossy(&bytes.copied().collect::<Vec<u8>>()).into_owned();
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
        // of ten layers; the types for rows of 256 in one matrix of seven, the others in all
        let wide = encoding.group_size() == 256;
        assert_eq!(exactly, if wide { 10 } else { 70 }, "{name}");
        let (few_bits, least) = match encoding {
            Encoding::Q2K => (true, of / 2),
            Encoding::Q3K => (true, of * 2 / 3),
            Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q4K => (false, of * 5 / 6),
            Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q5K => (false, of * 5 / 6),
            _ => (false, of * 9 / 10),
        };
        assert!(few_bits || text.contains("Paris"), "{name}: {text:?}");
        assert!(same >= least, "{name}: {same} of {of}");
    }
}
