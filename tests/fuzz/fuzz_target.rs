//! One program for each target, by the name that `Cargo.toml` gives it.

#![no_main]

mod targets;

use std::sync::LazyLock;

/// The target. The panic hook of the fuzzer's library aborts, also where a panic of another library is
/// caught and becomes an error; without it a panic that nobody catches still ends the program.
static TARGET: LazyLock<&targets::Target> = LazyLock::new(|| {
    let _ = std::panic::take_hook();
    targets::named(env!("CARGO_BIN_NAME"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
