//! The names that most families give their tensors.

use crate::formats::ModelFiles;
use crate::model::tensors::{LayerNames, Names};

/// In directories: as transformers has them.
pub(super) const DIRECTORY: Names = Names {
    prefix: "model.",
    embedding: "embed_tokens.weight",
    positions: "",
    final_norm: "norm.weight",
    head: "lm_head.weight",
    layer: LayerNames {
        prefix: "layers.",
        attn_norm: "input_layernorm.weight",
        qkv: &[
            "self_attn.q_proj.weight",
            "self_attn.k_proj.weight",
            "self_attn.v_proj.weight",
        ],
        q_norm: "self_attn.q_norm.weight",
        k_norm: "self_attn.k_norm.weight",
        o: "self_attn.o_proj.weight",
        attn_norm_after: "",
        mlp_norm: "post_attention_layernorm.weight",
        gate_up: &["mlp.gate_proj.weight", "mlp.up_proj.weight"],
        down: "mlp.down_proj.weight",
        mlp_norm_after: "",
    },
    settings: &[],
    ignored: &["rotary_emb.inv_freq"],
    pairs_adjacent: false,
    transposed: false,
    norm_plus: 0.0,
};

/// In GGUF files.
pub(super) const GGUF: Names = Names {
    prefix: "",
    embedding: "token_embd.weight",
    positions: "position_embd.weight",
    final_norm: "output_norm.weight",
    head: "output.weight",
    layer: LayerNames {
        prefix: "blk.",
        attn_norm: "attn_norm.weight",
        qkv: &["attn_q.weight", "attn_k.weight", "attn_v.weight"],
        q_norm: "attn_q_norm.weight",
        k_norm: "attn_k_norm.weight",
        o: "attn_output.weight",
        attn_norm_after: "post_attention_norm.weight",
        mlp_norm: "ffn_norm.weight",
        gate_up: &["ffn_gate.weight", "ffn_up.weight"],
        down: "ffn_down.weight",
        mlp_norm_after: "post_ffw_norm.weight",
    },
    settings: &[
        "rope_freqs.weight",
        "rope_factors_long.weight",
        "rope_factors_short.weight",
    ],
    ignored: &[],
    pairs_adjacent: false,
    transposed: false,
    norm_plus: 0.0,
};

/// In GGUF files of those families whose rows are stored with rotated pairs side by side.
pub(super) const GGUF_PAIRS: Names = Names {
    pairs_adjacent: true,
    ..GGUF
};

/// Those of the layout at hand.
pub(super) fn in_files(files: &ModelFiles, directory: Names, gguf: Names) -> Names {
    match files {
        ModelFiles::HuggingFace(_) => directory,
        ModelFiles::Gguf(_) => gguf,
    }
}

/// The same with the one of `prefixes` that the embedding has in a directory.
pub(super) fn with_prefix(
    files: &ModelFiles,
    prefixes: &[&'static str],
    directory: Names,
    gguf: Names,
) -> Names {
    let names = in_files(files, directory, gguf);
    let ModelFiles::HuggingFace(dir) = files else {
        return names;
    };
    let with = |&prefix: &&'static str| Names { prefix, ..names };
    let mut all = prefixes.iter().map(with);
    let found = all.find(|names| dir.checkpoint.get(&names.embedding()).is_some());
    found.unwrap_or(names)
}
