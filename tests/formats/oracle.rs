//! Decoding against values that another implementation found; see fixtures/quants/ORIGIN.md.

use std::path::Path;

use nelumbo::formats::{Encoding, Gguf};

/// Blocks of each encoding in the file.
const BLOCKS: usize = 5;

#[test]
fn every_encoding_decodes_to_the_bits_of_another_implementation() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let gguf = Gguf::open(&root.join("tests/fixtures/quants/quants.gguf")).unwrap();
    let checkpoint = &gguf.checkpoint;
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    // doubles are rounded by the language's own conversion
    let others = || Encoding::all().filter(|&encoding| encoding != Encoding::F64);
    for encoding in others() {
        let name = encoding.name();
        let stored = checkpoint.require(name).unwrap();
        let values = checkpoint.require(&format!("{name} as F32")).unwrap();
        assert_eq!(
            (stored.encoding, values.encoding),
            (encoding, Encoding::F32)
        );
        checkpoint.read_rows(stored, 0..1, &mut found).unwrap();
        checkpoint.read_rows(values, 0..1, &mut expected).unwrap();
        assert_eq!(found.len(), BLOCKS * encoding.group_size(), "{name}");
        assert_eq!(found.len(), expected.len(), "{name}");
        for (idx, (a, b)) in found.iter().zip(&expected).enumerate() {
            let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(same, "{name}, element {idx}: {a:e}, expected {b:e}");
        }
        let distinct: std::collections::BTreeSet<u32> =
            expected.iter().map(|x| x.to_bits()).collect();
        assert!(distinct.len() >= BLOCKS.min(expected.len()), "{name}");
    }
    assert_eq!(checkpoint.names().len(), 2 * others().count());
}
