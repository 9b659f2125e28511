//! What a forward pass consists of: its dispatches, as they are recorded for a model at hand.

use crate::engine::EngineCore;
use crate::error::Result;
use crate::gpu::{Call, Interpreter, Place, Variant};
use std::sync::{Arc, Mutex, PoisonError};

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Where in the step it stands.
    pub place: Place,
    /// The kernel and what was chosen of it.
    pub variant: Variant,
    /// Name and shape of each tensor, as they are bound.
    pub tensors: Vec<(String, Vec<usize>)>,
    /// Names and words of the parameter block.
    pub params: Vec<(&'static str, u32)>,
    /// The grid.
    pub workgroups: [u32; 3],
}

impl Traced {
    /// A field of the parameter block.
    pub fn param(&self, name: &str) -> Option<usize> {
        let field = self.params.iter().find(|(field, _)| *field == name);
        field.map(|(_, value)| *value as usize)
    }
}

/// The dispatches that `work` leads to, in order. They run as ever.
///
/// # Errors
/// What `work` reports.
pub fn trace<T>(
    engine: &mut EngineCore,
    work: impl FnOnce(&mut EngineCore) -> Result<T>,
) -> Result<(T, Vec<Traced>)> {
    let list = Arc::new(Mutex::new(Vec::new()));
    let listener = Listener(Arc::clone(&list));
    engine.recorder().interpret(Some(Box::new(listener)));
    let done = work(engine);
    engine.recorder().interpret(None);
    let traced = std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((done?, traced))
}

struct Listener(Arc<Mutex<Vec<Traced>>>);

impl Interpreter for Listener {
    fn dispatch(&mut self, call: &mut Call<'_>) -> Result<()> {
        let names = call.variant.kernel.params.iter().map(|(name, _)| *name);
        let traced = Traced {
            place: call.place,
            variant: call.variant,
            tensors: call
                .tensors()
                .map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec()))
                .collect(),
            params: names
                .map(|name| (name, call.param(name).unwrap_or(0)))
                .collect(),
            workgroups: call.workgroups,
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(traced);
        call.on_device();
        Ok(())
    }
}
