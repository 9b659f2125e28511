use std::path::Path;

use proptest::prelude::*;

use super::super::{ChatTemplate, Message, RenderOptions, Rendered, TokenType, Tokenizer, Vocab};
use super::{decode, small, small_vocab, spell};
use crate::error::Error;

/// ChatML with the system message that the reference model puts in where there is none.
const CHATML: &str = "{% for message in messages %}\
    {% if loop.first and message.role != 'system' %}<|im_start|>system\n\
    You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n{{ '' }}{% endif %}\
    {{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

#[derive(serde::Deserialize)]
struct Excerpt {
    tokens: Vec<String>,
    token_types: Vec<i32>,
    merges: Vec<String>,
    prompts: Vec<Prompt>,
}

#[derive(serde::Deserialize)]
struct Prompt {
    prompt: String,
    messages: Option<Vec<Message>>,
    token_ids: Vec<u32>,
}

fn excerpt() -> (Tokenizer, Vec<Prompt>) {
    let text = include_str!("../../../tests/fixtures/text/smollm2-excerpt.json");
    let excerpt: Excerpt = serde_json::from_str(text).unwrap();
    let vocab = Vocab {
        tokens: excerpt.tokens,
        token_types: excerpt
            .token_types
            .into_iter()
            .map(|n| TokenType::from_gguf(n).unwrap())
            .collect(),
        merges: excerpt.merges,
        pre: "smollm".to_owned(),
        bos: Some(1),
        eos: Some(2),
        ..Vocab::default()
    };
    (
        Tokenizer::from_vocab(vocab, Path::new("smollm2.gguf")).unwrap(),
        excerpt.prompts,
    )
}

#[test]
fn ids_of_the_reference_implementation() {
    let (tokenizer, prompts) = excerpt();
    let template = ChatTemplate::new(CHATML).unwrap();
    let mut chats = 0;
    for prompt in &prompts {
        assert_eq!(
            tokenizer.encode_raw(&prompt.prompt).unwrap(),
            prompt.token_ids,
            "{}",
            prompt.prompt
        );
        if let Some(messages) = &prompt.messages {
            let options = RenderOptions {
                add_generation_prompt: true,
                ..RenderOptions::default()
            };
            let rendered = template.render(messages, &options).unwrap();
            assert_eq!(rendered.text, prompt.prompt);
            assert_eq!(
                tokenizer.encode_rendered(&rendered).unwrap(),
                prompt.token_ids
            );
            let contents: Vec<&str> = rendered
                .content_spans
                .iter()
                .map(|s| &rendered.text[s.clone()])
                .collect();
            assert_eq!(
                contents,
                messages
                    .iter()
                    .map(|m| m.content.as_str())
                    .collect::<Vec<_>>()
            );
            chats += 1;
        } else {
            assert_eq!(
                decode(&tokenizer, &prompt.token_ids),
                prompt.prompt.as_bytes()
            );
        }
    }
    assert_eq!((prompts.len(), chats), (6, 2));
}

#[test]
fn special_ids_and_tables() {
    let tokenizer = small("gpt-2");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.add_bos()),
        (Some(0), Some(1), false)
    );
    assert_eq!(tokenizer.token_id("<|im_end|>"), Some(1));
    assert_eq!(tokenizer.token_id("nothing"), None);
    assert_eq!(tokenizer.control_ids(), [0, 1, 2, 3]);
    assert_eq!(tokenizer.token_text(1), "<|im_end|>");
    assert_eq!(tokenizer.token_bytes(1), b"");
    assert_eq!(tokenizer.token_bytes(4), b"<think>");
    let beyond = u32::try_from(tokenizer.vocab_size()).unwrap();
    for id in [beyond, u32::MAX] {
        assert_eq!(
            (
                tokenizer.token_bytes(id),
                tokenizer.token_text(id),
                tokenizer.is_control(id)
            ),
            (&[] as &[u8], String::new(), false)
        );
    }
}

#[test]
fn every_pre_tokenizer_cuts_as_its_family_does() {
    let tokens = |pre: &str, text: &str| -> Vec<String> {
        let tokenizer = small(pre);
        tokenizer
            .encode_plain(text)
            .unwrap()
            .into_iter()
            .map(|id| tokenizer.token_text(id))
            .collect()
    };
    // GPT-2 keeps digits together, so they merge; SmolLM and Qwen take each on its own.
    assert_eq!(tokens("gpt-2", "12"), ["12"]);
    assert_eq!(tokens("smollm", "12"), ["1", "2"]);
    assert_eq!(tokens("qwen2", "12"), ["1", "2"]);
    assert_eq!(tokens("tekken", "12"), ["1", "2"]);
    assert_eq!(tokens("llama-bpe", "12"), ["12"]);
    // Llama 3 cuts long numbers into threes: 999|12, not 9991|2.
    assert_eq!(tokens("llama-bpe", "99912"), ["9", "9", "9", "12"]);
    assert_eq!(tokens("llama-bpe", "9912"), ["9", "9", "1", "2"]);
    for pre in ["default", "smollm", "llama-bpe", "qwen2", "tekken"] {
        assert_eq!(tokens(pre, "hello world"), ["hello", " world"], "{pre}");
        // The last blank belongs to the next word.
        assert_eq!(tokens(pre, "a   world"), ["a", "  ", " world"], "{pre}");
    }
    // Qwen composes accents before it encodes, the others take the bytes as they are.
    assert_eq!(tokens("qwen2", "e\u{301}").len(), 2);
    assert_eq!(tokens("gpt-2", "e\u{301}").len(), 3);
}

#[test]
fn unknown_pre_tokenizer_is_named() {
    let error = Tokenizer::from_vocab(small_vocab("gpt-9"), Path::new("m.gguf")).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { found, .. } if found == "gpt-9"));
    assert!(
        error.to_string().contains("tokenizer.ggml.pre") && error.to_string().contains("llama-bpe"),
        "{error}"
    );
}

#[test]
fn t2_t4_bad_gguf_vocabularies_are_named() {
    type Change = fn(&mut Vocab);
    let cases: [(Change, &str); 12] = [
        (
            |v| v.merges.push("q z".into()),
            "tokenizer.ggml.merges[13]: \"q z\" needs the token \"qz\"",
        ),
        (
            |v| v.merges[0] = "he".into(),
            "tokenizer.ggml.merges[0]: \"he\" is no pair",
        ),
        (
            |v| v.merges[1] = "l nope".into(),
            "tokenizer.ggml.merges[1]: \"l nope\" needs the token \"nope\"",
        ),
        (
            |v| v.tokens[7] = v.tokens[6].clone(),
            "tokenizer.ggml.tokens[7]: \"Ā\" is token 6 already",
        ),
        (
            |v| v.token_types.truncate(3),
            "tokenizer.ggml.token_type: 3 entries",
        ),
        (
            |v| v.bos = Some(1 << 31),
            "tokenizer.ggml.bos_token_id: 2147483648",
        ),
        (|v| v.eos = Some(5000), "tokenizer.ggml.eos_token_id: 5000"),
        (|v| v.eot = Some(5001), "tokenizer.ggml.eot_token_id: 5001"),
        (
            |v| v.tokens[7] = "a".repeat(4097),
            "tokenizer.ggml.tokens[7]: 4097 bytes, allowed are 4096",
        ),
        (
            |v| {
                *v = Vocab {
                    pre: "gpt-2".into(),
                    ..Vocab::default()
                }
            },
            "tokenizer.ggml.tokens: 0 tokens",
        ),
        (
            |v| (v.add_bos, v.bos) = (Some(true), None),
            "tokenizer.ggml.bos_token_id: missing",
        ),
        (
            |v| v.token_types[9] = TokenType::Byte,
            "tokenizer.ggml.tokens[9]: \"ă\" is typed as a byte",
        ),
    ];
    for (change, want) in cases {
        let mut vocab = small_vocab("gpt-2");
        change(&mut vocab);
        let error = Tokenizer::from_vocab(vocab, Path::new("m.gguf"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("m.gguf: ") && error.contains(want),
            "{error} / {want}"
        );
    }
    assert_eq!(
        (
            TokenType::from_gguf(3),
            TokenType::from_gguf(0),
            TokenType::from_gguf(-1)
        ),
        (Some(TokenType::Control), None, None)
    );
}

#[test]
fn t15_control_text_is_plain_in_plain_text() {
    let tokenizer = small("gpt-2");
    for text in [
        "<|im_end|>",
        "a<|im_start|>system",
        "<x>",
        "[INST]<x><x>",
        "<|tool|>",
    ] {
        let ids = tokenizer.encode_plain(text).unwrap();
        assert!(
            ids.iter().all(|&id| !tokenizer.is_control(id) && id != 5),
            "{text}: {ids:?}"
        );
        assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
    }
    assert_eq!(
        tokenizer.encode_raw("<|im_start|><x><|tool|>").unwrap(),
        [0, 2, 5]
    );
    // Text that is merely kept whole is recognised everywhere.
    assert_eq!(tokenizer.encode_plain("<think>").unwrap(), [4]);
}

#[test]
fn t15_control_tokens_only_outside_of_content() {
    let tokenizer = small("gpt-2");
    let text = "<|im_start|>a<|im_end|><|im_start|>b<|im_end|>";
    // The first end of turn is content, and so is the half of the second start.
    let rendered = Rendered {
        text: text.into(),
        content_spans: vec![30..35, 12..23],
    };
    let ids = tokenizer.encode_rendered(&rendered).unwrap();
    let control: Vec<u32> = ids
        .iter()
        .copied()
        .filter(|&id| tokenizer.is_control(id))
        .collect();
    assert_eq!(control, [0, 1]);
    // Spans that lie about the text do no harm.
    let wild = Rendered {
        text: "é<x>".into(),
        content_spans: vec![1..2, 90..99, 5..usize::MAX],
    };
    assert!(tokenizer.encode_rendered(&wild).is_ok());
}

#[test]
fn t15_what_ends_a_turn_is_never_in_plain_text_whatever_its_type() {
    let text = "<end_of_turn>";
    for kind in [TokenType::Normal, TokenType::UserDefined] {
        let mut vocab = small_vocab("gpt-2");
        let id = vocab.tokens.len() as u32;
        vocab.tokens.push(text.to_owned());
        vocab.token_types.push(kind);
        vocab.eot = Some(id);
        let tokenizer = Tokenizer::from_vocab(vocab, Path::new("m.gguf")).unwrap();
        let plain = tokenizer.encode_plain(text).unwrap();
        assert!(
            tokenizer.is_control(id) && !plain.contains(&id),
            "{plain:?}"
        );
        assert_eq!(tokenizer.encode_raw(text).unwrap(), [id]);
    }
}

#[test]
fn bos_is_added_once() {
    let mut vocab = small_vocab("gpt-2");
    vocab.add_bos = Some(true);
    let tokenizer = Tokenizer::from_vocab(vocab, Path::new("m.gguf")).unwrap();
    let hello = tokenizer.token_id("hello").unwrap();
    let rendered = |text: &str| Rendered {
        text: text.into(),
        content_spans: Vec::new(),
    };
    assert!(tokenizer.add_bos());
    assert_eq!(tokenizer.encode_raw("hello").unwrap(), [0, hello]);
    assert_eq!(tokenizer.encode_raw("").unwrap(), [0]);
    assert_eq!(tokenizer.encode_plain("hello").unwrap(), [hello]);
    assert_eq!(
        tokenizer.encode_rendered(&rendered("hello")).unwrap(),
        [0, hello]
    );
    assert_eq!(
        tokenizer
            .encode_rendered(&rendered("<|im_start|>hello"))
            .unwrap(),
        [0, hello]
    );
}

#[test]
fn bos_is_added_where_the_rule_of_the_words_does_and_the_file_does_not_say() {
    for (pre, adds) in [("gpt-2", false), ("llama-bpe", true), ("tekken", true)] {
        let mut vocab = small_vocab(pre);
        assert_eq!(small(pre).add_bos(), adds, "{pre}");
        vocab.add_bos = Some(!adds);
        let other = Tokenizer::from_vocab(vocab, Path::new("m.gguf")).unwrap();
        assert_eq!(other.add_bos(), !adds, "{pre}");
    }
}

#[test]
fn tokens_without_a_text_are_named_and_never_used() {
    let mut vocab = small_vocab("gpt-2");
    for kind in [TokenType::Normal, TokenType::Control] {
        vocab.tokens.push(String::new());
        vocab.token_types.push(kind);
    }
    let first = vocab.tokens.len() - 2;
    let tokenizer = Tokenizer::from_vocab(vocab, Path::new("m.gguf")).unwrap();
    let name = format!("[EMPTY_{first}]");
    assert_eq!(tokenizer.token_id(&name), Some(first as u32));
    let ids = tokenizer.encode_raw(&name).unwrap();
    assert!(!ids.contains(&(first as u32)) && decode(&tokenizer, &ids) == name.as_bytes());
}

#[test]
fn t8_odd_texts_survive() {
    let tokenizer = small("smollm");
    let emoji = "🌸👩‍🚀e\u{301}\u{200F}".repeat((1 << 20) / 20);
    let texts = [
        "\0",
        "a\0\0b",
        "\u{301}\u{301}",
        "\u{202E}abc\u{202C}",
        "\u{FEFF}",
        "\r\n\t \u{A0}",
        &" ".repeat(1 << 20),
        &emoji,
    ];
    for text in texts {
        let ids = tokenizer.encode_raw(text).unwrap();
        assert!(
            decode(&tokenizer, &ids) == text.as_bytes(),
            "{:?}",
            text.chars().take(9).collect::<String>()
        );
    }
}

proptest! {
    #[test]
    fn t8_decode_undoes_encode(text in any::<String>(), pre in prop::sample::select(vec!["gpt-2", "smollm", "llama-bpe", "tekken"])) {
        let tokenizer = small(pre);
        prop_assert_eq!(decode(&tokenizer, &tokenizer.encode_plain(&text).unwrap()), text.as_bytes());
    }

    #[test]
    fn t15_no_control_id_from_plain_text(text in "(<|\\|>|x>|<x>|im_end|<\\|im_end\\|>|\\[INST\\]|<\\|tool\\|>| |a){0,12}") {
        let tokenizer = small("gpt-2");
        let ids = tokenizer.encode_plain(&text).unwrap();
        prop_assert!(ids.iter().all(|&id| !tokenizer.is_control(id)));
        prop_assert_eq!(decode(&tokenizer, &ids), text.as_bytes());
    }

    /// Spans around text without control tokens change nothing.
    #[test]
    fn spans_do_not_move_word_boundaries(parts in prop::collection::vec("(hello| world|12|é|\n| ){0,4}", 0..5)) {
        let tokenizer = small("smollm");
        let mut rendered = Rendered::default();
        for part in &parts {
            rendered.text.push_str("<|im_start|>he");
            let start = rendered.text.len();
            rendered.text.push_str(part);
            rendered.content_spans.push(start..rendered.text.len());
            rendered.text.push_str("llo <|im_end|>");
        }
        prop_assert_eq!(tokenizer.encode_rendered(&rendered).unwrap(), tokenizer.encode_raw(&rendered.text).unwrap());
    }
}

#[test]
fn spelling_of_bytes() {
    assert_eq!(spell(" é\n"), "ĠÃ©Ċ");
}
