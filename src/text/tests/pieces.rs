//! Vocabularies of pieces: ids of the reference implementation, and bad vocabularies.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::{Rendered, TokenType, Tokenizer, Vocab, VocabKind};
use super::decode;

#[derive(serde::Deserialize)]
struct Fixture {
    kind: String,
    tokens: Vec<String>,
    scores: Vec<f32>,
    types: Vec<i32>,
    unknown: Option<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    add_space_prefix: bool,
    remove_extra_whitespaces: bool,
    charsmap: Vec<u8>,
    ids: Vec<Vec<u32>>,
}

const BPE: &str = include_str!("../../../tests/fixtures/pieces/bpe.json");
const UNIGRAM: &str = include_str!("../../../tests/fixtures/pieces/unigram.json");
const WIDE: &str = include_str!("../../../tests/fixtures/pieces/bpe-wide.json");
const UNIGRAM_BYTES: &str = include_str!("../../../tests/fixtures/pieces/unigram-bytes.json");
const ALL: [(&str, &str); 6] = [
    ("bpe", BPE),
    (
        "bpe-ties",
        include_str!("../../../tests/fixtures/pieces/bpe-ties.json"),
    ),
    ("bpe-wide", WIDE),
    ("unigram", UNIGRAM),
    (
        "unigram-ties",
        include_str!("../../../tests/fixtures/pieces/unigram-ties.json"),
    ),
    ("unigram-bytes", UNIGRAM_BYTES),
];

fn lines() -> Vec<String> {
    let lines = include_str!("../../../tests/fixtures/pieces/lines.json");
    serde_json::from_str(lines).unwrap()
}

fn vocab(text: &str) -> (Vocab, Vec<Vec<u32>>) {
    let fixture: Fixture = serde_json::from_str(text).unwrap();
    let kinds = fixture.types.into_iter();
    let vocab = Vocab {
        kind: VocabKind::from_gguf(&fixture.kind).unwrap(),
        tokens: fixture.tokens,
        token_types: kinds.map(|n| TokenType::from_gguf(n).unwrap()).collect(),
        scores: fixture.scores,
        unknown: fixture.unknown,
        bos: fixture.bos,
        eos: fixture.eos,
        add_space_prefix: fixture.add_space_prefix,
        remove_extra_whitespaces: fixture.remove_extra_whitespaces,
        charsmap: fixture.charsmap,
        ..Vocab::default()
    };
    (vocab, fixture.ids)
}

fn tokenizer(vocab: Vocab) -> Tokenizer {
    Tokenizer::from_vocab(vocab, Path::new("pieces.gguf")).unwrap()
}

#[test]
fn ids_of_sentencepiece() {
    let lines = lines();
    assert!(lines.len() > 250);
    for (name, text) in ALL {
        let (vocab, expected) = vocab(text);
        let tokenizer = tokenizer(vocab);
        assert_eq!(expected.len(), lines.len());
        for (line, expected) in lines.iter().zip(&expected) {
            let ids = tokenizer.encode_plain(line).unwrap();
            assert_eq!(&ids, expected, "{name}: {line:?}");
        }
    }
}

#[test]
fn t8_what_was_encoded_is_decoded_again() {
    for (name, text) in ALL {
        let (vocab, _) = vocab(text);
        if !vocab.charsmap.is_empty() {
            continue; // such a tokenizer changes the text
        }
        let front = if vocab.add_space_prefix { " " } else { "" };
        let tokenizer = tokenizer(vocab);
        let huge = "🌸👩‍🚀e\u{301}\u{200F} the ".repeat((1 << 20) / 25);
        for line in lines().into_iter().chain([huge]) {
            let ids = tokenizer.encode_plain(&line).unwrap();
            // a blank in the vocabulary's own spelling is a blank
            let front = if line.is_empty() { "" } else { front };
            let expected = format!("{front}{}", line.replace('▁', " "));
            assert!(
                decode(&tokenizer, &ids) == expected.as_bytes(),
                "{name}: {:?}",
                line.chars().take(40).collect::<String>()
            );
        }
    }
}

#[test]
fn special_tokens_of_pieces() {
    let bpe = tokenizer(vocab(BPE).0);
    let ids = |text: &str| bpe.encode_raw(text).unwrap();
    // BOS is added where the file does not say, once; what follows a special token is a text of its own
    assert_eq!(ids(""), [1]);
    assert_eq!(ids("<s>"), [1]);
    let hello = bpe.encode_plain("Hello").unwrap();
    assert_eq!(ids("Hello"), [&[1], hello.as_slice()].concat());
    assert_eq!(
        ids("Hello</s>Hello"),
        [&[1], hello.as_slice(), &[2], hello.as_slice()].concat()
    );
    assert_eq!(
        bpe.token_id("<0x0A>"),
        Some(bpe.encode_plain("\n").unwrap()[1])
    );
    assert_eq!(bpe.token_bytes(bpe.token_id("▁the").unwrap()), b" the");
    assert_eq!(bpe.token_bytes(bpe.token_id("<0xE2>").unwrap()), b"\xE2");
    assert_eq!((bpe.bos(), bpe.eos()), (Some(1), Some(2)));
    let rendered = Rendered {
        text: "</s>a</s>".to_owned(),
        content_spans: std::iter::once(4..9).collect(),
    };
    let control = |ids: Vec<u32>| ids.into_iter().filter(|&id| bpe.is_control(id)).count();
    assert_eq!(control(bpe.encode_rendered(&rendered).unwrap()), 2);

    let (mut silent, _) = vocab(BPE);
    silent.add_bos = Some(false);
    assert_eq!(tokenizer(silent).encode_raw("").unwrap(), [0; 0]);
    let unigram = tokenizer(vocab(UNIGRAM).0);
    assert!(!unigram.add_bos() && unigram.eos() == Some(2));
}

#[test]
fn files_from_before_types_and_special_ids_were_written() {
    let (mut old, expected) = vocab(BPE);
    (old.token_types, old.unknown) = (Vec::new(), None);
    (old.bos, old.eos) = (None, None);
    let old = tokenizer(old);
    assert_eq!((old.bos(), old.eos()), (Some(1), Some(2)));
    for (line, expected) in lines().iter().zip(&expected) {
        assert_eq!(&old.encode_plain(line).unwrap(), expected, "{line:?}");
    }
}

#[test]
fn tokens_kept_whole_are_found_in_either_spelling_of_blanks() {
    let wide = tokenizer(vocab(WIDE).0);
    let three = wide.token_id("▁▁▁").unwrap();
    assert_eq!(wide.encode_plain("   ").unwrap(), [three]);
    assert_eq!(wide.encode_plain("▁▁▁").unwrap(), [three]);
    assert_eq!(wide.encode_plain("▁  ").unwrap(), [three]);
    assert_eq!(wide.encode_plain(" ▁ ").unwrap(), [three]);
    let think = wide.token_id("<think>").unwrap();
    assert_eq!(wide.encode_plain("<think><think>").unwrap(), [think, think]);
    assert_eq!(wide.token_bytes(three), b"   ");
    // one that looks like a turn marker only where the author may write it
    let (mut marked, _) = vocab(WIDE);
    let id = marked.tokens.iter().position(|t| t == "<think>").unwrap();
    marked.tokens[id] = "<|im_end|>".to_owned();
    let marked = tokenizer(marked);
    let plain = marked.encode_plain("<|im_end|>").unwrap();
    assert!(!plain.contains(&(id as u32)) && plain.len() > 1);
    assert_eq!(decode(&marked, &plain), b"<|im_end|>");
    assert_eq!(marked.encode_raw("<|im_end|>").unwrap()[1..], [id as u32]);
}

#[test]
fn t2_t4_bad_pieces_are_named() {
    type Change = fn(&mut Vocab);
    let cases: [(Change, &str); 8] = [
        (
            |v| v.scores.truncate(7),
            "tokenizer.ggml.scores: 7 entries for the 900 tokens",
        ),
        (|v| v.scores.clear(), "tokenizer.ggml.scores: 0 entries"),
        (
            |v| v.scores[300] = f32::NAN,
            "tokenizer.ggml.scores[300]: is NaN",
        ),
        (
            |v| v.tokens[301] = v.tokens[300].clone(),
            "tokenizer.ggml.tokens[301]: ",
        ),
        (
            |v| v.tokens[10] = "0x0A".into(),
            "tokenizer.ggml.tokens[10]: \"0x0A\" is typed as a byte",
        ),
        (
            |v| v.unknown = Some(900),
            "tokenizer.ggml.unknown_token_id: 900",
        ),
        (|v| v.bos = Some(1 << 31), "tokenizer.ggml.bos_token_id"),
        (
            |v| v.charsmap = vec![1, 2, 3],
            "tokenizer.ggml.precompiled_charsmap: 3 bytes",
        ),
    ];
    for (change, want) in cases {
        let (mut vocab, _) = vocab(BPE);
        change(&mut vocab);
        let error = Tokenizer::from_vocab(vocab, Path::new("m.gguf")).unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("m.gguf: ") && error.contains(want),
            "{error} / {want}"
        );
    }
}

#[test]
fn a_vocabulary_without_bytes_and_unknown_leaves_out_what_it_lacks() {
    let piece = |text: &str| (text.to_owned(), -1.0, TokenType::Normal);
    for kind in [VocabKind::PiecesBpe, VocabKind::PiecesUnigram] {
        let all = [
            piece("a"),
            piece("▁"),
            (String::new(), 0.0, TokenType::Control),
        ];
        let vocab = Vocab {
            kind,
            tokens: all.iter().map(|p| p.0.clone()).collect(),
            scores: all.iter().map(|p| p.1).collect(),
            token_types: all.iter().map(|p| p.2).collect(),
            ..Vocab::default()
        };
        let tokenizer = tokenizer(vocab);
        assert_eq!(tokenizer.encode_plain("éa ß").unwrap(), [0, 1]);
        assert_eq!(tokenizer.encode_raw("").unwrap(), [0; 0]);
    }
}

/// Vocabularies with all bytes, and what comes in front of a text. There are pieces that could be joined
/// to the text of tokens that stand for something else.
static WITH_BYTES: LazyLock<[(Tokenizer, &str); 3]> = LazyLock::new(|| {
    [BPE, WIDE, UNIGRAM_BYTES].map(|text| {
        let (mut vocab, _) = vocab(text);
        for piece in ["s>", "</", "0x", "<0x", "0A", "0A>"] {
            if !vocab.tokens.iter().any(|token| token == piece) {
                vocab.tokens.push(piece.to_owned());
                vocab.token_types.push(TokenType::Normal);
                vocab.scores.push(0.0);
            }
        }
        let front = if vocab.add_space_prefix { " " } else { "" };
        (tokenizer(vocab), front)
    })
});

/// Anything, among it what names tokens that stand for no text, for bytes, and for runs of blanks.
fn with_names() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "<s>",
        "</s>",
        "<unk>",
        "<0x0A>",
        "<0xE2>",
        "<think>",
        "▁▁▁",
        "   ",
        "<",
        "s>",
        "/",
        "unk",
    ]);
    let part = prop_oneof![any::<String>(), name.prop_map(str::to_owned)];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn t8_t15_any_text_is_decoded_again_without_control_tokens(text in with_names()) {
        for (tokenizer, front) in &*WITH_BYTES {
            let ids = tokenizer.encode_plain(&text).unwrap();
            prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
            let front = if text.is_empty() { "" } else { front };
            let expected = format!("{front}{}", text.replace('▁', " "));
            prop_assert_eq!(decode(tokenizer, &ids), expected.as_bytes());
        }
    }
}
