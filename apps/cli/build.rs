//! Tells the program which commit it was built from, with which wgpu, and how.

mod commit;

use std::path::Path;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lock = root.join("Cargo.lock");
    let head = commit::head(&root);
    println!("cargo::rustc-env=NELUMBO_COMMIT={}", head.commit);
    let wgpu = std::fs::read_to_string(&lock)
        .ok()
        .and_then(|text| locked_version(&text, "wgpu"))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=NELUMBO_WGPU_VERSION={wgpu}");
    let profile = std::env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo::rustc-env=NELUMBO_BUILD_PROFILE={profile}");
    // a file that is named but absent would run this script every time
    let own = ["build.rs", "commit.rs"].map(|f| Path::new(env!("CARGO_MANIFEST_DIR")).join(f));
    let watched = head.files.into_iter().chain(own).chain([lock]);
    for file in watched.filter(|file| file.exists()) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
}

/// The version of a package in a Cargo.lock.
fn locked_version(lock: &str, package: &str) -> Option<String> {
    let mut lines = lock.lines().map(str::trim);
    lines.find(|line| *line == format!("name = \"{package}\""))?;
    let version = lines.next()?.strip_prefix("version = ")?;
    Some(version.trim_matches('"').to_owned())
}
