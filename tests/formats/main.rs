//! Model files, good and bad. A test that covers a row of the catalogue of bad inputs carries the
//! row's id in its name (`m1_` to `m31_`, `c1_` to `c11_`, `t14_`).

mod compressed;
mod config;
mod directory;
mod gguf;
#[path = "../common/logs.rs"]
mod logs;
mod memory;
mod metadata;
mod mutation;
mod oracle;
mod pieces;
mod safetensors;
mod split;
#[path = "../faults/tiny_llama.rs"]
mod tiny_llama;
mod weights;

use nelumbo::{Error, Result};

/// The message of a result that has to be an error, checked for all of these parts.
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
