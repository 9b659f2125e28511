//! What is written where.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::pieces::{Part, Planned, Turn};
use super::{Layout, Target, keys, settings};
use crate::error::{Error, Result};
use crate::formats::stream::{Entry, gguf_header, safetensors_header};
use crate::formats::{Checkpoint, ModelFiles, TensorInfo, hf};
use crate::model::config::Biases;
use crate::model::rope::{Rope, RopeScaling};
use crate::model::tensors::{Names, Role, TensorMap};
use crate::model::{Config, Family, Texts, family};

/// Bytes of tensors in one safetensors file where nothing else is asked for.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// The tensor that a GGUF file keeps the scaling of Llama 3.1 in.
const FREQUENCIES: &str = "rope_freqs.weight";

/// A model's files as others, planned to the byte.
pub struct Conversion<'a> {
    pub(super) files: &'a ModelFiles,
    pub(super) tensors: Vec<Planned>,
    pub(super) output: Output,
}

/// The files that are written.
pub(super) enum Output {
    Directory {
        /// For each file its name, its header, and how many of the tensors are in it.
        shards: Vec<(String, Vec<u8>, usize)>,
        /// Written before the weights, by name.
        texts: Vec<(String, Vec<u8>)>,
        /// Copied before the weights, to these names.
        copied: Vec<(PathBuf, String)>,
        /// Written last: what has none is no model.
        config: Vec<u8>,
    },
    Gguf {
        header: Vec<u8>,
        alignment: u64,
    },
}

impl<'a> Conversion<'a> {
    /// Plans `target` in `layout` from `files`, with at most `shard_bytes` of tensors in a safetensors file
    /// where one tensor is not larger.
    ///
    /// # Errors
    /// [`Error::Request`] for a target that the layout cannot hold; [`Error::Tensor`] for a matrix that is
    /// no whole number of groups; [`Error::Unsupported`] for a setting or tokenizer that the layout cannot
    /// tell, and for another layout of a family that is not converted; whatever loading the model would
    /// report.
    pub fn plan(
        files: &'a ModelFiles,
        target: Target,
        layout: Layout,
        shard_bytes: u64,
    ) -> Result<Conversion<'a>> {
        check_pair(target, layout)?;
        let family = family(files)?;
        let config = (family.config)(files)?;
        let texts = Texts::load(files)?;
        let from = (family.names)(files);
        // every tensor is there, and of the shape that the configuration tells
        let map = TensorMap::new(&config, &from, files.checkpoint())?;
        let (checkpoint, rule) = (files.checkpoint(), (target, layout));
        let is_same = layout == layout_of(files);
        let mut tensors = match is_same {
            true => same_tensors(&map, &from, rule)?,
            false => {
                let to = other_names(files, family, &config, layout)?;
                model_tensors(&config, (&from, &to), checkpoint, rule)?
            }
        };
        let output = match layout {
            Layout::Directory => directory(files, &config, &texts, target, &tensors, shard_bytes)?,
            Layout::Gguf => {
                let factors = frequency_factors(&config).filter(|_| !is_same);
                if let Some(factors) = factors {
                    let name = FREQUENCIES.to_owned();
                    tensors.push(Planned::values(name, factors));
                }
                let keys = keys::keys(files, &config, &texts, target)?;
                let entries: Vec<Entry> = tensors.iter().flat_map(Planned::entries).collect();
                let (header, alignment) = gguf_header(keys, &entries);
                Output::Gguf { header, alignment }
            }
        };
        Ok(Conversion {
            files,
            tensors,
            output,
        })
    }

    /// Bytes of all files that are written, those that are copied included.
    pub fn bytes(&self) -> u64 {
        let tensors = self.tensors.iter().flat_map(Planned::entries);
        let own: u64 = match &self.output {
            Output::Directory {
                shards,
                texts,
                copied,
                config,
            } => {
                let headers = shards.iter().map(|(_, header, _)| header.len());
                let texts = texts.iter().map(|(_, bytes)| bytes.len());
                let written: usize = headers.chain(texts).chain([config.len()]).sum();
                let copied = copied
                    .iter()
                    .map(|(path, _)| path.metadata().map_or(0, |m| m.len()));
                written as u64 + copied.sum::<u64>()
            }
            Output::Gguf { header, .. } => header.len() as u64,
        };
        let alignment = match self.output {
            Output::Directory { .. } => 1,
            Output::Gguf { alignment, .. } => alignment,
        };
        own + tensors
            .map(|entry| entry.bytes().next_multiple_of(alignment))
            .sum::<u64>()
    }

    /// Bytes of tensors before and after.
    pub fn tensor_bytes(&self) -> (u64, u64) {
        let before = self.tensors.iter().map(Planned::bytes_before).sum();
        let after = self.tensors.iter().flat_map(Planned::entries);
        (before, after.map(|entry| entry.bytes()).sum())
    }
}

fn check_pair(target: Target, layout: Layout) -> Result<()> {
    let problem = match (target, layout) {
        (Target::Int8 { .. }, Layout::Gguf) => "is for directories; a GGUF file holds q8_0 or f16",
        (Target::Q8_0, Layout::Directory) => {
            "is for GGUF files; a directory holds int8-channel, int8-group or f16"
        }
        _ => return Ok(()),
    };
    Err(Error::request(target.name(), problem))
}

fn layout_of(files: &ModelFiles) -> Layout {
    match files {
        ModelFiles::HuggingFace(_) => Layout::Directory,
        ModelFiles::Gguf(_) => Layout::Gguf,
    }
}

/// The names in the other layout, of a model that can be written in it.
fn other_names(
    files: &ModelFiles,
    family: &Family,
    config: &Config,
    layout: Layout,
) -> Result<Names> {
    let (what, found) = match (family.layouts, config.biases == Biases::default()) {
        (Some((directory, _)), true) if layout == Layout::Directory => return Ok(directory),
        (Some((_, gguf)), true) => return Ok(gguf),
        (Some(_), false) => ("biases, in another layout,", "of attention or MLP"),
        (None, _) => ("another layout of a", config.architecture.as_str()),
    };
    Err(Error::Unsupported {
        path: files.checkpoint().path().to_owned(),
        what: what.to_owned(),
        found: found.to_owned(),
        supported: "the layout that the model has; either one for Llama".to_owned(),
    })
}

/// Every tensor of the model, and those that are settings, under the names they have and in their order.
fn same_tensors(map: &TensorMap, names: &Names, rule: (Target, Layout)) -> Result<Vec<Planned>> {
    let checkpoint = map.checkpoint;
    if let (Target::Int8 { .. }, true) = (rule.0, names.transposed) {
        let problem = "is for matrices that are stored row by row; this model's are transposed";
        return Err(Error::request(rule.0.name(), problem));
    }
    let is_setting = |name: &str| names.settings.iter().any(|ending| name.ends_with(ending));
    let settings = checkpoint.tensors().filter(|info| is_setting(&info.name));
    let settings = settings.map(|info| (info, Role::Vector));
    let plan = |(info, role): (&TensorInfo, Role)| {
        let part = match role {
            Role::Table => Part::Table,
            Role::Vector => Part::Norm,
            Role::Matrix => Part::Linear,
        };
        let (name, path) = (info.name.clone(), checkpoint.file_of(info));
        Planned::new(name, info.clone(), Turn::None, part, rule, path)
    };
    map.sources()
        .into_iter()
        .chain(settings)
        .map(plan)
        .collect()
}

/// Every tensor of the model under its new name.
fn model_tensors(
    config: &Config,
    (from, to): (&Names, &Names),
    checkpoint: &Checkpoint,
    rule: (Target, Layout),
) -> Result<Vec<Planned>> {
    let rotated = match (from.pairs_adjacent, to.pairs_adjacent) {
        (true, false) => Turn::ToHalves(config.head_dim),
        (false, true) => Turn::ToPairs(config.head_dim),
        _ => Turn::None,
    };
    let find = |name: &str| checkpoint.require(name).cloned();
    let mut tensors = Vec::new();
    let mut add = |from: &str, to: &str, turn: Turn, part: Part| -> Result<()> {
        let info = find(from)?;
        let path = checkpoint.file_of(&info);
        tensors.push(Planned::new(
            to.to_owned(),
            info.clone(),
            turn,
            part,
            rule,
            path,
        )?);
        Ok(())
    };
    add(&from.embedding(), &to.embedding(), Turn::None, Part::Table)?;
    let (a, b) = (&from.layer, &to.layer);
    let from_in = |index, name| from.in_layer(index, name);
    let to_in = |index, name| to.in_layer(index, name);
    for index in 0..config.num_layers {
        for (from, to, turn, part) in [
            (a.attn_norm, b.attn_norm, Turn::None, Part::Norm),
            (a.qkv[0], b.qkv[0], rotated, Part::Linear),
            (a.qkv[1], b.qkv[1], rotated, Part::Linear),
            (a.qkv[2], b.qkv[2], Turn::None, Part::Linear),
            (a.o, b.o, Turn::None, Part::Linear),
            (a.mlp_norm, b.mlp_norm, Turn::None, Part::Norm),
            (a.gate_up[0], b.gate_up[0], Turn::None, Part::Linear),
            (a.gate_up[1], b.gate_up[1], Turn::None, Part::Linear),
            (a.down, b.down, Turn::None, Part::Linear),
        ] {
            let (from, to) = (from_in(index, from), to_in(index, to));
            add(&from, &to, turn, part)?;
        }
    }
    add(&from.final_norm(), &to.final_norm(), Turn::None, Part::Norm)?;
    if !config.tied_head {
        add(from.head, to.head, Turn::None, Part::Table)?;
    }
    Ok(tensors)
}

fn directory(
    files: &ModelFiles,
    config: &Config,
    texts: &Texts,
    target: Target,
    tensors: &[Planned],
    shard_bytes: u64,
) -> Result<Output> {
    let mut shards: Vec<(Vec<Entry>, u64, usize)> = vec![(Vec::new(), 0, 0)];
    for tensor in tensors {
        let entries = tensor.entries();
        let bytes: u64 = entries.iter().map(Entry::bytes).sum();
        let (there, sum, _) = shards.last().expect("there is one");
        if !there.is_empty() && sum + bytes > shard_bytes {
            shards.push((Vec::new(), 0, 0));
        }
        let (there, sum, count) = shards.last_mut().expect("there is one");
        there.extend(entries);
        *sum += bytes;
        *count += 1;
    }
    let mut side = settings::side_files(files, texts)?;
    let names = shard_names(shards.len());
    if shards.len() > 1 {
        side.written
            .push((hf::INDEX_NAME.to_owned(), index(&names, &shards)));
    }
    let shards = names
        .into_iter()
        .zip(shards)
        .map(|(name, (entries, _, count))| (name, safetensors_header(&entries), count));
    Ok(Output::Directory {
        shards: shards.collect(),
        texts: side.written,
        copied: side.copied,
        config: settings::config_json(files, config, texts, target)?,
    })
}

fn shard_names(count: usize) -> Vec<String> {
    match count {
        1 => vec![hf::WEIGHTS_NAME.to_owned()],
        _ => (1..=count)
            .map(|i| format!("model-{i:05}-of-{count:05}.safetensors"))
            .collect(),
    }
}

/// Which file holds which tensor.
fn index(names: &[String], shards: &[(Vec<Entry>, u64, usize)]) -> Vec<u8> {
    let total: u64 = shards.iter().map(|(_, bytes, _)| bytes).sum();
    let of_file = |(name, (entries, _, _)): (&String, &(Vec<Entry>, u64, usize))| {
        let pairs = entries
            .iter()
            .map(|entry| (entry.name.clone(), json!(name)));
        pairs.collect::<Vec<_>>()
    };
    let map: Map<String, Value> = names.iter().zip(shards).flat_map(of_file).collect();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    settings::pretty(&index)
}

/// What each frequency is divided by, where that is more than one factor for all.
fn frequency_factors(config: &Config) -> Option<Vec<f32>> {
    match &config.ropes[0].scaling {
        // the last is refused before
        RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Long { .. } => None,
        RopeScaling::Factors(factors) => Some(factors.clone()),
        RopeScaling::Llama3 { .. } => {
            let plain = Rope {
                scaling: RopeScaling::None,
                ..config.ropes[0].clone()
            };
            let scaled = config.ropes[0].frequencies(config.head_dim);
            let plain = plain.frequencies(config.head_dim);
            let factors = plain
                .iter()
                .zip(scaled)
                .map(|(plain, scaled)| (plain / scaled) as f32);
            Some(factors.collect())
        }
    }
}
