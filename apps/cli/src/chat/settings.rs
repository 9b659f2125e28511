//! What `/set` can change: names, ranges, values. The ranges are those of the flags of the same name.

use std::ops::RangeInclusive;

use nelumbo::model::SamplingDefaults;

use crate::options::{self, RunOptions};
use crate::suggest;
use crate::values::{self, OutputLen, Seed};

/// How answers are made, and what of it the user has chosen.
#[derive(Debug, Clone)]
pub struct Settings {
    pub options: RunOptions,
    /// `None`: another one for each answer.
    seed: Option<u64>,
    /// What the user has chosen, so that another model does not change it.
    asked: SamplingDefaults,
    /// What suits the model.
    advice: SamplingDefaults,
}

/// One thing that can be set.
struct Setting {
    name: &'static str,
    about: &'static str,
    value: Value,
}

/// What a setting may be, how it is read and written.
enum Value {
    Float(
        RangeInclusive<f32>,
        fn(&Settings) -> f32,
        fn(&mut Settings, f32),
    ),
    Whole(
        RangeInclusive<i64>,
        fn(&Settings) -> i64,
        fn(&mut Settings, i64),
    ),
    /// With a range in words, and a parser of its own.
    Other(
        fn() -> String,
        fn(&Settings) -> String,
        fn(&mut Settings, &str) -> Result<(), String>,
    ),
}

use Value::{Float, Other, Whole};

const SETTINGS: &[Setting] = &[
    Setting {
        name: "temp",
        about: "randomness; 0 always takes the likeliest token",
        value: Float(
            values::TEMP,
            |s| s.options.sampling.temperature,
            |s, value| s.asked.temperature = Some(value),
        ),
    },
    Setting {
        name: "top-k",
        about: "keep the K likeliest tokens, 0 for all",
        value: Whole(
            values::TOP_K,
            |s| s.options.sampling.top_k as i64,
            |s, value| s.asked.top_k = Some(value as usize),
        ),
    },
    Setting {
        name: "top-p",
        about: "keep the likeliest tokens that together have this probability",
        value: Float(
            values::PROBABILITY,
            |s| s.options.sampling.top_p,
            |s, value| s.asked.top_p = Some(value),
        ),
    },
    Setting {
        name: "min-p",
        about: "drop tokens less likely than this share of the likeliest one",
        value: Float(
            values::PROBABILITY,
            |s| s.options.sampling.min_p,
            |s, value| s.asked.min_p = Some(value),
        ),
    },
    Setting {
        name: "repeat-penalty",
        about: "divide the logits of tokens seen before, 1 for no change",
        value: Float(
            values::REPEAT_PENALTY,
            |s| s.options.sampling.repeat_penalty,
            |s, value| s.asked.repeat_penalty = Some(value),
        ),
    },
    Setting {
        name: "repeat-last-n",
        about: "tokens that penalties look back, -1 for the whole context",
        value: Whole(
            values::REPEAT_LAST_N,
            |s| s.options.sampling.repeat_last_n.map_or(-1, |n| n as i64),
            |s, value| s.options.sampling.repeat_last_n = usize::try_from(value).ok(),
        ),
    },
    Setting {
        name: "presence-penalty",
        about: "subtract this from the logit of each token seen before",
        value: Float(
            values::PENALTY,
            |s| s.options.sampling.presence_penalty,
            |s, value| s.options.sampling.presence_penalty = value,
        ),
    },
    Setting {
        name: "frequency-penalty",
        about: "subtract this for each time that a token was seen before",
        value: Float(
            values::PENALTY,
            |s| s.options.sampling.frequency_penalty,
            |s, value| s.options.sampling.frequency_penalty = value,
        ),
    },
    Setting {
        name: "seed",
        about: "the same seed gives the same text; -1 for a new one each time",
        value: Other(
            || format!("-1..={}", u64::MAX),
            |s| or_minus_one(s.seed),
            |s, text| values::seed(text).map(|Seed(seed)| s.seed = seed),
        ),
    },
    Setting {
        name: "predict",
        about: "tokens of an answer at most, -1 until the model ends it",
        value: Other(
            || format!("-1, 1..={}", values::MAX_CONTEXT),
            |s| or_minus_one(s.options.max_tokens),
            |s, text| {
                let OutputLen(length) = values::output_len(text)?;
                s.options.max_tokens = length.map(|n| n as usize);
                Ok(())
            },
        ),
    },
    Setting {
        name: "ignore-eos",
        about: "go on after the model has ended its answer",
        value: Other(
            || "on, off".to_owned(),
            |s| on_off(s.options.ignore_eos).to_owned(),
            |s, text| {
                s.options.ignore_eos = match text {
                    "on" | "true" | "1" => true,
                    "off" | "false" | "0" => false,
                    _ => return Err("neither on nor off".to_owned()),
                };
                Ok(())
            },
        ),
    },
];

impl Setting {
    fn range(&self) -> String {
        match &self.value {
            Float(range, ..) => format!("{}..={}", range.start(), range.end()),
            Whole(range, ..) => format!("{}..={}", range.start(), range.end()),
            Other(range, ..) => range(),
        }
    }

    fn get(&self, settings: &Settings) -> String {
        match &self.value {
            Float(_, get, _) => get(settings).to_string(),
            Whole(_, get, _) => get(settings).to_string(),
            Other(_, get, _) => get(settings),
        }
    }

    fn set(&self, settings: &mut Settings, text: &str) -> Result<(), String> {
        match &self.value {
            Float(range, _, set) => set(settings, values::float(text, range)?),
            Whole(range, _, set) => set(settings, whole(text, range)?),
            Other(_, _, set) => set(settings, text)?,
        }
        Ok(())
    }
}

impl Settings {
    /// As the flags have it; `seed` and `asked` as far as the user gave them.
    pub fn new(options: RunOptions, seed: Option<u64>, asked: SamplingDefaults) -> Settings {
        Settings {
            options,
            seed,
            asked,
            advice: SamplingDefaults::default(),
        }
    }

    /// The options of the next answer.
    pub fn for_an_answer(&self) -> RunOptions {
        let mut options = self.options.clone();
        options.sampling.seed = self.seed.unwrap_or_else(options::draw_seed);
        options
    }

    /// Takes what suits a model where the user has chosen nothing.
    pub fn suit(&mut self, advice: &SamplingDefaults) {
        self.advice = *advice;
        options::suit(&mut self.options.sampling, &self.asked, advice);
    }

    /// Changes one setting; tells what it is now.
    pub fn set(&mut self, name: &str, value: &str) -> Result<String, String> {
        let setting = find(name)?;
        setting.set(self, value).map_err(|problem| {
            let (name, range) = (setting.name, setting.range());
            format!("/set {name}: {problem} (range {range})")
        })?;
        options::suit(&mut self.options.sampling, &self.asked, &self.advice);
        Ok(format!("{} = {}", setting.name, setting.get(self)))
    }

    /// One setting with its range.
    pub fn tell(&self, name: &str) -> Result<String, String> {
        let setting = find(name)?;
        let (value, range) = (setting.get(self), setting.range());
        Ok(format!(
            "{} = {value} (range {range}): {}",
            setting.name, setting.about
        ))
    }

    /// All settings: name, value, range, what it is.
    pub fn rows(&self) -> Vec<[String; 4]> {
        let row = |s: &Setting| {
            [
                s.name.to_owned(),
                s.get(self),
                s.range(),
                s.about.to_owned(),
            ]
        };
        SETTINGS.iter().map(row).collect()
    }
}

fn find(name: &str) -> Result<&'static Setting, String> {
    let plain = name.trim_start_matches("--").replace('_', "-");
    let plain = match plain.as_str() {
        "temperature" => "temp",
        "n-predict" | "max-tokens" => "predict",
        other => other,
    };
    SETTINGS.iter().find(|s| s.name == plain).ok_or_else(|| {
        match suggest::nearest(plain, SETTINGS.iter().map(|s| s.name)) {
            Some(near) => format!("/set: no \"{name}\"; did you mean {near}?"),
            None => format!("/set: no \"{name}\"; /set alone lists what there is"),
        }
    })
}

fn whole(text: &str, range: &RangeInclusive<i64>) -> Result<i64, String> {
    let value: i64 = text.parse().map_err(|_| "not a whole number".to_owned())?;
    if range.contains(&value) {
        Ok(value)
    } else {
        let (low, high) = (range.start(), range.end());
        Err(format!("{value} is not in {low}..={high}"))
    }
}

fn or_minus_one(value: Option<impl ToString>) -> String {
    value.map_or("-1".to_owned(), |value| value.to_string())
}

fn on_off(value: bool) -> &'static str {
    if value { "on" } else { "off" }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    pub fn settings() -> Settings {
        let cli = Cli::try_parse_from(["nelumbo", "run", "m"]).unwrap();
        let Command::Run(args) = cli.command else {
            panic!("not run")
        };
        Settings::new(
            RunOptions::new(&args).unwrap(),
            None,
            SamplingDefaults::default(),
        )
    }

    #[test]
    fn what_is_set_is_told_and_used() {
        let mut s = settings();
        for (name, value) in [
            ("temp", "0.5"),
            ("top-k", "3"),
            ("top_p", "0.25"),
            ("--min-p", "0.125"),
            ("repeat-penalty", "1.5"),
            ("repeat-last-n", "-1"),
            ("presence-penalty", "-0.5"),
            ("frequency-penalty", "2"),
            ("seed", "18446744073709551615"),
            ("max-tokens", "7"),
            ("ignore-eos", "on"),
        ] {
            let told = s.set(name, value).unwrap();
            assert!(told.ends_with(&format!("= {value}")), "{told}");
        }
        let o = s.for_an_answer();
        let sampling = o.sampling;
        assert_eq!((sampling.temperature, sampling.top_k), (0.5, 3));
        assert_eq!((sampling.top_p, sampling.min_p), (0.25, 0.125));
        assert_eq!(
            (sampling.repeat_penalty, sampling.repeat_last_n),
            (1.5, None)
        );
        assert_eq!(
            (sampling.presence_penalty, sampling.frequency_penalty),
            (-0.5, 2.0)
        );
        assert_eq!(
            (sampling.seed, o.max_tokens, o.ignore_eos),
            (u64::MAX, Some(7), true)
        );
        assert_eq!(s.rows().len(), SETTINGS.len());
    }

    #[test]
    fn a_wrong_value_changes_nothing_and_names_the_range() {
        for setting in SETTINGS {
            let mut s = settings();
            let before = setting.get(&s);
            for bad in ["x", "", "-3", "1e99"] {
                let problem = s.set(setting.name, bad).expect_err(setting.name);
                assert!(
                    problem.contains(setting.name) && problem.contains(&setting.range()),
                    "{problem}"
                );
            }
            assert_eq!(setting.get(&s), before);
            assert!(s.tell(setting.name).unwrap().contains(&setting.range()));
        }
        let problem = settings().set("tmp", "1").unwrap_err();
        assert!(problem.contains("did you mean temp"), "{problem}");
        assert!(settings().tell("zzzz").unwrap_err().contains("/set alone"));
    }

    #[test]
    fn the_advice_of_a_model_gives_way_to_the_user_and_goes_with_it() {
        let advice = SamplingDefaults {
            temperature: Some(0.2),
            top_k: Some(7),
            ..SamplingDefaults::default()
        };
        let drawn_by = |s: &Settings| (s.options.sampling.temperature, s.options.sampling.top_k);
        let mut s = settings();
        let usual = drawn_by(&s);
        s.suit(&advice);
        assert_eq!(drawn_by(&s), (0.2, 7));
        s.suit(&SamplingDefaults::default());
        assert_eq!(drawn_by(&s), usual);
        s.set("temp", "0.7").unwrap();
        s.suit(&advice);
        assert_eq!(drawn_by(&s), (0.7, 7));
    }

    #[test]
    fn without_a_seed_each_answer_has_its_own() {
        let mut s = settings();
        assert_ne!(
            s.for_an_answer().sampling.seed,
            s.for_an_answer().sampling.seed
        );
        s.set("seed", "5").unwrap();
        assert_eq!(s.for_an_answer().sampling.seed, 5);
        s.set("seed", "-1").unwrap();
        assert_eq!(
            s.tell("seed").unwrap().split(" (").next(),
            Some("seed = -1")
        );
    }
}
