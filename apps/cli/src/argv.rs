//! Spellings that clap cannot take: long options behind a single dash.
//!
//! Other tools of this field write `-ctk f16` or `-ngl 99`. clap would read these as a
//! bundle of one-letter flags, so they are rewritten before it sees the arguments.

use std::ffi::OsString;

/// Single-dash spelling and the long option it stands for.
const ALIASES: &[(&str, &str)] = &[
    ("-cl", "--cache-list"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-dev", "--device"),
    ("-hf", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hfr", "--hf-repo"),
    ("-hft", "--hf-token"),
    ("-ngl", "--gpu-layers"),
    ("-np", "--parallel"),
    ("-sys", "--system"),
];

/// Options whose value is free text: the argument after them is never an option.
const TEXT_OPTIONS: &[&str] = &[
    "-p",
    "--prompt",
    "-sys",
    "--system",
    "-r",
    "--reverse-prompt",
    "--stop",
];

/// Rewrites the aliases, leaving values and everything after `--` alone.
pub fn normalise(argv: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut out = Vec::new();
    let mut is_value = false;
    let mut only_positionals = false;
    for arg in argv {
        if is_value || only_positionals {
            is_value = false;
            out.push(arg);
            continue;
        }
        only_positionals = arg == "--";
        is_value = TEXT_OPTIONS.iter().any(|option| arg == *option);
        out.push(long_form(&arg).unwrap_or(arg));
    }
    // without a subcommand it is one
    if let Some(first) = out.get_mut(1)
        && *first == "--cache-list"
    {
        *first = "ls".into();
    }
    out
}

/// `-ctk` as `--cache-type-k`, `-ctk=f32` as `--cache-type-k=f32`; `None` for anything else.
fn long_form(arg: &OsString) -> Option<OsString> {
    let text = arg.to_str()?;
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let (_, long) = ALIASES.iter().find(|(alias, _)| *alias == name)?;
    Some(match value {
        Some(value) => format!("{long}={value}").into(),
        None => OsString::from(long),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        normalise(line.split(' ').map(OsString::from))
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect()
    }

    #[test]
    fn aliases_become_long_options() {
        assert_eq!(
            words("nelumbo run m -ctk f32 -ctv=f16 -ngl 99 -sys be-brief"),
            words(
                "nelumbo run m --cache-type-k f32 --cache-type-v=f16 --gpu-layers 99 --system be-brief"
            ),
        );
    }

    #[test]
    fn the_list_of_models_needs_no_subcommand() {
        for flag in ["-cl", "--cache-list"] {
            assert_eq!(
                words(&format!("nelumbo {flag} -q")),
                ["nelumbo", "ls", "-q"]
            );
        }
        assert_eq!(words("nelumbo run -cl")[2], "--cache-list");
    }

    #[test]
    fn values_and_positionals_stay() {
        assert_eq!(words("nelumbo run -p -ngl")[3], "-ngl");
        assert_eq!(words("nelumbo run m -- -ctk")[4], "-ctk");
        assert_eq!(
            words("nelumbo run m -sys -ctk"),
            ["nelumbo", "run", "m", "--system", "-ctk"]
        );
        assert_eq!(words("nelumbo run -c 12 -ngl=1")[4], "--gpu-layers=1");
    }

    #[cfg(unix)]
    #[test]
    fn bytes_that_are_no_text_pass_through() {
        use std::os::unix::ffi::OsStringExt;
        let odd = OsString::from_vec(vec![b'-', 0xff]);
        assert_eq!(normalise([odd.clone()]), [odd]);
    }
}
