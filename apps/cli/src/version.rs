//! `nelumbo version` and `nelumbo completions`: about the program itself.

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use crate::args::Cli;
use crate::exit::Failure;
use crate::output::print_line;

/// Name and version, or everything about the build as one JSON object.
pub fn version(as_json: bool) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if !as_json {
        return print_line(&format!("nelumbo {version}"));
    }
    let value = json!({
        "version": version,
        "commit": env!("NELUMBO_COMMIT"),
        "profile": env!("NELUMBO_BUILD_PROFILE"),
        "wgpu": env!("NELUMBO_WGPU_VERSION"),
        "os": std::env::consts::OS,
        "arch": std::env::consts::ARCH,
    });
    print_line(&value.to_string())
}

/// A script that teaches a shell the commands and options.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "nelumbo", &mut script);
    print_line(&String::from_utf8_lossy(&script))
}
