//! Shapes of published models, to plan with where there are no files: sizes as their authors tell them.

use super::config::{Config, LayerKind, QkNorm};
use super::fields::Fields;
use super::{FAMILIES, synthetic};
use crate::error::{Error, Result};
use crate::formats::hf;
use std::path::Path;

/// No dimension of a model is larger; a bound for sizes computed from a file.
const MAX: usize = 1 << 20;

/// A published model.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// The word of `nelumbo plan`.
    pub name: &'static str,
    /// As its config.json calls it.
    pub architecture: &'static str,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocab: usize,
    tied: bool,
    context: usize,
    /// All parameters, as published.
    pub params: u64,
}

const LLAMA: &str = "LlamaForCausalLM";
const MISTRAL: &str = "MistralForCausalLM";
const QWEN2: &str = "Qwen2ForCausalLM";
const QWEN3: &str = "Qwen3ForCausalLM";
const GEMMA2: &str = "Gemma2ForCausalLM";
/// The same of texts alone.
const GEMMA3: &str = "Gemma3ForCausalLM";
/// Tokens that these see in some of their layers, where no file tells.
const GEMMA_WINDOW: usize = 4096;
const PHI3: &str = "Phi3ForCausalLM";

/// A row of the table.
macro_rules! shape {
    ($name:literal $arch:ident, $layers:literal x $hidden:literal, heads $heads:literal / $kv:literal x
     $dim:literal, mlp $mlp:literal, vocab $vocab:literal $tied:ident, ctx $ctx:literal, params $params:literal) => {
        BuiltIn {
            name: $name,
            architecture: $arch,
            layers: $layers,
            hidden: $hidden,
            heads: $heads,
            kv_heads: $kv,
            head_dim: $dim,
            intermediate: $mlp,
            vocab: $vocab,
            tied: shape!(@ $tied),
            context: $ctx,
            params: $params,
        }
    };
    (@ tied) => { true };
    (@ own) => { false };
}

/// The table. `tied`: the embedding is the head.
#[rustfmt::skip]
pub static BUILT_IN: &[BuiltIn] = &[
    shape!("llama-3.1-8b" LLAMA, 32 x 4096, heads 32/8 x 128, mlp 14336, vocab 128256 own, ctx 131072, params 8_030_261_248),
    shape!("llama-3.1-70b" LLAMA, 80 x 8192, heads 64/8 x 128, mlp 28672, vocab 128256 own, ctx 131072, params 70_553_706_496),
    shape!("llama-3.1-405b" LLAMA, 126 x 16384, heads 128/8 x 128, mlp 53248, vocab 128256 own, ctx 131072, params 405_853_388_800),
    shape!("llama-3.2-1b" LLAMA, 16 x 2048, heads 32/8 x 64, mlp 8192, vocab 128256 tied, ctx 131072, params 1_235_814_400),
    shape!("llama-3.2-3b" LLAMA, 28 x 3072, heads 24/8 x 128, mlp 8192, vocab 128256 tied, ctx 131072, params 3_212_749_824),
    shape!("llama-2-7b" LLAMA, 32 x 4096, heads 32/32 x 128, mlp 11008, vocab 32000 own, ctx 4096, params 6_738_415_616),
    shape!("llama-2-13b" LLAMA, 40 x 5120, heads 40/40 x 128, mlp 13824, vocab 32000 own, ctx 4096, params 13_015_864_320),
    shape!("llama-2-70b" LLAMA, 80 x 8192, heads 64/8 x 128, mlp 28672, vocab 32000 own, ctx 4096, params 68_976_648_192),
    shape!("tinyllama-1.1b" LLAMA, 22 x 2048, heads 32/4 x 64, mlp 5632, vocab 32000 own, ctx 2048, params 1_100_048_384),
    shape!("smollm2-135m" LLAMA, 30 x 576, heads 9/3 x 64, mlp 1536, vocab 49152 tied, ctx 8192, params 134_515_008),
    shape!("smollm2-360m" LLAMA, 32 x 960, heads 15/5 x 64, mlp 2560, vocab 49152 tied, ctx 8192, params 361_821_120),
    shape!("smollm2-1.7b" LLAMA, 24 x 2048, heads 32/32 x 64, mlp 8192, vocab 49152 tied, ctx 8192, params 1_711_376_384),
    shape!("mistral-7b" MISTRAL, 32 x 4096, heads 32/8 x 128, mlp 14336, vocab 32768 own, ctx 32768, params 7_248_023_552),
    shape!("qwen2.5-0.5b" QWEN2, 24 x 896, heads 14/2 x 64, mlp 4864, vocab 151936 tied, ctx 32768, params 494_032_768),
    shape!("qwen2.5-1.5b" QWEN2, 28 x 1536, heads 12/2 x 128, mlp 8960, vocab 151936 tied, ctx 32768, params 1_543_714_304),
    shape!("qwen2.5-3b" QWEN2, 36 x 2048, heads 16/2 x 128, mlp 11008, vocab 151936 tied, ctx 32768, params 3_085_938_688),
    shape!("qwen2.5-7b" QWEN2, 28 x 3584, heads 28/4 x 128, mlp 18944, vocab 152064 own, ctx 32768, params 7_615_616_512),
    shape!("qwen2.5-14b" QWEN2, 48 x 5120, heads 40/8 x 128, mlp 13824, vocab 152064 own, ctx 32768, params 14_770_033_664),
    shape!("qwen2.5-32b" QWEN2, 64 x 5120, heads 40/8 x 128, mlp 27648, vocab 152064 own, ctx 32768, params 32_763_876_352),
    shape!("qwen2.5-72b" QWEN2, 80 x 8192, heads 64/8 x 128, mlp 29568, vocab 152064 own, ctx 32768, params 72_706_203_648),
    shape!("qwen3-0.6b" QWEN3, 28 x 1024, heads 16/8 x 128, mlp 3072, vocab 151936 tied, ctx 40960, params 596_049_920),
    shape!("qwen3-1.7b" QWEN3, 28 x 2048, heads 16/8 x 128, mlp 6144, vocab 151936 tied, ctx 40960, params 1_720_574_976),
    shape!("qwen3-4b" QWEN3, 36 x 2560, heads 32/8 x 128, mlp 9728, vocab 151936 tied, ctx 40960, params 4_022_468_096),
    shape!("qwen3-8b" QWEN3, 36 x 4096, heads 32/8 x 128, mlp 12288, vocab 151936 own, ctx 40960, params 8_190_735_360),
    shape!("qwen3-14b" QWEN3, 40 x 5120, heads 40/8 x 128, mlp 17408, vocab 151936 own, ctx 40960, params 14_768_307_200),
    shape!("qwen3-32b" QWEN3, 64 x 5120, heads 64/8 x 128, mlp 25600, vocab 151936 own, ctx 40960, params 32_762_123_264),
    shape!("gemma-2-2b" GEMMA2, 26 x 2304, heads 8/4 x 256, mlp 9216, vocab 256000 tied, ctx 8192, params 2_614_341_888),
    shape!("gemma-2-9b" GEMMA2, 42 x 3584, heads 16/8 x 256, mlp 14336, vocab 256000 tied, ctx 8192, params 9_241_705_984),
    shape!("gemma-2-27b" GEMMA2, 46 x 4608, heads 32/16 x 128, mlp 36864, vocab 256000 tied, ctx 8192, params 27_227_128_320),
    shape!("phi-3-mini" PHI3, 32 x 3072, heads 32/32 x 96, mlp 8192, vocab 32064 own, ctx 4096, params 3_821_079_552),
];

impl BuiltIn {
    /// The shape called `name`.
    pub fn find(name: &str) -> Option<&'static BuiltIn> {
        BUILT_IN.iter().find(|shape| shape.name == name)
    }

    /// Its sizes. What is no size is that of no model.
    pub fn config(&self) -> Config {
        with_vectors(Config {
            architecture: self.architecture.to_owned(),
            num_layers: self.layers,
            hidden_size: self.hidden,
            num_heads: self.heads,
            num_kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            intermediate_size: self.intermediate,
            vocab_size: self.vocab,
            max_position_embeddings: self.context,
            tied_head: self.tied,
            ..synthetic::tiny()
        })
    }
}

/// Sets what models of this architecture have beside matrices and two norms, as far as sizes go: biases of
/// queries, keys and values; norms of heads; norms after attention and MLP.
fn with_vectors(mut config: Config) -> Config {
    match config.architecture.as_str() {
        QWEN2 => config.biases.qkv = true,
        QWEN3 => config.qk_norm = Some(QkNorm::Head),
        GEMMA2 => {
            config.norm_places.after = true;
            set_windows(&mut config, Some(GEMMA_WINDOW), |layer| layer % 2 == 0);
        }
        _ => {}
    }
    config
}

/// Gives the layers that slide a window.
fn set_windows(config: &mut Config, window: Option<usize>, slides: impl Fn(usize) -> bool) {
    let kind = |layer: usize| LayerKind {
        window: window.filter(|_| slides(layer)),
        rope: 0,
    };
    config.layer_kinds = (0..config.num_layers).map(kind).collect();
}

/// The same by what a `config.json` tells, or its architecture where it does not.
fn with_windows(mut config: Config, json: &Fields) -> Result<Config> {
    let told = json.opt_count("sliding_window", 1 << 30)?;
    let usual = told.or(Some(GEMMA_WINDOW));
    if json.get("layer_types").is_some() {
        let kinds = json.strings("layer_types")?;
        let slides = |layer: usize| kinds.get(layer).is_some_and(|k| k == "sliding_attention");
        set_windows(&mut config, told, slides);
        return Ok(config);
    }
    match config.architecture.as_str() {
        MISTRAL => set_windows(&mut config, told, |_| true),
        GEMMA2 => set_windows(&mut config, usual, |layer| layer % 2 == 0),
        GEMMA3 => {
            let every = json.opt_count("sliding_window_pattern", 4096)?;
            let every = every.unwrap_or(6).max(1);
            set_windows(&mut config, usual, |layer| (layer + 1) % every != 0);
        }
        _ => {}
    }
    Ok(config)
}

/// Whether models of this architecture can be run here, not only planned with.
pub fn is_run(architecture: &str) -> bool {
    let names = |family: &super::Family| [family.hf_names, family.gguf_names].concat();
    FAMILIES
        .iter()
        .any(|family| names(family).contains(&architecture))
}

/// The sizes that a `config.json` tells, whatever the architecture: to plan with, not to run. The weights
/// need not be there.
///
/// # Errors
/// [`Error::ModelNotFound`] without such a file, [`Error::Field`] naming what is missing or wrong,
/// [`Error::Unsupported`] for models with experts, whose sizes these are not.
pub fn config_of_json(path: &Path) -> Result<Config> {
    let value = hf::read_config(path)?;
    let json = Fields::new(path, &value);
    for field in ["num_local_experts", "num_experts", "n_routed_experts"] {
        if let Some(experts) = json.get(field) {
            return Err(Error::Unsupported {
                path: path.to_owned(),
                what: field.to_owned(),
                found: super::fields::brief(experts),
                supported: "a model without experts".to_owned(),
            });
        }
    }
    let architecture = match json.strings("architectures")?.into_iter().next() {
        Some(name) => name,
        None => return Err(json.wrong("architectures", "is empty")),
    };
    let hidden_size = json.count("hidden_size", MAX)?;
    let num_heads = json.count("num_attention_heads", MAX)?;
    let head_dim = match json.opt_count("head_dim", MAX)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let problem =
                format!("is {num_heads}, which does not divide hidden_size = {hidden_size}");
            return Err(json.wrong("num_attention_heads", problem));
        }
    };
    let num_kv_heads = json.opt_count("num_key_value_heads", MAX)?;
    let num_kv_heads = num_kv_heads.unwrap_or(num_heads);
    if !num_heads.is_multiple_of(num_kv_heads) {
        let problem =
            format!("is {num_kv_heads}, which does not divide num_attention_heads = {num_heads}");
        return Err(json.wrong("num_key_value_heads", problem));
    }
    if head_dim > 256 || !head_dim.is_multiple_of(8) {
        let problem = format!("is {head_dim}, expected a multiple of 8 up to 256");
        return Err(json.wrong("head_dim", problem));
    }
    // absent means the default of the architecture
    let tied_head = json.opt_bool("tie_word_embeddings")?;
    let config = with_vectors(Config {
        num_layers: json.count("num_hidden_layers", 4096)?,
        hidden_size,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size: json.count("intermediate_size", MAX)?,
        vocab_size: json.count("vocab_size", MAX)?,
        max_position_embeddings: json.count("max_position_embeddings", 1 << 30)?,
        tied_head: tied_head.unwrap_or(architecture == GEMMA2),
        architecture,
        ..Config::default()
    });
    with_windows(config, &json)
}

#[cfg(test)]
mod tests {
    use super::super::roofline::{KvForm, ModelShape, WeightForm};
    use super::*;
    use serde_json::json;

    fn shape(name: &str) -> ModelShape {
        let built_in = BuiltIn::find(name).unwrap_or_else(|| panic!("{name}"));
        ModelShape::new(built_in.config(), WeightForm::Q8, KvForm::F16, 128 << 20)
    }

    #[test]
    fn every_shape_has_the_parameters_that_were_published() {
        for built_in in BUILT_IN {
            assert_eq!(
                shape(built_in.name).params(),
                built_in.params,
                "{}",
                built_in.name
            );
        }
        let mut names: Vec<&str> = BUILT_IN.iter().map(|b| b.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), BUILT_IN.len());
    }

    #[test]
    fn keys_and_values_take_to_the_byte_what_they_are_known_to() {
        let kv = |shape: ModelShape, tokens| shape.kv_bytes(tokens, 1);
        let (b8, b70, b405) = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b");
        assert_eq!(kv(shape(b405).as_mha(), 131_072), 1_082_331_758_592);
        assert_eq!(kv(shape(b405), 131_072), 67_645_734_912);
        assert_eq!(kv(shape(b8).as_mha(), 131_072), 68_719_476_736);
        assert_eq!(kv(shape(b8), 131_072), 17_179_869_184);
        assert_eq!(kv(shape(b70), 131_072), 42_949_672_960);
        assert_eq!(kv(shape(b405), 128_000), 66_060_288_000);
        assert_eq!(shape(b405).as_mha().kv_bytes_per_token(), 8_257_536);
        assert_eq!(shape(b405).kv_bytes_per_token(), 516_096);
        // twice that as f32, half of it as int8 without its scales
        let mut other = shape(b405);
        other.kv = KvForm::F32;
        assert_eq!(other.kv_bytes(128_000, 1), 2 * 66_060_288_000);
        other.kv = KvForm::Int8;
        let scales = 2 * 126 * 8 * 2;
        assert_eq!(other.kv_bytes_per_token() - scales, 516_096 / 2);
    }

    #[test]
    fn a_layer_with_a_window_keeps_no_more_than_it() {
        let of = shape("gemma-2-2b");
        let of_layer = of.kv_bytes_per_token() / 26;
        assert_eq!(of.kv_bytes(4096, 1), 4096 * 26 * of_layer);
        assert_eq!(of.kv_bytes(8192, 2), 2 * (4096 + 8192) * 13 * of_layer);
        let config = |more: serde_json::Value| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("config.json");
            let mut value = json!({"architectures": ["MistralForCausalLM"], "hidden_size": 64,
                "num_attention_heads": 2, "num_hidden_layers": 6, "intermediate_size": 96,
                "vocab_size": 100, "max_position_embeddings": 512});
            let all = value.as_object_mut().unwrap();
            all.extend(more.as_object().unwrap().clone());
            std::fs::write(&path, value.to_string()).unwrap();
            config_of_json(&path).unwrap().layer_groups(512)
        };
        assert_eq!(config(json!({"sliding_window": null})), [(None, 6)]);
        assert_eq!(config(json!({"sliding_window": 64})), [(Some(64), 6)]);
        let kinds = ["sliding_attention", "full_attention", "sliding_attention"].repeat(2);
        let told = json!({"sliding_window": 64, "layer_types": kinds, "architectures": ["X"]});
        assert_eq!(config(told), [(Some(64), 4), (None, 2)]);
        let told = json!({"sliding_window": 32, "architectures": ["Gemma3ForCausalLM"]});
        assert_eq!(config(told), [(Some(32), 5), (None, 1)]);
        // nobody sees more than a context
        assert_eq!(config(json!({"sliding_window": 512})), [(None, 6)]);
    }

    #[test]
    fn weights_take_what_they_are_known_to() {
        let of = |name: &str, form| shape(name).weight_bytes_as(form);
        let gb = |bytes: u64| bytes as f64 / 1e9;
        let f32 = of("llama-3.1-405b", WeightForm::F32);
        assert_eq!((gb(f32.all).round(), f32.scales), (1623.0, 0));
        let int8 = of("llama-3.1-405b", WeightForm::Int8);
        assert_eq!(gb(int8.all - int8.scales).round(), 406.0);
        assert!(int8.scales > 0 && gb(int8.scales) < 0.05, "{int8:?}");
        assert_eq!(gb(of("llama-3.1-405b", WeightForm::Q8).all).round(), 431.0);
        assert_eq!(
            format!("{:.2}", gb(of("llama-3.1-8b", WeightForm::Q8).all)),
            "8.53"
        );
        assert_eq!(
            format!("{:.2}", gb(of("llama-3.1-8b", WeightForm::F16).all)),
            "16.06"
        );
    }

    #[test]
    fn f16_tables_are_cut_where_a_binding_ends() {
        let shards = |name: &str, max_binding| {
            let shape = ModelShape {
                weights: WeightForm::F16,
                max_binding,
                ..shape(name)
            };
            shape.shards(shape.config.vocab_size, shape.config.hidden_size)
        };
        for (name, whole, half) in [("qwen3-0.6b", 3, 5), ("llama-3.2-1b", 4, 8)] {
            assert_eq!(shards(name, 128 << 20), whole, "{name}");
            assert_eq!(shards(name, 64 << 20), half, "{name}");
        }
    }

    #[test]
    fn a_config_json_is_enough_to_plan_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let whole = json!({
            "architectures": [QWEN2], "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "vocab_size": 151_936, "max_position_embeddings": 32_768, "tie_word_embeddings": true,
        });
        std::fs::write(&path, whole.to_string()).unwrap();
        let config = config_of_json(&path).unwrap();
        let expected = BuiltIn::find("qwen2.5-0.5b").unwrap().config();
        assert_eq!(
            Config {
                ropes: expected.ropes.clone(),
                ..config
            },
            expected
        );
        for (field, value) in [
            ("num_experts", json!(8)),
            ("hidden_size", json!(null)),
            ("num_key_value_heads", json!(3)),
            ("num_hidden_layers", json!(1u64 << 40)),
            ("architectures", json!([])),
            ("head_dim", json!(100)),
        ] {
            let mut wrong = whole.clone();
            wrong[field] = value;
            std::fs::write(&path, wrong.to_string()).unwrap();
            let error = config_of_json(&path).unwrap_err().to_string();
            assert!(
                error.contains(field) && error.contains("config.json"),
                "{error}"
            );
        }
        let missing = folder.path().join("nothing.json");
        assert!(
            config_of_json(&missing)
                .unwrap_err()
                .to_string()
                .contains("nothing.json")
        );
    }

    #[test]
    fn what_can_be_run_is_known() {
        assert!(is_run(LLAMA) && is_run("llama") && is_run(GEMMA2) && !is_run("MambaForCausalLM"));
    }
}
