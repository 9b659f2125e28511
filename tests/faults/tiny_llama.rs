//! A tiny model with a byte-level tokenizer, written as a GGUF file and as a directory: the same
//! weights, spelled the way each layout spells them.
#![allow(dead_code, reason = "each test program uses a part")]

use nelumbo::formats::Encoding;
use nelumbo::formats::write::{GgufWriter, write_safetensors};
use nelumbo::kernels::case::Data;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

const LAYERS: usize = 2;
const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const INTERMEDIATE: usize = 96;
const VOCAB: usize = 258;
const EOS: usize = 257;

/// A tensor with the two names it goes by.
struct Tensor {
    hf: String,
    gguf: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    /// Rows of rotated heads, which a GGUF file of this family has in another order.
    rotated: bool,
}

/// The model, and flaws to be written into its files.
pub struct TinyLlama {
    tensors: Vec<Tensor>,
    /// `general.architecture`, `architectures[0]`.
    pub architecture: (&'static str, &'static str),
    /// The head is stored; otherwise the embedding serves.
    pub untied: bool,
}

impl TinyLlama {
    pub fn new() -> TinyLlama {
        let mut data = Data::new(31);
        let mut tensors = Vec::new();
        let mut add = |hf: String, gguf: String, shape: &[usize], rotated| {
            let values = if let [rows, columns] = *shape {
                let scale = 2.0 / (columns as f32).sqrt();
                data.normal(rows * columns)
                    .iter()
                    .map(|v| v * scale)
                    .collect()
            } else {
                data.normal(shape[0])
                    .iter()
                    .map(|v| 1.0 + 0.1 * v)
                    .collect()
            };
            let shape = shape.to_vec();
            tensors.push(Tensor {
                hf,
                gguf,
                shape,
                values,
                rotated,
            });
        };
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let top = |name: &str| format!("{name}.weight");
        add(
            top("model.embed_tokens"),
            top("token_embd"),
            &[VOCAB, HIDDEN],
            false,
        );
        add(top("model.norm"), top("output_norm"), &[HIDDEN], false);
        add(top("lm_head"), top("output"), &[VOCAB, HIDDEN], false);
        for layer in 0..LAYERS {
            let each: [(&str, &str, &[usize], bool); 9] = [
                ("input_layernorm", "attn_norm", &[HIDDEN], false),
                ("self_attn.q_proj", "attn_q", &[q, HIDDEN], true),
                ("self_attn.k_proj", "attn_k", &[kv, HIDDEN], true),
                ("self_attn.v_proj", "attn_v", &[kv, HIDDEN], false),
                ("self_attn.o_proj", "attn_output", &[HIDDEN, q], false),
                ("post_attention_layernorm", "ffn_norm", &[HIDDEN], false),
                ("mlp.gate_proj", "ffn_gate", &[INTERMEDIATE, HIDDEN], false),
                ("mlp.up_proj", "ffn_up", &[INTERMEDIATE, HIDDEN], false),
                ("mlp.down_proj", "ffn_down", &[HIDDEN, INTERMEDIATE], false),
            ];
            for (hf, gguf, shape, rotated) in each {
                let hf = format!("model.layers.{layer}.{hf}.weight");
                add(hf, format!("blk.{layer}.{gguf}.weight"), shape, rotated);
            }
        }
        TinyLlama {
            tensors,
            architecture: ("llama", "LlamaForCausalLM"),
            untied: true,
        }
    }

    /// Gives the tensor with this name in a directory one row less.
    pub fn shorten(&mut self, hf: &str) {
        let tensor = self.tensors.iter_mut().find(|t| t.hf == hf).unwrap();
        tensor.shape[0] -= 1;
        let len = tensor.shape.iter().product();
        tensor.values.truncate(len);
    }

    /// Gives tensor with this name in a directory more rows, as padding does.
    pub fn lengthen(&mut self, hf: &str, rows: usize) {
        let tensor = self.tensors.iter_mut().find(|t| t.hf == hf).unwrap();
        let columns = tensor.shape[1];
        // rows that would win every draw
        let loud = tensor.values[..columns].iter().map(|v| 50.0 * v);
        let loud: Vec<f32> = loud.collect();
        tensor.shape[0] += rows;
        for row in 0..rows {
            let sign = if row % 2 == 0 { 1.0 } else { -1.0 };
            tensor.values.extend(loud.iter().map(|v| sign * v));
        }
    }

    /// Puts a value into the tensor with this name in a directory.
    pub fn set(&mut self, hf: &str, at: usize, value: f32) {
        let tensor = self.tensors.iter_mut().find(|t| t.hf == hf).unwrap();
        tensor.values[at] = value;
    }

    /// Makes the head the same as the embedding.
    pub fn copy_embedding_to_head(&mut self) {
        let find = |hf: &str| self.tensors.iter().position(|t| t.hf == hf).unwrap();
        let (from, to) = (find("model.embed_tokens.weight"), find("lm_head.weight"));
        self.tensors[to].values = self.tensors[from].values.clone();
    }

    fn stored(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors
            .iter()
            .filter(|t| self.untied || t.hf != "lm_head.weight")
    }

    /// The file, with more keys by `more`.
    pub fn gguf(&self, more: impl FnOnce(GgufWriter) -> GgufWriter) -> GgufWriter {
        let mut kinds = vec![1; VOCAB];
        kinds[EOS] = 3;
        let file = GgufWriter::new()
            .string("general.architecture", self.architecture.0)
            .u32("llama.block_count", LAYERS as u32)
            .u32("llama.context_length", 256)
            .u32("llama.embedding_length", HIDDEN as u32)
            .u32("llama.feed_forward_length", INTERMEDIATE as u32)
            .u32("llama.attention.head_count", HEADS as u32)
            .u32("llama.attention.head_count_kv", KV_HEADS as u32)
            .u32("llama.attention.key_length", HEAD_DIM as u32)
            .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .f32("llama.rope.freq_base", 10_000.0)
            .string("llama.rope.scaling.type", "linear")
            .f32("llama.rope.scaling.factor", 2.0)
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", "gpt-2")
            .strings("tokenizer.ggml.tokens", &token_texts())
            .i32s("tokenizer.ggml.token_type", &kinds)
            .strings("tokenizer.ggml.merges", &["h i"])
            .u32("tokenizer.ggml.eos_token_id", EOS as u32);
        self.stored().fold(more(file), |file, t| {
            let bytes = if t.rotated {
                bytes_of(&pairs_adjacent(&t.values, t.shape[1]))
            } else {
                bytes_of(&t.values)
            };
            file.tensor(&t.gguf, &t.shape, Encoding::F32, &bytes)
        })
    }

    /// Writes the directory.
    pub fn write_directory(&self, dir: &Path) {
        let stored: Vec<(&Tensor, Vec<u8>)> =
            self.stored().map(|t| (t, bytes_of(&t.values))).collect();
        let parts: Vec<_> = stored
            .iter()
            .map(|(t, bytes)| (t.hf.as_str(), &t.shape[..], Encoding::F32, &bytes[..]))
            .collect();
        write_safetensors(&dir.join("model.safetensors"), &parts).unwrap();
        let config = json!({
            "architectures": [self.architecture.1],
            "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "intermediate_size": INTERMEDIATE,
            "vocab_size": self.tensors[0].shape[0],
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "max_position_embeddings": 256,
            "tie_word_embeddings": !self.untied,
            "hidden_act": "silu",
            "eos_token_id": EOS,
        });
        fs::write(dir.join("config.json"), config.to_string()).unwrap();
        fs::write(dir.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Rows of each head with the two that are rotated together side by side: what converters to GGUF do
/// for this family. Row `2 i + s` is what was row `s * head_dim / 2 + i`.
fn pairs_adjacent(values: &[f32], columns: usize) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (head, rows) in values.chunks(HEAD_DIM * columns).enumerate() {
        for (row, row_values) in rows.chunks(columns).enumerate() {
            let (side, i) = (row / (HEAD_DIM / 2), row % (HEAD_DIM / 2));
            let to = head * HEAD_DIM + 2 * i + side;
            out[to * columns..(to + 1) * columns].copy_from_slice(row_values);
        }
    }
    out
}

/// A character for every byte, as byte-level BPE spells them: printable ones of Latin 1 stand for
/// themselves, the others for what comes from U+0100 on, in order.
fn byte_chars() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap()
            }
        })
        .collect()
}

fn token_texts() -> Vec<String> {
    let mut texts: Vec<String> = byte_chars().into_iter().map(String::from).collect();
    texts.extend(["hi".to_owned(), "<|im_end|>".to_owned()]);
    assert_eq!(texts.len(), VOCAB);
    texts
}

fn tokenizer() -> Value {
    let texts = token_texts();
    let vocab: Map<String, Value> = texts[..EOS]
        .iter()
        .enumerate()
        .map(|(id, text)| (text.clone(), json!(id)))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "version": "1.0",
        "added_tokens": [{"id": EOS, "content": texts[EOS], "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h i"]},
    })
}
