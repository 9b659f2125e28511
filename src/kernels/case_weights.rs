//! Packed weights as inputs of cases.

use super::case::{Case, CaseTensor, Data};
use crate::gpu::DType;
use crate::quant::Format;

impl Data {
    /// Weights of a matrix: normal, but for one outlier that sets its group's scale, and zeros at the end
    /// of the first row.
    pub(super) fn weights(&mut self, rows: usize, columns: usize) -> Vec<f32> {
        let mut all = self.normal(rows * columns);
        all[0] = 60.0;
        all[columns - 4..columns].fill(0.0);
        all
    }
}

impl Case {
    /// With rows of weights as tensors of these names: what is packed, and the scales if `format` has any.
    #[must_use]
    pub(super) fn packed(
        self,
        [w, w_scales]: [&'static str; 2],
        format: &Format,
        rows: &[f32],
        columns: usize,
    ) -> Case {
        let (quants, scales) = format.pack_rows(rows, columns);
        let case = self.tensor(CaseTensor::input(w, DType::I8, &[quants.len()], quants));
        if scales.is_empty() {
            return case;
        }
        let dims = [scales.len()];
        case.tensor(CaseTensor::input(w_scales, DType::I8, &dims, scales))
    }
}
