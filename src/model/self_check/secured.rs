//! What a decoder has to do with the check of its kernels.

use super::{Safety, replacement, shape_of};
use crate::gpu::{Coop, Interpreter};
use crate::kernels::Tuning;
use crate::kernels::check::CheckShape;
use crate::model::decoder::Decoder;
use std::sync::Arc;

impl Decoder {
    /// Whether its kernels were checked, and what stands in for those that are wrong.
    pub fn safety(&self) -> &Safety {
        &self.safety
    }

    /// What the check of its kernels depends on.
    pub fn check_shape(&self) -> CheckShape {
        let (options, format) = (&self.options, self.weights().embedding.format);
        let tuning = options.tuned.tuning;
        CheckShape {
            coop: options.coop,
            several_slabs: self.kv.has_several_slabs(),
            many_rows: options.max_running > 1,
            ..shape_of(&self.config, format, options.kv_format, tuning)
        }
    }

    /// Takes another way to the same numbers.
    pub(in crate::model) fn choose_way(&mut self, tuning: Tuning, coop: Option<Coop>) {
        let before = self.options.tuned.tuning;
        assert_eq!(
            (tuning.activations, tuning.lanes),
            (before.activations, before.lanes),
            "numerics stay"
        );
        self.options.tuned.tuning = tuning;
        self.options.coop = coop;
    }

    /// Runs on the host what `safety` says.
    pub(in crate::model) fn keep_safe(&mut self, safety: Arc<Safety>) {
        if let Some(replacement) = replacement(&safety) {
            self.recorder
                .interpret(Some(replacement as Box<dyn Interpreter>));
        }
        self.safety = safety;
    }
}
