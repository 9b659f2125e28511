//! What the names of model files tell: parts of a whole, quantisations.

/// Parts of one model; the library opens no more either.
const MAX_PARTS: u32 = 1_000;

/// Weights, and not what goes with them.
pub fn is_gguf_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let lower = name.to_ascii_lowercase();
    lower.ends_with(".gguf") && !lower.contains("mmproj") && !lower.contains("imatrix.gguf")
}

/// `a/m-00002-of-00003.gguf` as `a/m` and 3.
pub fn part_of(file: &str) -> Option<(&str, u32)> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let all = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        all.then(|| text.parse().ok()).flatten()
    };
    let (number, count): (u32, u32) = (digits(number)?, digits(count)?);
    let is_part = count <= MAX_PARTS && (1..=count).contains(&number);
    is_part.then_some((stem, count))
}

/// The reverse of [`part_of`]: the name of one of the parts.
pub fn part(stem: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// Whether `word` stands in `path` between separators, in any case. `_` joins: `Q4_K` is no word of
/// `Q4_K_M`.
pub fn has_word(path: &str, word: &str) -> bool {
    let (path, word) = (path.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_joined = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    path.match_indices(&word).any(|(at, _)| {
        let (before, after) = (&path[..at], &path[at + word.len()..]);
        !is_joined(before.chars().next_back()) && !is_joined(after.chars().next())
    })
}

/// The last word of a file's name, or else of its folder's, that looks like a quantisation.
pub fn quant_word(file: &str) -> Option<&str> {
    let stem = part_of(file).map_or_else(|| file.trim_end_matches(".gguf"), |(stem, _)| stem);
    stem.split(['-', '.', '/']).rfind(|word| {
        let upper = word.to_ascii_uppercase();
        let digits = ["IQ", "TQ", "Q"]
            .iter()
            .find_map(|head| upper.strip_prefix(head));
        digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            || ["F16", "F32", "BF16", "FP16", "MXFP4"].contains(&upper.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_so_many() {
        for (stem, number, count) in [("m", 1, 1), ("a/m-x", 2, 3), ("m", 1_000, 1_000)] {
            let file = part(stem, number, count);
            assert_eq!(part_of(&file), Some((stem, count)), "{file}");
        }
        for file in [
            "m.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-0001-of-0003.gguf",
            "m-00001-of-01001.gguf",
            "m-00001-of-00003.bin",
        ] {
            assert_eq!(part_of(file), None, "{file}");
        }
    }

    #[test]
    fn a_quantisation_is_a_word_of_the_name() {
        for (file, quant) in [
            ("m-Q4_K_M.gguf", Some("Q4_K_M")),
            ("m.iq2_xs.gguf", Some("iq2_xs")),
            ("Q2_K/m-00001-of-00003.gguf", Some("Q2_K")),
            ("m-7b-f16.gguf", Some("f16")),
            ("Qwen-7b.gguf", None),
        ] {
            assert_eq!(quant_word(file), quant, "{file}");
        }
        assert!(has_word("m-Q4_K_M.gguf", "q4_k_m"));
        assert!(!has_word("m-Q4_K_M.gguf", "Q4_K"));
    }

    #[test]
    fn what_goes_with_weights_is_none() {
        assert!(is_gguf_model("sub/m.GGUF"));
        for file in ["mmproj-m.gguf", "m.imatrix.gguf", "m.bin"] {
            assert!(!is_gguf_model(file), "{file}");
        }
    }
}
