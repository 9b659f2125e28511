//! The text side of a model: tokenizer, chat template, and the tokens that end an answer.

use super::defaults::SamplingDefaults;
use super::fields::Fields;
use crate::error::{Error, Result};
use crate::formats::metadata::Metadata;
use crate::formats::{Gguf, HfDir, ModelFiles};
use crate::text::{ChatTemplate, Message, RenderOptions, TokenType, Tokenizer, Vocab, VocabKind};
use serde_json::{Map, Value};
use std::path::Path;

/// Everything between a user's text and token ids.
pub struct Texts {
    /// Encodes and tells each token's bytes.
    pub tokenizer: Tokenizer,
    /// How messages become one text; an error that says why there is none.
    pub template: Result<ChatTemplate, String>,
    /// The same for conversations with tools, where the files have a template of its own for them.
    pub tool_template: Option<Result<ChatTemplate, String>>,
    /// Tokens after which an answer is over.
    pub end_tokens: Vec<u32>,
    /// How the model's authors would have tokens drawn.
    pub sampling: SamplingDefaults,
}

/// The sources of a model's chat templates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateSources {
    /// For every conversation that no other is for.
    pub usual: Option<String>,
    /// For conversations with tools; files call it [`TOOL_TEMPLATE`].
    pub with_tools: Option<String>,
}

/// What files call the template for conversations with tools. Templates of other names are not used.
pub const TOOL_TEMPLATE: &str = "tool_use";

/// The keys of a GGUF file that tell of its tokenizer, beside weights that are not in that layout: for
/// vocabularies that no `tokenizer.json` can tell. It stands in for a missing one.
pub const VOCABULARY_NAME: &str = "tokenizer.gguf";

/// Control tokens that end a turn in the chat formats in use. Files often name only one of several.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
];

impl Texts {
    /// Reads them from a model's files.
    ///
    /// # Errors
    /// Names the file and the field. A broken chat template is no error here: plain prompts still
    /// work.
    pub fn load(files: &ModelFiles) -> Result<Texts> {
        match files {
            ModelFiles::Gguf(gguf) => from_gguf(&gguf.metadata),
            ModelFiles::HuggingFace(dir) => from_dir(dir),
        }
    }

    /// The sources of the model's chat templates. Builds no tokenizer.
    ///
    /// # Errors
    /// Names the file and the field.
    pub fn template_sources(files: &ModelFiles) -> Result<TemplateSources> {
        match files {
            ModelFiles::Gguf(gguf) => gguf_templates(&gguf.metadata),
            ModelFiles::HuggingFace(dir) => {
                dir_templates(dir, dir.read_json("tokenizer_config.json")?.as_ref())
            }
        }
    }

    /// Token ids of a chat: the template's text with control tokens, the messages without.
    ///
    /// # Errors
    /// [`Error::Template`] when there is no usable template or it refuses the messages.
    pub fn encode_chat(&self, messages: &[Message], date: &str) -> Result<Vec<u32>> {
        self.encode_chat_with(messages, date, Map::new())
    }

    /// The same with arguments for the template, such as `tools` or `enable_thinking`; see
    /// [`RenderOptions::kwargs`]. With tools it is the template for these, if the model has one.
    ///
    /// # Errors
    /// As [`Texts::encode_chat`]; [`Error::Request`] for an argument that would replace one of the
    /// template's own.
    pub fn encode_chat_with(
        &self,
        messages: &[Message],
        date: &str,
        kwargs: Map<String, Value>,
    ) -> Result<Vec<u32>> {
        let has_tools = kwargs
            .get("tools")
            .is_some_and(|tools| !tools.is_null() && tools != &Value::Array(Vec::new()));
        let template = match &self.tool_template {
            Some(template) if has_tools => template,
            _ => &self.template,
        };
        let template = template.as_ref().map_err(|problem| Error::Template {
            problem: problem.clone(),
        })?;
        let text_of = |id: Option<u32>| {
            id.map(|id| self.tokenizer.token_text(id))
                .unwrap_or_default()
        };
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: text_of(self.tokenizer.bos()),
            eos_token: text_of(self.tokenizer.eos()),
            date: date.to_owned(),
            kwargs,
        };
        self.tokenizer
            .encode_rendered(&template.render(messages, &options)?)
    }

    fn new(
        tokenizer: Tokenizer,
        templates: &TemplateSources,
        ends: impl IntoIterator<Item = u32>,
    ) -> Texts {
        let compiled = |source: &String| {
            ChatTemplate::new(source).map_err(|e| match e {
                Error::Template { problem } => problem,
                other => other.to_string(),
            })
        };
        let none = || Err("the model has none; use --raw for a plain prompt".to_owned());
        let mut end_tokens: Vec<u32> = ends.into_iter().chain(tokenizer.eos()).collect();
        let known = TURN_ENDS.iter().filter_map(|t| tokenizer.token_id(t));
        end_tokens.extend(known.filter(|&id| tokenizer.is_guarded(id)));
        end_tokens.sort_unstable();
        end_tokens.dedup();
        Texts {
            tokenizer,
            template: templates.usual.as_ref().map_or_else(none, compiled),
            tool_template: templates.with_tools.as_ref().map(compiled),
            end_tokens,
            sampling: SamplingDefaults::default(),
        }
    }
}

fn from_gguf(metadata: &Metadata) -> Result<Texts> {
    let name = metadata.string("tokenizer.ggml.model")?;
    let kind = VocabKind::from_gguf(name).ok_or_else(|| Error::Unsupported {
        path: metadata.path().to_owned(),
        what: "tokenizer.ggml.model".to_owned(),
        found: name.to_owned(),
        supported: VocabKind::supported().to_owned(),
    })?;
    let types = metadata
        .opt_i32s("tokenizer.ggml.token_type")?
        .unwrap_or(&[]);
    let token_types = types
        .iter()
        .enumerate()
        .map(|(i, &number)| {
            let wrong = || {
                Error::field(
                    metadata.path(),
                    format!("tokenizer.ggml.token_type[{i}]"),
                    format!("is {number}"),
                )
            };
            TokenType::from_gguf(number).ok_or_else(wrong)
        })
        .collect::<Result<_>>()?;
    let by_merges = kind == VocabKind::ByteLevel;
    let vocab = Vocab {
        kind,
        tokens: metadata.strings("tokenizer.ggml.tokens")?.to_vec(),
        token_types,
        merges: if by_merges {
            metadata.strings("tokenizer.ggml.merges")?.to_vec()
        } else {
            Vec::new()
        },
        scores: if by_merges {
            Vec::new()
        } else {
            metadata.f32s("tokenizer.ggml.scores")?.to_vec()
        },
        pre: metadata
            .opt_string("tokenizer.ggml.pre")?
            .unwrap_or("default")
            .to_owned(),
        bos: metadata.opt_u32("tokenizer.ggml.bos_token_id")?,
        eos: metadata.opt_u32("tokenizer.ggml.eos_token_id")?,
        eot: metadata.opt_u32("tokenizer.ggml.eot_token_id")?,
        eom: metadata.opt_u32("tokenizer.ggml.eom_token_id")?,
        control_takes_blanks: metadata.opt_string("general.architecture")? == Some("phi3"),
        unknown: metadata.opt_u32("tokenizer.ggml.unknown_token_id")?,
        add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?,
        // what SentencePiece does unless a model says otherwise
        add_space_prefix: metadata
            .opt_bool("tokenizer.ggml.add_space_prefix")?
            .unwrap_or(true),
        remove_extra_whitespaces: metadata
            .opt_bool("tokenizer.ggml.remove_extra_whitespaces")?
            .unwrap_or(false),
        charsmap: charsmap(metadata)?,
    };
    let turn_ends: Vec<u32> = vocab.eot.into_iter().chain(vocab.eom).collect();
    let tokenizer = Tokenizer::from_vocab(vocab, metadata.path())?;
    let templates = gguf_templates(metadata)?;
    Ok(Texts::new(tokenizer, &templates, turn_ends))
}

fn gguf_templates(metadata: &Metadata) -> Result<TemplateSources> {
    let source = |key: &str| Ok::<_, Error>(metadata.opt_string(key)?.map(str::to_owned));
    Ok(TemplateSources {
        usual: source("tokenizer.chat_template")?,
        with_tools: source(&format!("tokenizer.chat_template.{TOOL_TEMPLATE}"))?,
    })
}

/// The bytes of an array that files hold as signed or unsigned ones.
fn charsmap(metadata: &Metadata) -> Result<Vec<u8>> {
    let key = "tokenizer.ggml.precompiled_charsmap";
    let numbers = metadata.opt_i32s(key)?.unwrap_or(&[]);
    let byte = |(i, &number): (usize, &i32)| match number {
        -128..=255 => Ok((number & 0xFF) as u8),
        _ => Err(Error::field(
            metadata.path(),
            format!("{key}[{i}]"),
            format!("is {number}, expected a byte"),
        )),
    };
    numbers.iter().enumerate().map(byte).collect()
}

fn from_dir(dir: &HfDir) -> Result<Texts> {
    let path = dir.dir.join("tokenizer.json");
    let tokenizer_config = dir.read_json("tokenizer_config.json")?;
    let tokenizer = match dir.read_text("tokenizer.json")? {
        Some(json) => Tokenizer::from_json(json.as_bytes(), tokenizer_config.as_ref(), &path)?,
        None => {
            let vocabulary = dir.dir.join(VOCABULARY_NAME);
            if !vocabulary.exists() {
                let problem = "is missing; a tokenizer in another form is not read";
                return Err(Error::file(&path, problem));
            }
            from_gguf(&Gguf::open(&vocabulary)?.metadata)?.tokenizer
        }
    };
    let mut ends = end_ids(&dir.config_path, &dir.config)?;
    let mut sampling = SamplingDefaults::default();
    if let Some(generation) = dir.read_json("generation_config.json")? {
        let path = dir.dir.join("generation_config.json");
        ends.extend(end_ids(&path, &generation)?);
        sampling = SamplingDefaults::read(&path, &generation);
    }
    let templates = dir_templates(dir, tokenizer_config.as_ref())?;
    Ok(Texts {
        sampling,
        ..Texts::new(tokenizer, &templates, ends)
    })
}

/// The templates in files of their own, else those of the tokenizer's configuration.
fn dir_templates(dir: &HfDir, tokenizer_config: Option<&Value>) -> Result<TemplateSources> {
    let files = TemplateSources {
        usual: dir.read_text("chat_template.jinja")?,
        with_tools: dir.read_template(TOOL_TEMPLATE)?,
    };
    if files.usual.is_some() {
        // then the configuration's are those of another time
        return Ok(files);
    }
    let configured = |name| tokenizer_config.and_then(|config| template_of(config, name));
    Ok(TemplateSources {
        usual: configured("default"),
        with_tools: files.with_tools.or_else(|| configured(TOOL_TEMPLATE)),
    })
}

/// `eos_token_id`: an id or a list of them.
fn end_ids(path: &Path, json: &Value) -> Result<Vec<u32>> {
    let fields = Fields::new(path, json);
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| fields.wrong("eos_token_id", format!("{value} is no token id")))
    };
    match fields.get("eos_token_id") {
        None => Ok(Vec::new()),
        Some(Value::Array(ids)) => ids.iter().map(id).collect(),
        Some(one) => Ok(vec![id(one)?]),
    }
}

/// The `chat_template` of a tokenizer_config.json: a text, which is the default one, or several by name.
fn template_of(tokenizer_config: &Value, name: &str) -> Option<String> {
    match tokenizer_config.get("chat_template")? {
        Value::String(text) if name == "default" => Some(text.clone()),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry["name"] == name)
            .and_then(|entry| entry["template"].as_str())
            .map(str::to_owned),
        _ => None,
    }
}
