//! "Did you mean": the known name that is nearest to one that is not known.

/// As similar as clap wants it for its own suggestions.
const NEAR: f64 = 0.7;

/// The most similar of `known`, if any is similar at all.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let scored = known
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&word, name), name));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 > NEAR).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_nonsense_none() {
        let known = ["clear", "regen", "exit", "ctx-size"];
        assert_eq!(nearest("claer", known), Some("clear"));
        assert_eq!(nearest("CTX_SIZE", known), Some("ctx-size"));
        assert_eq!(nearest("zzz", known), None);
        assert_eq!(nearest("x", []), None);
    }
}
