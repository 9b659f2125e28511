//! How texts are cut into words before byte-level BPE, by the name that a GGUF file gives the rule.
//!
//! A rule is a list of regular expressions. Each is applied to what the one before has left: what it
//! matches becomes a word, and so does whatever lies between two matches. The names are those that
//! converters write; the expressions are those of the families' own tokenizers.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

/// How a text is cut into words, and what goes with it.
pub(super) struct Pre {
    /// Values of `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    /// Applied one after the other.
    cuts: &'static [&'static str],
    /// A word that is a token as a whole is taken as that, without going through the merges.
    pub(super) ignore_merges: bool,
    /// The text is brought to Unicode's composed form first.
    pub(super) nfc: bool,
    /// A BOS token comes first where the file does not say.
    pub(super) add_bos: bool,
}

/// GPT-2's rule.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// GPT-4's rule with up to three digits in a word, as in Llama 3.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with every digit on its own, as in Qwen 2.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with all digits together, for rules that have cut them before.
const ALL_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5: marks belong to their letters.
const WITH_MARKS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2's without English endings.
const NO_ENDINGS: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3's with runs of blanks cut into powers of two, as in Jais 2. What follows a blank that was cut off is
/// not looked through for breaks again: there were none.
const BLANKS_BY_POWERS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|(?<![^\S\r\n])\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Words are cut where upper case follows lower case; every digit on its own; as in Mistral's Tekken.
const CASED: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with English endings and up to three digits, as in GPT-4o and Llama 4.
const CASED_THREE_DIGITS: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// And with every digit on its own, as in Youtu.
const CASED_ONE_DIGIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// One mark of ASCII before Latin letters, marks with their letters, as in DeepSeek V3.
const MARKED: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
/// Ideographs and Japanese syllables.
const CJK: &str = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+";
/// What DeepSeek's first models hold together after Latin letters and marks: most of what is written
/// without blanks.
const DEEPSEEK_CJK: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";
/// Letters with two cases, as DeepSeek's first models list them.
const DEEPSEEK_LATIN: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}",
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}",
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}",
    r"\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}",
    r"\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);
/// Marks of ASCII, their wide forms, and Chinese ones, of the same models.
const DEEPSEEK_MARKS: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
/// Their `\s+$`, which would read a run of blanks as often as it is long where something follows.
const BLANKS_AT_END: &str = r"(?<!\s)\s+$";
/// Cuts wherever the digits up to the last of their run are a multiple of three: `(?=(\d{3})+(?!\d))`, which
/// would read a run as often as it is long. Here each match goes from one cut to the next: all before the
/// first one, then three digits and what is not cut behind them.
const THREES_FROM_THE_END: &str = concat!(
    r"\A(?=\D|\d{1,2}(?:\d{3})*(?!\d))(?:\D|(?<!\d)\d{1,2}(?!\d))*+(?:\d{1,2}(?=(?:\d{3})+(?!\d)))?",
    r"|\d{3}(?:(?!\d)(?:\D|(?<!\d)\d{1,2}(?!\d))*+(?:\d{1,2}(?=(?:\d{3})+(?!\d)))?)?",
);
/// Everything between marks of a sentence, as in BLOOM.
const BLOOM: &str = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+";
/// Marks and what programs use as such, as in Falcon.
const MARKS: &str = r"[\p{P}\$\+<=>\^~\|`]+";
/// A rule of the time before files named one.
const OLD_MARKS: &str = r"[\p{P}\$\+<=>\^~\|]+";
/// Lines and the breaks between them.
const LINES: &str = r"[^\n]+|[\n]+";

const fn pre(names: &'static [&'static str], cuts: &'static [&'static str]) -> Pre {
    Pre {
        names,
        cuts,
        ignore_merges: false,
        nfc: false,
        add_bos: false,
    }
}

impl Pre {
    const fn whole_words(self) -> Pre {
        Pre {
            ignore_merges: true,
            ..self
        }
    }

    const fn composed(self) -> Pre {
        Pre { nfc: true, ..self }
    }

    const fn with_bos(self) -> Pre {
        Pre {
            add_bos: true,
            ..self
        }
    }
}

/// Every pre-tokenizer that is known by name. One line makes another one known.
#[rustfmt::skip]
static TABLE: &[Pre] = &[
    pre(&["default"], &[OLD_MARKS, GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    pre(&["gpt-2", "gpt2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling", "gigachat",
        "a.x-4.0", "mellum", "modern-bert", "exaone4", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de",
        "jina-v1-en", "jina-v2-code", "roberta-bpe"], &[GPT2]),
    pre(&["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2]),
    pre(&["command-r"], &[r"\p{N}", GPT2]).composed(),
    pre(&["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"],
        &[THREE_DIGITS]).whole_words().with_bos(),
    pre(&["dbrx", "smaug-bpe", "chatglm-bpe", "glm4"], &[THREE_DIGITS]),
    pre(&["minicpm5"], &[r"\p{N}{1,3}", ALL_DIGITS]).whole_words(),
    pre(&["jais-2"], &[BLANKS_BY_POWERS]),
    pre(&["qwen2"], &[ONE_DIGIT]).composed(),
    pre(&["deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2"], &[ONE_DIGIT]),
    pre(&["qwen35"], &[WITH_MARKS]).composed(),
    pre(&["ufakzeka"], &[NO_ENDINGS]),
    pre(&["laguna"], &[LINES, ONE_DIGIT]),
    pre(&["bailingmoe", "bailingmoe2", "llada-moe"], &[
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"]),
    pre(&["seed-coder"], &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"]),
    pre(&["exaone-moe"], &[
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"]),
    pre(&["tekken"], &[CASED]).whole_words().with_bos(),
    pre(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[CASED_THREE_DIGITS]),
    pre(&["tiny_aya", "cohere2moe"], &[r"(?<!\d)\d++\b", r"\A\d{1,2}(?=(?:\d{3})+\z)", CASED_THREE_DIGITS]),
    pre(&["youtu"], &[
        r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
        CASED_ONE_DIGIT]).whole_words(),
    pre(&["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LATIN, DEEPSEEK_MARKS, BLANKS_AT_END, DEEPSEEK_CJK, r"\p{N}+"]),
    pre(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"]),
    pre(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[r"\p{N}{1,3}", CJK, MARKED]),
    pre(&["falcon"], &[MARKS, GPT2, "[0-9][0-9][0-9]"]),
    pre(&["poro-chat", "bloom", "gpt3-finnish"], &[BLOOM]),
    pre(&["viking"], &[BLOOM, r"\p{N}"]),
    pre(&["superbpe"], &[r"\p{N}+", THREES_FROM_THE_END]),
    pre(&["chameleon"], &["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT2]).with_bos(),
];

/// The rule of a name.
pub(super) fn find(name: &str) -> Option<&'static Pre> {
    TABLE.iter().find(|pre| pre.names.contains(&name))
}

/// Every rule, in the order of the table.
pub(super) fn all() -> impl Iterator<Item = &'static Pre> {
    TABLE.iter()
}

/// All names, comma separated.
pub(super) fn supported() -> String {
    let names: Vec<&str> = TABLE.iter().flat_map(|pre| pre.names).copied().collect();
    names.join(", ")
}

impl Pre {
    /// The name that it goes by most.
    pub(super) fn name(&self) -> &'static str {
        self.names[0]
    }

    /// The cuts, and after them the bytes in their alphabet.
    pub(super) fn pre_tokenizer(&self) -> PreTokenizerWrapper {
        let split = |rule: &&str| -> PreTokenizerWrapper {
            let pattern = SplitPattern::Regex((*rule).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            split
                .expect("the table holds valid expressions only")
                .into()
        };
        let mut steps: Vec<PreTokenizerWrapper> = self.cuts.iter().map(split).collect();
        steps.push(ByteLevel::new(false, false, false).into());
        Sequence::new(steps).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    /// The words that a text is cut into.
    fn cut<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
        words(find(name).unwrap_or_else(|| panic!("{name}")), text)
    }

    fn words<'a>(rule: &Pre, text: &'a str) -> Vec<&'a str> {
        let mut pieces = PreTokenizedString::from(text);
        rule.pre_tokenizer().pre_tokenize(&mut pieces).unwrap();
        pieces
            .get_splits(OffsetReferential::Original, OffsetType::Byte)
            .iter()
            .map(|(_, (start, end), _)| &text[*start..*end])
            .collect()
    }

    #[test]
    fn names_are_unique_and_every_rule_keeps_the_text() {
        let mut seen = std::collections::BTreeSet::new();
        let text = "Hello's WORLD camelCase 1234567 ½x\t\n\r\n  été 東京タワー한국어 ไทย हिन्दी 🌸👩‍🚀!?(a).b   ";
        for pre in TABLE {
            for name in pre.names {
                assert!(seen.insert(name), "{name} stands there twice");
                assert_eq!(cut(name, text).concat(), text, "{name}");
            }
        }
        assert!(seen.len() > 60);
    }

    #[test]
    fn digits_are_cut_as_the_families_do() {
        for (name, words) in [
            ("gpt-2", vec!["1234567"]),
            ("default", vec!["123", "456", "7"]),
            ("falcon", vec!["123", "456", "7"]),
            ("llama-bpe", vec!["123", "456", "7"]),
            ("deepseek-v3", vec!["123", "456", "7"]),
            ("gpt-4o", vec!["123", "456", "7"]),
            ("minicpm5", vec!["123", "456", "7"]),
            ("tiny_aya", vec!["1", "234", "567"]),
            ("superbpe", vec!["1", "234", "567"]),
            ("deepseek-llm", vec!["1234567"]),
            ("poro-chat", vec!["1234567"]),
        ] {
            assert_eq!(cut(name, "1234567"), words, "{name}");
        }
        for name in [
            "smollm",
            "starcoder",
            "command-r",
            "qwen2",
            "qwen35",
            "tekken",
            "youtu",
            "viking",
            "deepseek-coder",
            "bailingmoe",
            "seed-coder",
            "exaone-moe",
            "laguna",
            "chameleon",
        ] {
            assert_eq!(cut(name, "123"), ["1", "2", "3"], "{name}");
        }
    }

    /// The words by expressions that are not in the table.
    fn cut_by<'a>(cuts: &'static [&'static str], text: &'a str) -> Vec<&'a str> {
        words(&pre(&[], cuts), text)
    }

    #[test]
    fn rules_written_in_another_way_cut_alike() {
        let as_published: [(&str, &'static [&'static str]); 4] = [
            (
                "deepseek-llm",
                &[
                    r"[\r\n]",
                    DEEPSEEK_LATIN,
                    DEEPSEEK_MARKS,
                    r"\s+$",
                    DEEPSEEK_CJK,
                    r"\p{N}+",
                ],
            ),
            (
                "tiny_aya",
                &[r"\d{1,3}(?=(?:\d{3})*\b)", CASED_THREE_DIGITS],
            ),
            ("superbpe", &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
            (
                "jais-2",
                &[
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
                ],
            ),
        ];
        let parts = [
            "1", "2", "34", "567", "8901", "½", "²", "٣", "x", "É", "世", "_", "!", " ", "   ",
            "\n", "\r\n", "\t", "\u{a0}", "\u{301}", "'s",
        ];
        let mut state = 7u64;
        for _ in 0..4000 {
            let mut text = String::new();
            for _ in 0..state % 12 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                text.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15).rotate_left(7);
            for (name, cuts) in &as_published {
                assert_eq!(cut(name, &text), cut_by(cuts, &text), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn no_rule_reads_a_run_as_often_as_it_is_long() {
        let runs = ["1", " ", "a", "A", "世", "!", "\n", "\u{301}", "😀", " \t"];
        for pre in TABLE {
            for run in runs {
                let text = run.repeat(40_000) + "世x";
                let start = std::time::Instant::now();
                assert_eq!(words(pre, &text).concat(), text, "{}", pre.name());
                // a run that is read again for every part takes tens of seconds
                let seconds = start.elapsed().as_secs_f64();
                assert!(seconds < 2.5, "{}, {run:?}: {seconds} s", pre.name());
            }
        }
    }

    #[test]
    fn words_and_blanks_are_cut_as_the_families_do() {
        assert_eq!(
            cut("gpt-4o", "aCamelCase isn't"),
            ["a", "Camel", "Case", " isn't"]
        );
        assert_eq!(
            cut("tekken", "aCamelCase isn't"),
            ["a", "Camel", "Case", " isn", "'t"]
        );
        assert_eq!(
            cut("llama-bpe", "aCamel isn'T it"),
            ["aCamel", " isn", "'T", " it"]
        );
        assert_eq!(cut("gpt-2", "isn'T"), ["isn", "'", "T"]);
        assert_eq!(cut("ufakzeka", "it's"), ["it", "'s"]);
        assert_eq!(
            cut("deepseek-v3", "don't 東京 tower"),
            ["don", "'t", " ", "東京", " tower"]
        );
        assert_eq!(
            cut("deepseek-llm", "Hello, 世界\nφβ\u{10D0}  "),
            ["Hello", ",", " ", "世界", "\n", "φβ", "\u{10D0}", "  "]
        );
        assert_eq!(cut("deepseek-coder", "a_b c"), ["a", "_", "b", " c"]);
        assert_eq!(cut("qwen35", "हिन्दी x"), ["हिन्दी", " x"]);
        assert_eq!(cut("qwen2", "ab\u{93F}c"), ["ab", "\u{93F}c"]);
        assert_eq!(cut("falcon", "a$b"), ["a", "$", "b"]);
        assert_eq!(
            cut("viking", "yksi, 12 kaksi"),
            ["yksi", ",", " ", "1", "2", " kaksi"]
        );
        assert_eq!(cut("bailingmoe", "a!\n\nb"), ["a", "!\n\n", "b"]);
        assert_eq!(cut("seed-coder", "x;\n\ny"), ["x", ";", "\n\n", "y"]);
        assert_eq!(cut("qwen2", "x;\n\ny"), ["x", ";\n\n", "y"]);
        assert_eq!(cut("jais-2", "a       b"), ["a", "    ", "  ", " b"]);
        assert_eq!(cut("laguna", "a \n b"), ["a", " ", "\n", " b"]);
        assert_eq!(cut("exaone-moe", "one two 3"), ["one two", " ", "3"]);
        assert_eq!(cut("youtu", "한국 東京 Ab"), ["한국", " ", "東京", " Ab"]);
    }
}
