//! The fuzz targets on inputs that are known, without a fuzzer: seeds, cut seeds, and what was found.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz gguf` (on a nightly toolchain) goes on from there; an input
//! that it stops at belongs into `corpus/TARGET`, under a name that says what it is.
//! `template` needs `-- -detect_leaks=0`: a namespace that a template puts into itself is never freed, a
//! few hundred bytes a rendering.
//! `NELUMBO_FUZZ_SEEDS=DIR` writes the seeds into `DIR/TARGET`, to begin from.

#[path = "../formats/memory.rs"]
mod memory;
mod targets;

use std::fs;
use std::path::Path;

/// Each input, and its memory.
fn check(target: &targets::Target, input: &[u8], what: &str) {
    println!("{}: {what}, {} bytes", target.name, input.len());
    let ((), peak) = memory::peak(|| (target.run)(input));
    assert!(peak <= memory::bound(input.len()), "{what}: {peak} bytes");
}

#[test]
fn seeds_whole_and_cut() {
    for target in targets::ALL {
        for (i, seed) in (target.seeds)().iter().enumerate() {
            check(target, seed, &format!("seed {i}"));
            for part in 0..64 {
                let cut = seed.len() * part / 64;
                check(target, &seed[..cut], &format!("seed {i} up to {cut}"));
            }
            if let Some(folder) = std::env::var_os("NELUMBO_FUZZ_SEEDS") {
                let folder = Path::new(&folder).join(target.name);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join(format!("seed-{i}")), seed).unwrap();
            }
        }
    }
}

#[test]
fn what_was_found_stays_fixed() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    let mut inputs = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let target = targets::named(&name);
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let what = path.file_name().unwrap().to_string_lossy().into_owned();
            check(target, &fs::read(&path).unwrap(), &what);
            inputs += 1;
        }
    }
    assert!(inputs > 0, "no inputs in {}", corpus.display());
}
