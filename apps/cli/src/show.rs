//! `nelumbo show`: what a model's files say about it. Reads headers, opens no device.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use clap::Args;
use nelumbo::formats::{self, ModelFiles};
use nelumbo::model::{self, Config, Texts};
use serde::{Deserialize, Serialize};

use crate::args::GlobalArgs;
use crate::exit::Failure;
use crate::models::{self, human_bytes};
use crate::output::{print_line, table};

/// What `nelumbo show` takes.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  \
                        nelumbo show smollm2-135m\n  \
                        nelumbo show ./model.gguf --tensors\n  \
                        nelumbo show ./model.gguf --json | jq .context")]
pub struct ShowArgs {
    /// A GGUF file, a model directory, or the name of a local model (`nelumbo ls`)
    #[arg(value_name = "MODEL")]
    pub reference: OsString,
    /// Each tensor with its type, shape and bytes
    #[arg(long)]
    pub tensors: bool,
    /// The source of the chat template
    #[arg(long)]
    pub template: bool,
    /// One JSON object; with the two above, tensors and template are in it
    #[arg(long)]
    pub json: bool,
}

/// What the files tell. `None` where they do not, or where it takes an architecture that is known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    pub name: Option<String>,
    pub path: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Bytes of all files with weights.
    pub size: u64,
    pub architecture: Option<String>,
    /// Why this model cannot be run here.
    pub unsupported: Option<String>,
    pub licence: Option<String>,
    /// Elements of all tensors.
    pub parameters: u64,
    /// How most weights are stored, as files of this kind call it.
    pub quant: Option<String>,
    pub weights: Vec<Encoded>,
    pub layers: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub head_dim: Option<usize>,
    pub hidden_size: Option<usize>,
    pub intermediate_size: Option<usize>,
    pub vocab_size: Option<usize>,
    /// Tokens that the model was made for.
    pub context: Option<usize>,
    pub tokenizer: TokenizerKind,
    /// There is a chat template.
    pub template: bool,
}

/// Tensors of one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Encoded {
    pub encoding: String,
    pub tensors: usize,
    pub bytes: u64,
}

/// What the files call their tokenizer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TokenizerKind {
    pub kind: Option<String>,
    /// The pre-tokenizer, where a name is all the file has of it.
    pub pre: Option<String>,
    pub tokens: Option<usize>,
}

/// Prints what was asked for.
pub fn show(args: &ShowArgs, global: &GlobalArgs) -> Result<(), Failure> {
    let model = models::resolve_local(&args.reference, global)?;
    let files = formats::open(&model.path)?;
    let summary = Summary::of(&files, &model.path)?;
    if args.json {
        let mut value = serde_json::to_value(&summary).expect("a summary is plain data");
        if args.tensors {
            value["tensors"] = tensors_json(&files);
        }
        if args.template {
            let templates = Texts::template_sources(&files)?;
            value["chat_template"] = templates.usual.into();
            if let Some(source) = templates.with_tools {
                value["chat_template_tool_use"] = source.into();
            }
        }
        return print_line(&format!("{value:#}"));
    }
    if args.template {
        print_line(&template_of(&files)?)?;
    }
    if args.tensors {
        print_line(&tensors_table(&files))?;
    }
    if !args.template && !args.tensors {
        print_line(&summary.text())?;
    }
    Ok(())
}

/// The source of a model's chat template.
pub fn template(path: &Path) -> Result<String, Failure> {
    template_of(&formats::open(path)?)
}

fn template_of(files: &ModelFiles) -> Result<String, Failure> {
    let path = files.checkpoint().path().display();
    Texts::template_sources(files)?
        .usual
        .ok_or_else(|| Failure::Model(format!("{path}: there is no chat template")))
}

impl Summary {
    /// Of the model at `path`.
    pub fn read(path: &Path) -> Result<Summary, Failure> {
        Summary::of(&formats::open(path)?, path)
    }

    fn of(files: &ModelFiles, path: &Path) -> Result<Summary, Failure> {
        let checkpoint = files.checkpoint();
        // a model that cannot be run still has headers to show
        let config = model::family(files).and_then(|family| (family.config)(files));
        let (config, unsupported) = match config {
            Ok(config) => (Some(config), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let paths: BTreeSet<&Path> = checkpoint
            .tensors()
            .map(|t| checkpoint.file_of(t))
            .collect();
        let lengths = paths.iter().map(|p| p.metadata().map_or(0, |m| m.len()));
        let of = |field: fn(&Config) -> usize| config.as_ref().map(field);
        let about = About::of(files)?;
        Ok(Summary {
            name: about.name,
            path: path.display().to_string(),
            format: about.format.to_owned(),
            size: lengths.sum(),
            architecture: about.architecture,
            unsupported,
            licence: about.licence,
            parameters: checkpoint
                .tensors()
                .map(|t| t.rows() as u64 * t.columns() as u64)
                .sum(),
            quant: about.quant,
            weights: encodings(files),
            layers: of(|c| c.num_layers),
            heads: of(|c| c.num_heads),
            kv_heads: of(|c| c.num_kv_heads),
            head_dim: of(|c| c.head_dim),
            hidden_size: of(|c| c.hidden_size),
            intermediate_size: of(|c| c.intermediate_size),
            vocab_size: of(|c| c.vocab_size),
            context: of(|c| c.max_position_embeddings),
            tokenizer: about.tokenizer,
            template: Texts::template_sources(files)?.usual.is_some(),
        })
    }

    /// For people: a name and a value on each line.
    pub fn text(&self) -> String {
        let unknown = || "unknown".to_owned();
        let number = |n: Option<usize>| n.map_or_else(unknown, |n| n.to_string());
        let word = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
        let tokenizer = &self.tokenizer;
        let mut parts = vec![word(&tokenizer.kind)];
        parts.extend(tokenizer.pre.as_ref().map(|pre| format!("pre {pre}")));
        parts.extend(tokenizer.tokens.map(|n| format!("{n} tokens")));
        let mix = self.weights.iter().map(|w| {
            let s = if w.tensors == 1 { "" } else { "s" };
            format!(
                "{} {} tensor{s} {}",
                w.encoding,
                w.tensors,
                human_bytes(w.bytes)
            )
        });
        let mut rows = [
            ["name", &word(&self.name)],
            [
                "file",
                &format!(
                    "{} ({}, {})",
                    self.path,
                    self.format,
                    human_bytes(self.size)
                ),
            ],
            ["architecture", &word(&self.architecture)],
            ["parameters", &count(self.parameters)],
            ["quant", &word(&self.quant)],
            ["weights", &mix.collect::<Vec<_>>().join(", ")],
            ["layers", &number(self.layers)],
            [
                "heads",
                &format!(
                    "{}, {} for keys and values, {} wide",
                    number(self.heads),
                    number(self.kv_heads),
                    number(self.head_dim)
                ),
            ],
            [
                "width",
                &format!(
                    "{}, {} in the MLP",
                    number(self.hidden_size),
                    number(self.intermediate_size)
                ),
            ],
            ["vocabulary", &number(self.vocab_size)],
            ["context", &number(self.context)],
            ["tokenizer", &parts.join(", ")],
            ["template", if self.template { "yes" } else { "no" }],
            ["licence", &word(&self.licence)],
        ]
        .map(|row| row.map(str::to_owned))
        .to_vec();
        if let Some(problem) = &self.unsupported {
            rows.push(["not supported", problem].map(str::to_owned));
        }
        table(rows.into_iter())
    }
}

/// `134.5 M`, with three or four digits that count.
fn count(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0..1_000_000 => format!("{:.1} K", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n / 1e6),
        _ => format!("{:.2} B", n / 1e9),
    }
}

/// Encodings in the order of their bytes.
fn encodings(files: &ModelFiles) -> Vec<Encoded> {
    let mut all: Vec<Encoded> = Vec::new();
    for tensor in files.checkpoint().tensors() {
        let name = tensor.encoding.name();
        match all.iter_mut().find(|e| e.encoding == name) {
            Some(found) => {
                found.tensors += 1;
                found.bytes += tensor.bytes();
            }
            None => all.push(Encoded {
                encoding: name.to_owned(),
                tensors: 1,
                bytes: tensor.bytes(),
            }),
        }
    }
    all.sort_by_key(|e| std::cmp::Reverse(e.bytes));
    all
}

/// What the two layouts say in different places.
struct About {
    name: Option<String>,
    format: &'static str,
    architecture: Option<String>,
    licence: Option<String>,
    quant: Option<String>,
    tokenizer: TokenizerKind,
}

impl About {
    fn of(files: &ModelFiles) -> Result<About, Failure> {
        match files {
            ModelFiles::Gguf(gguf) => {
                let text = |key: &str| -> Result<Option<String>, Failure> {
                    Ok(gguf.metadata.opt_string(key)?.map(str::to_owned))
                };
                let tokens = gguf.metadata.opt_strings("tokenizer.ggml.tokens")?;
                Ok(About {
                    name: text("general.name")?,
                    format: "gguf",
                    architecture: text("general.architecture")?,
                    licence: text("general.license")?,
                    quant: gguf.quantisation()?.map(str::to_owned),
                    tokenizer: TokenizerKind {
                        kind: text("tokenizer.ggml.model")?,
                        pre: text("tokenizer.ggml.pre")?,
                        tokens: tokens.map(<[String]>::len),
                    },
                })
            }
            ModelFiles::HuggingFace(dir) => {
                let text = |key: &str| dir.config.get(key)?.as_str().map(str::to_owned);
                let architecture = dir.config["architectures"][0].as_str().map(str::to_owned);
                let tokenizer = dir.read_text("tokenizer.json")?;
                Ok(About {
                    name: text("_name_or_path").filter(|name| !name.is_empty()),
                    format: "safetensors",
                    architecture: architecture.or_else(|| text("model_type")),
                    licence: text("license"),
                    quant: encodings(files).into_iter().next().map(|e| e.encoding),
                    tokenizer: tokenizer.as_deref().map(hf_tokenizer).unwrap_or_default(),
                })
            }
        }
    }
}

/// The kind of a tokenizer.json; nothing where it has none.
fn hf_tokenizer(json: &str) -> TokenizerKind {
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type")]
        kind: Option<String>,
    }
    let file: Option<File> = serde_json::from_str(json).ok();
    TokenizerKind {
        kind: file.and_then(|file| file.model.kind),
        ..TokenizerKind::default()
    }
}

fn tensors_table(files: &ModelFiles) -> String {
    let header = ["NAME", "TYPE", "SHAPE", "BYTES"].map(str::to_owned);
    let rows = files.checkpoint().tensors().map(|tensor| {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        [
            tensor.name.clone(),
            tensor.encoding.name().to_owned(),
            shape.join(" x "),
            tensor.bytes().to_string(),
        ]
    });
    table(std::iter::once(header).chain(rows))
}

fn tensors_json(files: &ModelFiles) -> serde_json::Value {
    let row = |tensor: &formats::TensorInfo| {
        serde_json::json!({
            "name": tensor.name,
            "type": tensor.encoding.name(),
            "shape": tensor.shape,
            "bytes": tensor.bytes(),
        })
    };
    files.checkpoint().tensors().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_few_digits() {
        for (n, expected) in [
            (512, "0.5 K"),
            (134_515_008, "134.5 M"),
            (999_999_999, "1000.0 M"),
            (8_030_261_248, "8.03 B"),
        ] {
            assert_eq!(count(n), expected);
        }
    }

    #[test]
    fn a_tokenizer_file_tells_its_kind() {
        let kind = |json: &str| hf_tokenizer(json).kind;
        assert_eq!(
            kind(r#"{"added_tokens":[],"model":{"vocab":{"a":0},"type":"BPE"}}"#).as_deref(),
            Some("BPE")
        );
        assert_eq!(kind(r#"{"model":{}}"#), None);
        assert_eq!(kind("nonsense"), None);
    }
}
