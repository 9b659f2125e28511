//! Bytes of weights and of keys and values, as they are allocated, or would be in forms that are only
//! planned with.

use crate::kernels::attention::AttentionShape;
use crate::kv::{KvFormat, PAGE_SIZE, pages_for};
use crate::model::scratch::attention_shape;
use crate::model::{Config, Decoder};
use crate::quant::{Format, f16, q8};

/// How weights are kept: as this build keeps them, or as others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// 4 bytes a weight, as trained; planned with only.
    F32,
    /// 2 bytes a weight, in blocks of 4 rows and 32 columns.
    F16,
    /// 1 byte a weight and an f16 scale for 32 of a row, in the same blocks.
    Q8,
    /// 1 byte a weight and an f16 scale for each row; planned with only.
    Int8,
}

impl WeightForm {
    /// Every form, the largest first.
    pub const ALL: [WeightForm; 4] = [
        WeightForm::F32,
        WeightForm::F16,
        WeightForm::Q8,
        WeightForm::Int8,
    ];

    /// The word of `--weights`.
    pub fn name(self) -> &'static str {
        match self {
            WeightForm::F32 => "f32",
            WeightForm::F16 => f16::F16.name,
            WeightForm::Q8 => q8::Q8.name,
            WeightForm::Int8 => "int8",
        }
    }

    /// The form called `name`.
    pub fn from_name(name: &str) -> Option<WeightForm> {
        WeightForm::ALL.into_iter().find(|form| form.name() == name)
    }

    /// The format in memory; `None` where no kernel reads it.
    pub fn format(self) -> Option<&'static Format> {
        Format::from_name(self.name())
    }

    /// Bytes of a matrix: weights and scales, padding included.
    pub fn matrix_bytes(self, rows: usize, columns: usize) -> (u64, u64) {
        let values = rows as u64 * columns as u64;
        match (self.format(), self) {
            (Some(format), _) => format.matrix_bytes(rows, columns),
            (None, WeightForm::Int8) => (values, 2 * rows as u64),
            (None, _) => (4 * values, 0),
        }
    }
}

/// How keys and values are kept, in memory or on paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvForm {
    /// 4 bytes.
    F32,
    /// 2 bytes.
    F16,
    /// 1 byte, and an f16 scale for each head of a token; planned with only.
    Int8,
}

impl KvForm {
    /// Every form, the largest first.
    pub const ALL: [KvForm; 3] = [KvForm::F32, KvForm::F16, KvForm::Int8];

    /// The word of `--cache-type-k` and `--cache-type-v`.
    pub fn name(self) -> &'static str {
        match self {
            KvForm::F32 => KvFormat::F32.name(),
            KvForm::F16 => KvFormat::F16.name(),
            KvForm::Int8 => "int8",
        }
    }

    /// The form called `name`.
    pub fn from_name(name: &str) -> Option<KvForm> {
        KvForm::ALL.into_iter().find(|form| form.name() == name)
    }

    /// The format of the cache; `None` where no kernel reads it.
    pub fn format(self) -> Option<KvFormat> {
        KvFormat::from_name(self.name())
    }

    /// Bytes of a head's keys, or values, of one token: numbers and scale.
    fn head_bytes(self, head_dim: usize) -> (u64, u64) {
        let dims = head_dim as u64;
        match self {
            KvForm::F32 => (4 * dims, 0),
            KvForm::F16 => (2 * dims, 0),
            KvForm::Int8 => (dims, 2),
        }
    }
}

impl From<KvFormat> for KvForm {
    fn from(format: KvFormat) -> KvForm {
        match format {
            KvFormat::F16 => KvForm::F16,
            KvFormat::F32 => KvForm::F32,
        }
    }
}

/// A model as far as bytes and operations go.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Its sizes.
    pub config: Config,
    /// How weights are kept.
    pub weights: WeightForm,
    /// How keys and values are kept.
    pub kv: KvForm,
    /// Key heads that the cache holds: the model's own, but where somebody asks what it would take if every
    /// query head had one. Weights are the model's in any case.
    pub cached_kv_heads: usize,
    /// The largest window of a buffer that a kernel binds, in bytes: matrices and layers of the cache
    /// beyond it are several.
    pub max_binding: u64,
}

/// Bytes of weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// All of them.
    pub all: u64,
    /// Those of them that are scales.
    pub scales: u64,
}

impl ModelShape {
    /// Of a model of these sizes, kept in these forms, where kernels bind at most `max_binding` bytes.
    pub fn new(config: Config, weights: WeightForm, kv: KvForm, max_binding: u64) -> ModelShape {
        ModelShape {
            cached_kv_heads: config.num_kv_heads,
            config,
            weights,
            kv,
            max_binding,
        }
    }

    /// Of a model that is loaded.
    pub fn of(decoder: &Decoder) -> ModelShape {
        let format = decoder.weights().embedding.format;
        let weights = WeightForm::from_name(format.name).expect("a form for every format");
        let kv = decoder.kv().format().into();
        let max_binding = decoder.gpu().max_binding_bytes();
        ModelShape::new(decoder.config().clone(), weights, kv, max_binding)
    }

    /// The same with keys and values of its own for every query head, as if nobody had thought of sharing
    /// them.
    pub fn as_mha(self) -> ModelShape {
        ModelShape {
            cached_kv_heads: self.config.num_heads,
            ..self
        }
    }

    /// All parameters; an embedding that is the head as well counts once.
    pub fn params(&self) -> u64 {
        self.config.num_params()
    }

    /// Bytes of all weights in `form`, norms in f32.
    pub fn weight_bytes_as(&self, form: WeightForm) -> WeightBytes {
        let c = &self.config;
        let mut sum = WeightBytes::default();
        let mut add = |count: usize, (rows, columns): (usize, usize)| {
            let (weights, scales) = form.matrix_bytes(rows, columns);
            sum.all += count as u64 * (weights + scales);
            sum.scales += count as u64 * scales;
        };
        add(
            if c.tied_head { 1 } else { 2 },
            (c.vocab_size, c.hidden_size),
        );
        for matrix in c.layer_matrices() {
            add(c.num_layers, matrix);
        }
        let vectors = c.num_layers * c.layer_vectors() + c.other_vectors();
        sum.all += 4 * vectors as u64;
        sum
    }

    /// Bytes of all weights.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.weight_bytes_as(self.weights)
    }

    /// Bytes of the keys and values of a token, over all layers, scales included.
    pub fn kv_bytes_per_token(&self) -> u64 {
        let c = &self.config;
        let (numbers, scale) = self.kv.head_bytes(c.head_dim);
        2 * (c.num_layers * self.cached_kv_heads) as u64 * (numbers + scale)
    }

    /// Bytes of a page of keys and values, over all layers.
    pub fn page_bytes(&self) -> u64 {
        self.kv_bytes_per_token() * PAGE_SIZE as u64
    }

    /// Bytes of a page of keys and values, over `layers` of the layers.
    pub fn page_bytes_of(&self, layers: usize) -> u64 {
        self.page_bytes() / self.config.num_layers.max(1) as u64 * layers as u64
    }

    /// Bytes of keys and values of `tokens` tokens of each of `users`: exactly those that the token after
    /// them sees, not the pages that hold them.
    pub fn kv_bytes(&self, tokens: u64, users: u64) -> u64 {
        let of_layer = self.kv_bytes_per_token() / self.config.num_layers.max(1) as u64;
        let groups = self.config.layer_groups(usize::MAX).into_iter();
        let bytes = groups.map(|(window, layers)| {
            let seen = window.map_or(tokens, |window| tokens.min(window as u64));
            let all = seen.saturating_mul(users);
            (of_layer * layers as u64).saturating_mul(all)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Pages that hold `tokens` tokens of each of `users`, who share none.
    pub fn pages(&self, tokens: usize, users: usize) -> u64 {
        (pages_for(tokens) as u64).saturating_mul(users as u64)
    }

    /// Into how many pieces a matrix of `rows` and `columns` is cut.
    pub fn shards(&self, rows: usize, columns: usize) -> usize {
        let unit = crate::quant::weights::SHARD_ROWS;
        let (bytes, _) = self.weights.matrix_bytes(unit, columns);
        let fitting = (self.max_binding / bytes.max(1)) as usize * unit;
        rows.div_ceil(fitting.max(unit))
    }

    /// Of attention, as kernels see it.
    pub(crate) fn attention(&self) -> AttentionShape {
        AttentionShape {
            num_kv_heads: self.cached_kv_heads,
            ..attention_shape(&self.config)
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::config::QkNorm;
    use crate::model::synthetic;

    /// A small shape in the formats that are the default.
    pub fn tiny() -> ModelShape {
        ModelShape::new(synthetic::tiny(), WeightForm::Q8, KvForm::F16, 128 << 20)
    }

    #[test]
    fn names_find_their_form() {
        for form in WeightForm::ALL {
            assert_eq!(WeightForm::from_name(form.name()), Some(form));
        }
        for form in KvForm::ALL {
            assert_eq!(KvForm::from_name(form.name()), Some(form));
        }
        for format in crate::quant::FORMATS {
            let form = WeightForm::from_name(format.name).unwrap();
            assert_eq!(form.format().unwrap().name, format.name);
        }
        assert!(WeightForm::Int8.format().is_none() && KvForm::Int8.format().is_none());
        for format in KvFormat::ALL {
            assert_eq!(KvForm::from(format).format(), Some(format));
        }
    }

    #[test]
    fn a_matrix_has_its_padding_where_a_format_has_any() {
        // 5 rows pad to 8, 40 columns to 64
        assert_eq!(WeightForm::F32.matrix_bytes(5, 40), (800, 0));
        assert_eq!(WeightForm::Int8.matrix_bytes(5, 40), (200, 10));
        assert_eq!(WeightForm::F16.matrix_bytes(5, 40), (8 * 64 * 2, 0));
        assert_eq!(WeightForm::Q8.matrix_bytes(5, 40), (8 * 64, 8 * 2 * 2));
    }

    #[test]
    fn a_model_is_its_tables_its_layers_and_its_norms() {
        let shape = tiny();
        let c = &shape.config;
        let norms = 4 * ((2 * c.num_layers + 1) * c.hidden_size) as u64;
        assert_eq!(
            shape.weight_bytes_as(WeightForm::F32).all,
            4 * shape.params()
        );
        let int8 = shape.weight_bytes_as(WeightForm::Int8);
        let matrices = shape.params() - norms / 4;
        assert_eq!(int8.all - int8.scales, matrices + norms);
        let mut more = tiny();
        more.config.qk_norm = Some(QkNorm::Head);
        let values = 2 * 2 * more.config.head_dim as u64;
        assert_eq!(more.params(), shape.params() + values);
        assert_eq!(
            more.weight_bytes().all,
            shape.weight_bytes().all + 4 * values
        );
    }

    #[test]
    fn keys_and_values_are_counted_to_the_byte() {
        let mut shape = tiny();
        // 2 layers, 2 heads of 32 dims, keys and values
        assert_eq!(shape.kv_bytes_per_token(), 2 * 2 * 2 * 32 * 2);
        assert_eq!(shape.page_bytes(), 16 * 512);
        assert_eq!(shape.kv_bytes(17, 3), 51 * 512);
        assert_eq!(shape.pages(17, 3), 6);
        shape.kv = KvForm::Int8;
        assert_eq!(shape.kv_bytes_per_token(), 2 * 2 * 2 * (32 + 2));
        // six query heads instead of two of keys, and the same weights
        let (weights, params) = (shape.weight_bytes(), shape.params());
        let mha = shape.as_mha();
        assert_eq!(mha.kv_bytes_per_token(), 2 * 2 * 6 * (32 + 2));
        assert_eq!((mha.weight_bytes(), mha.params()), (weights, params));
    }

    #[test]
    fn what_is_over_the_binding_limit_is_cut_as_it_is_allocated() {
        let shape = ModelShape {
            max_binding: 64 * 64 * 3,
            ..tiny()
        };
        // 64 rows of 64 columns are 4096 bytes: three times that, 192 rows
        assert_eq!(shape.shards(192, 64), 1);
        assert_eq!(shape.shards(193, 64), 2);
        assert_eq!(shape.shards(512, 64), 3);
    }
}
