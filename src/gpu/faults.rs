//! Faults planted in shaders: what a driver that compiles a kernel wrongly would look like, for tests
//! of whatever should notice. Only builds with the feature `faults` hold them; the package's own tests
//! are such builds, programs for users are not.
//!
//! `NELUMBO_FAULT=name,name`, or [`OpenOptions::faults`](super::OpenOptions), plants them for one
//! device: the text of a part is changed when a variant is composed for it. The CPU twins know nothing
//! of it, nor does any other device of the process. What is kept between runs is kept under another
//! key.

use super::cache_file::fnv1a;
use super::kernel::Part;
use crate::error::{Error, Result};
use std::borrow::Cow;

/// A change of one part. Every place of the text is changed.
#[derive(Debug)]
pub struct Edit {
    /// The part, by its path under `shaders/`.
    pub part: &'static str,
    /// What stands there.
    pub find: &'static str,
    /// What is put in its place; of as many lines.
    pub put: &'static str,
}

/// A fault: where a kernel has several forms, an edit for each, so that it holds whatever is chosen.
#[derive(Debug)]
pub struct ShaderFault {
    /// The word of `NELUMBO_FAULT`.
    pub name: &'static str,
    /// The kernels that it strikes, in the order in which a step meets them.
    pub kernels: &'static [&'static str],
    /// What is done to the text.
    pub edits: &'static [Edit],
    /// When a run shows it.
    pub shows: &'static str,
}

/// A row of the table with one edit, or with several.
macro_rules! fault {
    ($name:literal, $kernels:expr, $shows:literal, $(($part:literal, $find:literal => $put:literal)),+ $(,)?) => {
        ShaderFault {
            name: $name,
            kernels: &$kernels,
            edits: &[$(Edit { part: $part, find: $find, put: $put }),+],
            shows: $shows,
        }
    };
}

/// Every fault that can be planted.
pub static FAULTS: &[ShaderFault] = &[
    fault!("embedding-row", ["embedding"], "always: each row is its neighbour's",
        ("embedding.wgsl", "let r = row % 4u;" => "let r = (row + 1u) % 4u;")),
    fault!("quant-scale", ["embedding", "matmul"], "always, with q8 weights: scales are missing",
        ("quant/q8_values.wgsl", "return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));"
            => "return vec4<f32>(1.0);")),
    fault!("quant-wide", ["embedding", "matmul"], "with q8 weights in wide loads: two words are exchanged",
        ("quant/q8_wide.wgsl", "u32(b), u32(b >> 32u)" => "u32(b >> 32u), u32(b)")),
    fault!("dropped-tail", ["matmul"], "always: the last groups of each row are left out",
        ("matmul/dot_float.wgsl", "let turns = (params.num_groups + LANES - 1u) / LANES;"
            => "let turns = max((params.num_groups + LANES - 1u) / LANES, 2u) - 1u;"),
        ("matmul/dot_int.wgsl", "let turns = (params.num_groups + LANES - 1u) / LANES;"
            => "let turns = max((params.num_groups + LANES - 1u) / LANES, 2u) - 1u;")),
    fault!("lane-join", ["matmul"], "with more than one lane to a row: half of the lanes are left out",
        ("lib/lanes.wgsl", "distance < LANES;" => "distance < LANES / 2u;"),
        ("lib/lanes_subgroup.wgsl", "distance < LANES;" => "distance < LANES / 2u;")),
    fault!("share-x", ["matmul"], "where eight neighbours share loads: one is heard twice",
        ("matmul/x_float_share.wgsl", "subgroupBroadcast(held, 7u)" => "subgroupBroadcast(held, 6u)"),
        ("matmul/x_int_share.wgsl", "case 1u: { return subgroupBroadcast(value, 1u); }"
            => "case 1u: { return subgroupBroadcast(value, 0u); }")),
    fault!("norm-mean", ["matmul"], "always: the mean of squares is their sum",
        ("matmul/norm_rms.wgsl", "total / params.norm_columns" => "total"),
        ("matmul/norm_rms_share.wgsl", "total / params.norm_columns" => "total")),
    fault!("rope-position", ["matmul"], "in steps of several tokens, with a cache in one slab: a token has its predecessor's angles",
        ("matmul/out_qkv.wgsl", "params.rope_at + token * params.head_dim"
            => "params.rope_at + (max(token, 1u) - 1u) * params.head_dim")),
    fault!("rope-sincos", ["matmul", "rope"], "always: cosine and sine are exchanged",
        ("lib/rope.wgsl", "let low = fma(value.xz, angles.xz, -(value.yw * angles.yw));"
            => "let low = fma(value.xz, angles.yw, -(value.yw * angles.xz));")),
    fault!("kv-slot", ["matmul"], "with a cache in one slab: keys and values go to the next place of the page",
        ("matmul/out_qkv.wgsl", "slot % 16u) * params.head_dim" => "(slot + 1u) % 16u) * params.head_dim")),
    fault!("gate-exchanged", ["matmul"], "always: gate and up are exchanged",
        ("matmul/value_swiglu.wgsl", "return gate / (vec4<f32>(1.0) + exp(-gate)) * up;"
            => "return up / (vec4<f32>(1.0) + exp(-up)) * gate;")),
    fault!("gate-sigmoid", ["matmul"], "always: the gate has no sigmoid",
        ("matmul/value_swiglu.wgsl", "return gate / (vec4<f32>(1.0) + exp(-gate)) * up;"
            => "return gate * up;")),
    fault!("residual-lost", ["matmul"], "always: the residual stream is not added",
        ("matmul/out_residual.wgsl", "let next = fma(value, vec4<f32>(params.scale), hidden[at]);" => "let next = value * params.scale;")),
    fault!("act-squares", ["embedding", "matmul", "rope", "add_norm", "layer_norm"], "always: of a record's sum of squares an eighth is missing",
        ("act/record.wgsl", "(s[6].x + s[7].x)" => "s[6].x")),
    fault!("act-round", ["embedding", "matmul", "attention", "attention_merge", "add_norm", "layer_norm"], "with q8 activations: they are cut off instead of rounded",
        ("act/q8_store.wgsl", "round(clamp(" => "trunc(clamp(")),
    fault!("act-scale", ["embedding", "matmul", "attention", "attention_merge", "add_norm", "layer_norm"], "with q8 activations: values come out too small",
        ("act/q8_store.wgsl", "bitcast<u32>(scale)" => "bitcast<u32>(scale * 0.9)")),
    fault!("team-heard", ["embedding", "matmul", "attention", "attention_merge", "add_norm", "layer_norm"], "where teams are subgroups: the last member is not heard",
        ("lib/team_subgroup.wgsl", "subgroupBroadcast(value, 7u)" => "subgroupBroadcast(value, 6u)"),
        ("lib/team_subgroup.wgsl", "subgroupBroadcast(kept, 7u)" => "subgroupBroadcast(kept, 6u)")),
    fault!("rope-slab", ["rope"], "with a cache in several slabs: keys and values go to the next place of the page",
        ("rope.wgsl", "* 16u + slot % 16u," => "* 16u + (slot + 1u) % 16u,")),
    fault!("qk-norm-mean", ["rope"], "where queries and keys are normalised: the mean of squares is their sum",
        ("rope/norm_head.wgsl", "total / f32(params.head_dim)" => "total"),
        ("rope/norm_whole.wgsl", "total / f32(heads * params.head_dim)" => "total")),
    fault!("qk-norm-weight", ["rope"], "where queries and keys are normalised: keys have the weights of queries",
        ("rope/norm_head.wgsl", "k_weight[quad])" => "q_weight[quad])"),
        ("rope/norm_whole.wgsl", "k_weight[at_k])" => "q_weight[at_k])")),
    fault!("row-join", ["rope", "add_norm", "layer_norm"], "where 64 invocations share a row, with queries and keys that are normalised whole, with norms after, or with layer norms: one team of eight is left out",
        ("lib/row_64.wgsl", "(row_teams[6] + row_teams[7])" => "row_teams[6]")),
    fault!("add-norm-lost", ["add_norm"], "with norms after attention and MLP: the residual stream is not added",
        ("add_norm.wgsl", "fma(y[at + quad] * factor, weight[quad], hidden[at + quad])"
            => "y[at + quad] * factor * weight[quad]")),
    fault!("add-norm-slice", ["add_norm"], "with norms after attention and MLP: the mean of squares is that of columns from the second turn on",
        ("add_norm.wgsl", "var quad = lane; quad < quads;" => "var quad = lane + WG; quad < quads;")),
    fault!("layer-norm-centre", ["layer_norm"], "with layer norms: the variance is not centred",
        ("layer_norm.wgsl", "let centred = hidden[at + quad] - mean;" => "let centred = hidden[at + quad];")),
    fault!("position-row", ["add_positions"], "with learned positions, from the second on: each is the one before",
        ("add_positions.wgsl", "table[position * quads" => "table[(max(position, 1u) - 1u) * quads")),
    fault!("logit-scale", ["finish_logits"], "where logits have a factor: they are divided by it",
        ("finish_logits.wgsl", "logits[at] * params.scale" => "logits[at] / params.scale")),
    fault!("logit-cap", ["finish_logits"], "where logits have a cap: they get near to it at twice the value",
        ("finish_logits/cap_tanh.wgsl", "exp(-2.0 * abs" => "exp(-1.0 * abs")),
    fault!("kv-order", ["attention"], "with an f16 cache: two pairs of dims of a value are exchanged",
        ("kv/f16.wgsl", "vec4<f32>(unpack2x16float(oct.z), unpack2x16float(oct.w))"
            => "vec4<f32>(unpack2x16float(oct.w), unpack2x16float(oct.z))")),
    fault!("attention-page", ["attention"], "from 17 tokens on: each page is the one before",
        ("lib/attention_items.wgsl", "step_meta[tile.table_at + page]"
            => "step_meta[tile.table_at + max(page, 1u) - 1u]")),
    fault!("attention-heads", ["attention"], "with several key heads: they are in reverse",
        ("lib/attention_items.wgsl", "+ tile.kv_head)" => "+ params.num_kv_heads - 1u - tile.kv_head)")),
    fault!("attention-mask", ["attention"], "always, but for the last token of a page: a token sees the next one",
        ("attention.wgsl", "attention_rows(tile, 0u) / group;" => "attention_rows(tile, 0u) / group + 1u;"),
        ("attention.wgsl", "attention_rows(tile, ATTENTION_FOUR) / group;"
            => "attention_rows(tile, ATTENTION_FOUR) / group + 1u;")),
    fault!("attention-scale", ["attention"], "always: scores are not scaled",
        ("attention.wgsl", "* params.scale_log2e" => "* 1.442695")),
    fault!("softmax-fold", ["attention", "attention_merge"], "from 257 tokens on: what earlier splits hold is not rescaled",
        ("lib/softmax.wgsl", "let keep = softmax_rescale(m, top);" => "let keep = 1.0;")),
    fault!("merge-split", ["attention_merge"], "from 257 tokens on, where splits are merged apart (one key head, or an adapter that wants many teams): the last is left out",
        ("attention_merge.wgsl", "split < num_splits;" => "split + 1u < num_splits;")),
    fault!("pack-tail", ["pack"], "where dims of a head are no multiple of 32: the last four columns are left out",
        ("pack.wgsl", "live && quad < quads)" => "live && quad + 1u < quads)")),
    fault!("gather-row", ["gather_rows"], "in steps of several tokens: logits are those of the token before",
        ("gather_rows.wgsl", "let source = rows[params.rows_at + r];"
            => "let source = max(rows[params.rows_at + r], 1u) - 1u;")),
    fault!("penalties-turned", ["penalties"], "with a repeat penalty: it rewards",
        ("penalties.wgsl", "select(logit * repeat, logit / repeat, logit > 0.0)"
            => "select(logit / repeat, logit * repeat, logit > 0.0)")),
    fault!("argmax-lanes", ["argmax"], "at temperature 0: half of the lanes are left out",
        ("argmax.wgsl", "var distance = ARGMAX_WG / 2u;" => "var distance = ARGMAX_WG / 4u;")),
    fault!("sample-temperature", ["sample"], "at temperatures other than 0 and 1: it is 1",
        ("sample.wgsl", "1.0 / max(temperature, 1e-5)" => "1.0 / max(min(temperature, 1.0), 1.0)")),
    fault!("sample-position", ["sample"], "at temperatures above 0: draws are those of the next position",
        ("sample.wgsl", "rows[row + 6u]);" => "rows[row + 6u] + 1u);")),
];

/// The faults of these names.
///
/// # Errors
/// [`Error::Request`] with the first name that is none, and those there are.
pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<&'static ShaderFault>> {
    let find = |name: &str| {
        FAULTS.iter().find(|f| f.name == name).ok_or_else(|| {
            let known: Vec<&str> = FAULTS.iter().map(|f| f.name).collect();
            let problem = format!("\"{name}\" is no fault (there are {})", known.join(", "));
            Error::request("NELUMBO_FAULT", problem)
        })
    };
    let names = names.into_iter().map(str::trim).filter(|n| !n.is_empty());
    names.map(find).collect()
}

/// The faults that `NELUMBO_FAULT` names.
///
/// # Errors
/// As [`named`].
pub fn from_env() -> Result<Vec<&'static ShaderFault>> {
    match std::env::var("NELUMBO_FAULT") {
        Ok(names) => named(names.split(',')),
        Err(_) => Ok(Vec::new()),
    }
}

/// The text of `part` with these faults in it.
pub fn source(faults: &[&ShaderFault], part: &Part) -> Cow<'static, str> {
    let edits = faults.iter().flat_map(|fault| fault.edits);
    let own = edits.filter(|edit| edit.part == part.name);
    own.fold(Cow::Borrowed(part.source), |text, edit| {
        assert!(
            text.contains(edit.find),
            "{}: no {:?}",
            part.name,
            edit.find
        );
        Cow::Owned(text.replace(edit.find, edit.put))
    })
}

/// `key` of the sources without faults, or another one with these.
pub fn key(key: u64, faults: &[&ShaderFault]) -> u64 {
    if faults.is_empty() {
        return key;
    }
    let texts = faults
        .iter()
        .flat_map(|fault| fault.edits)
        .flat_map(|edit| [edit.find, edit.put]);
    let own = key.to_le_bytes();
    fnv1a([&own[..]].into_iter().chain(texts.map(str::as_bytes)))
}
