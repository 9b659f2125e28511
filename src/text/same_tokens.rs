//! Whether the tokens of one model are those of another: what one of them proposes, the other verifies.

use super::tokenizer::Tokenizer;
use crate::error::{Error, Result};
use std::path::Path;

/// Whether a token of `draft` is the same in `target`, each with the file that it comes from. All that both
/// have are compared, and the tokens that begin and end a text, where both name one: some files leave that to
/// others. What one of them has beyond may only be padding: rows of a matrix without a token, that some files give names such as `[PAD7]`.
///
/// # Errors
/// [`Error::Request`] for the first token that differs, naming both files.
pub fn same_tokens(target: (&Path, &Tokenizer), draft: (&Path, &Tokenizer)) -> Result<()> {
    let ((target_path, target), (draft_path, draft)) = (target, draft);
    let differs = |what: String, found: &str, expected: &str| {
        let (own, other) = (draft_path.display(), target_path.display());
        let problem = format!(
            "{own}: {what} is {found}, but {expected} in {other}: a draft needs the tokens of the model that it \
             drafts for"
        );
        Err(Error::request("--draft-model", problem))
    };
    let (of_target, of_draft) = (target.vocab_size(), draft.vocab_size());
    let most = u32::try_from(of_target.max(of_draft)).expect("the vocabulary's size is limited");
    for id in 0..most {
        let (found, expected) = (Told::of(draft, id), Told::of(target, id));
        let is_same = match (&found, &expected) {
            (Some(one), None) | (None, Some(one)) => one.is_padding(id),
            (found, expected) => found == expected,
        };
        if !is_same {
            let told = |told: &Option<Told>, count: usize| match told {
                Some(token) => token.text(),
                None => format!("none of its {count} tokens"),
            };
            let (found, expected) = (told(&found, of_draft), told(&expected, of_target));
            return differs(format!("token {id}"), &found, &expected);
        }
    }
    let ends = [
        ("BOS", draft.bos(), target.bos()),
        ("EOS", draft.eos(), target.eos()),
    ];
    for (name, found, expected) in ends {
        let (Some(found), Some(expected)) = (found, expected) else {
            continue;
        };
        if found != expected {
            let told = |id: u32| format!("token {id}");
            return differs(format!("{name} token"), &told(found), &told(expected));
        }
    }
    Ok(())
}

/// What a token is.
#[derive(PartialEq, Eq)]
struct Told<'a> {
    bytes: &'a [u8],
    /// Of a control token, which stands for no bytes.
    name: Option<String>,
}

impl Told<'_> {
    /// `None` beyond the vocabulary.
    fn of(tokenizer: &Tokenizer, id: u32) -> Option<Told<'_>> {
        ((id as usize) < tokenizer.vocab_size()).then(|| Told {
            bytes: tokenizer.token_bytes(id),
            name: tokenizer.is_control(id).then(|| tokenizer.token_text(id)),
        })
    }

    /// Whether it is there for the number of rows alone.
    fn is_padding(&self, id: u32) -> bool {
        let name = self
            .name
            .as_ref()
            .map_or(self.bytes, |name| name.as_bytes());
        ["PAD", "EMPTY_"]
            .iter()
            .any(|kind| name == format!("[{kind}{id}]").as_bytes())
    }

    /// For people.
    fn text(&self) -> String {
        match &self.name {
            Some(name) => format!("the control token {name:?}"),
            None => format!("{:?}", String::from_utf8_lossy(self.bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{TokenType, Vocab};

    const TARGET: &str = "large.gguf";
    const DRAFT: &str = "small.gguf";

    /// The first two are control tokens, and begin and end a text.
    fn tokenizer(tokens: &[&str]) -> Tokenizer {
        between(tokens, Some(0), Some(1))
    }

    fn between(tokens: &[&str], bos: Option<u32>, eos: Option<u32>) -> Tokenizer {
        let kind = |(id, token): (usize, &&str)| match id {
            0 | 1 => TokenType::Control,
            _ if token.starts_with("[PAD") => TokenType::Unused,
            _ => TokenType::Normal,
        };
        let vocab = Vocab {
            pre: "default".to_owned(),
            tokens: tokens.iter().map(|&token| token.to_owned()).collect(),
            token_types: tokens.iter().enumerate().map(kind).collect(),
            bos,
            eos,
            ..Vocab::default()
        };
        Tokenizer::from_vocab(vocab, Path::new("x.gguf")).unwrap()
    }

    fn compare(target: &Tokenizer, draft: &Tokenizer) -> Result<(), String> {
        let named = |name, tokenizer| (Path::new(name), tokenizer);
        same_tokens(named(TARGET, target), named(DRAFT, draft)).map_err(|e| e.to_string())
    }

    #[test]
    fn equal_tokens_and_padding_are_the_same() {
        let plain = tokenizer(&["<s>", "</s>", "a", "b"]);
        let padded = tokenizer(&["<s>", "</s>", "a", "b", "[PAD4]", "[PAD5]"]);
        for (target, draft) in [(&plain, &plain), (&plain, &padded), (&padded, &plain)] {
            assert_eq!(compare(target, draft), Ok(()));
        }
    }

    #[test]
    fn the_first_difference_is_told_with_both_files() {
        let target = tokenizer(&["<s>", "</s>", "a", "b", "c"]);
        let other = |tokens: &[&str], says: &str| {
            for (one, two) in [(DRAFT, TARGET), (TARGET, DRAFT)] {
                let draft = tokenizer(tokens);
                let error = match one == DRAFT {
                    true => compare(&target, &draft),
                    false => compare(&draft, &target),
                };
                let error = error.unwrap_err();
                assert!(error.contains(says), "{error}");
                assert!(error.contains(one) && error.contains(two), "{error}");
            }
        };
        other(&["<s>", "</s>", "a", "B", "C"], "token 3 is \"");
        other(
            &["<s>", "<e>", "a", "b", "c"],
            "token 1 is the control token \"<",
        );
        other(&["<s>", "</s>", "a", "b"], "token 4 is ");
        other(&["<s>", "</s>", "a", "b", "c", "d"], "token 5 is ");
        // padding goes by its own number
        other(&["<s>", "</s>", "a", "b", "c", "[PAD7]"], "token 5 is ");
        let error = compare(&target, &tokenizer(&["<s>", "</s>", "a"])).unwrap_err();
        assert!(
            error.contains("token 3 is none of its 3 tokens, but \"b\" in large.gguf"),
            "{error}"
        );
    }

    #[test]
    fn what_begins_and_ends_a_text_counts() {
        let tokens = ["<s>", "</s>", "a", "b"];
        let target = tokenizer(&tokens);
        let draft = between(&tokens, Some(0), Some(0));
        let error = compare(&target, &draft).unwrap_err();
        assert!(
            error.contains("EOS token is token 0, but token 1 in"),
            "{error}"
        );
        let draft = between(&tokens, Some(1), Some(1));
        let error = compare(&target, &draft).unwrap_err();
        assert!(
            error.contains("BOS token is token 1, but token 0 in"),
            "{error}"
        );
        // who does not say does not contradict
        let draft = between(&tokens, None, None);
        assert_eq!(compare(&target, &draft), Ok(()));
        // text in one, a control token in the other
        let draft = between(&tokens, Some(0), Some(3));
        let error = compare(&target, &draft).unwrap_err();
        let says = "token 3 is the control token \"b\", but \"b\" in";
        assert!(error.contains(says), "{error}");
    }
}
