//! What goes wrong becomes an error that names it: on the device, in requests, in files. And the
//! file layouts against each other, since what tells them apart can only go wrong silently.

#[path = "../common/mod.rs"]
mod common;

mod device;
mod files;
#[path = "../common/logs.rs"]
mod logs;
mod loss;
mod requests;
mod tiny_llama;

use nelumbo::{Error, Result};

/// The error of a result that has to be one, checked for all of these parts.
#[track_caller]
fn refused<T>(result: Result<T>, parts: &[&str]) -> Error {
    let Err(error) = result else {
        panic!("was accepted; expected an error with {parts:?}");
    };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
    error
}
