//! What a device reports on its own account: the first fault, kept for every wait to find.

use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// The first fault of a device. One that tells that the device is gone comes before what was found
/// invalid for that reason.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<Error>>>);

impl Fault {
    /// Installs the two callbacks, before anything is allocated: without them wgpu panics.
    pub(super) fn watch(device: &wgpu::Device) -> Fault {
        let fault = Fault::default();
        let on_error = fault.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            on_error.keep(match error {
                wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory {
                    what: "a device operation".to_owned(),
                    bytes: 0,
                },
                other => Error::Device {
                    message: other.to_string(),
                },
            });
        }));
        let on_loss = fault.clone();
        device.set_device_lost_callback(move |reason, message| {
            on_loss.keep(Error::DeviceLost {
                reason: format!("{reason:?}: {message}"),
            });
        });
        fault
    }

    fn keep(&self, error: Error) {
        log::error!("{error}");
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let explains = matches!(
            (&*slot, &error),
            (Some(Error::Device { .. }), Error::DeviceLost { .. })
        );
        if slot.is_none() || explains {
            *slot = Some(error);
        }
    }

    /// The fault, if there is one. The loss of a device is told while it is polled: `poll` is called
    /// where that may be what made something invalid.
    ///
    /// # Errors
    /// The fault, the same one each time.
    pub(super) fn check(&self, poll: impl FnOnce()) -> Result<()> {
        let first = self.told();
        if matches!(first, Err(Error::Device { .. })) {
            poll();
            return self.told();
        }
        first
    }

    fn told(&self) -> Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(Error::DeviceLost { reason }) => Err(Error::DeviceLost {
                reason: reason.clone(),
            }),
            Some(Error::OutOfMemory { what, bytes }) => Err(Error::OutOfMemory {
                what: what.clone(),
                bytes: *bytes,
            }),
            Some(other) => Err(Error::Device {
                message: match other {
                    Error::Device { message } => message.clone(),
                    other => other.to_string(),
                },
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> Error {
        Error::Device {
            message: message.to_owned(),
        }
    }

    fn loss() -> Error {
        Error::DeviceLost {
            reason: "it is gone".to_owned(),
        }
    }

    fn told(fault: &Fault, poll: impl FnOnce()) -> String {
        fault.check(poll).unwrap_err().to_string()
    }

    #[test]
    fn e5_a_loss_comes_before_what_it_made_invalid() {
        let never = || panic!("there is nothing to ask for");
        let fault = Fault::default();
        fault.check(never).unwrap();
        fault.keep(error("a buffer is invalid"));
        fault.keep(error("and another"));
        assert_eq!(told(&fault, || ()), "device error: a buffer is invalid");
        // the loss is told by the very poll that a check makes
        let expected = "the device was lost: it is gone";
        assert_eq!(told(&fault, || fault.keep(loss())), expected);
        fault.keep(error("late"));
        assert_eq!(told(&fault, never), expected);

        let fault = Fault::default();
        fault.keep(Error::OutOfMemory {
            what: "weights".to_owned(),
            bytes: 4,
        });
        fault.keep(loss());
        assert!(told(&fault, never).contains("weights (4 bytes)"));
    }
}
