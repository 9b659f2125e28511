//! Values with a shape or a range of their own, parsed where clap or the conversation reads them.

use std::ops::RangeInclusive;

use nelumbo::model::MemoryLimit;

/// The longest context that a flag may ask for, in tokens.
pub const MAX_CONTEXT: i64 = 16_777_216;

/// `--temp`.
pub const TEMP: RangeInclusive<f32> = 0.0..=100.0;
/// `--top-k`.
pub const TOP_K: RangeInclusive<i64> = 0..=1_048_576;
/// `--top-p` and `--min-p`.
pub const PROBABILITY: RangeInclusive<f32> = 0.0..=1.0;
/// `--repeat-penalty`, which divides.
pub const REPEAT_PENALTY: RangeInclusive<f32> = 0.01..=100.0;
/// `--repeat-last-n`; -1 for the whole context.
pub const REPEAT_LAST_N: RangeInclusive<i64> = -1..=u32::MAX as i64;
/// `--presence-penalty` and `--frequency-penalty`, which are subtracted.
pub const PENALTY: RangeInclusive<f32> = -2.0..=2.0;

/// `--predict`: `None` until the model ends or the context is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLen(pub Option<u32>);

/// `--seed`: `None` for one drawn at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

/// `--logit-bias`: what is added to one token's logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bias {
    /// Token id; checked against the vocabulary once the model is known.
    pub token_id: u32,
    /// -100 (never) to 100 (always).
    pub bias: f32,
}

/// The largest bias: more decides nothing that this does not.
const MAX_BIAS: f32 = 100.0;

/// A number within a range, which is finite since the range is.
pub fn float(text: &str, range: &RangeInclusive<f32>) -> Result<f32, String> {
    let value: f32 = text.trim().parse().map_err(|_| "not a number".to_owned())?;
    if range.contains(&value) {
        Ok(value)
    } else {
        let (low, high) = (range.start(), range.end());
        Err(format!("{value} is not in {low}..={high}"))
    }
}

/// -1, or a number of tokens.
pub fn output_len(text: &str) -> Result<OutputLen, String> {
    let value: i64 = text.parse().map_err(|_| "not a whole number".to_owned())?;
    match value {
        -1 => Ok(OutputLen(None)),
        1..=MAX_CONTEXT => Ok(OutputLen(Some(value as u32))),
        _ => Err(format!("{value} is neither -1 nor in 1..={MAX_CONTEXT}")),
    }
}

/// -1, or any 64-bit number.
pub fn seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed(None));
    }
    let value = text
        .parse()
        .map_err(|_| format!("neither -1 nor in 0..={}", u64::MAX))?;
    Ok(Seed(Some(value)))
}

/// `6GiB`, `800MiB`, `80%`.
pub fn gpu_memory(text: &str) -> Result<MemoryLimit, String> {
    text.parse()
}

/// `15043+1.5`, `15043-1.5`, `15043=-1.5`, `15043-inf`.
pub fn bias(text: &str) -> Result<Bias, String> {
    let split = text
        .find(['+', '-', '='])
        .ok_or("expected ID+BIAS, ID-BIAS or ID=BIAS")?;
    let token_id = text[..split]
        .parse()
        .map_err(|_| format!("\"{}\" is not a token id", &text[..split]))?;
    let number = text[split..].trim_start_matches('=');
    let value: f32 = number
        .parse()
        .map_err(|_| format!("\"{number}\" is not a number"))?;
    if value.is_nan() || (value.is_finite() && value.abs() > MAX_BIAS) {
        return Err(format!("bias {value} is not in -{MAX_BIAS}..={MAX_BIAS}"));
    }
    Ok(Bias {
        token_id,
        bias: value.clamp(-MAX_BIAS, MAX_BIAS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_range() {
        assert_eq!(float("0.5", &PROBABILITY), Ok(0.5));
        for bad in ["1.5", "-0.1", "NaN", "inf", "12GBx", ""] {
            assert!(float(bad, &PROBABILITY).is_err(), "{bad}");
        }
        assert_eq!(output_len("-1"), Ok(OutputLen(None)));
        assert_eq!(output_len("7"), Ok(OutputLen(Some(7))));
        for bad in [
            "0",
            "-2",
            "16777217",
            "1000000000000",
            "7x",
            "99999999999999999999",
        ] {
            assert!(output_len(bad).is_err(), "{bad}");
        }
        assert_eq!(seed("-1"), Ok(Seed(None)));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        assert!(seed("-2").is_err() && seed("18446744073709551616").is_err());
    }

    #[test]
    fn biases_in_every_spelling() {
        let of = |token_id, bias| Ok(Bias { token_id, bias });
        assert_eq!(bias("15043+1.5"), of(15043, 1.5));
        assert_eq!(bias("15043-1.5"), of(15043, -1.5));
        assert_eq!(bias("15043=-1.5"), of(15043, -1.5));
        assert_eq!(bias("0=100"), of(0, 100.0));
        assert_eq!(bias("7-inf"), of(7, -100.0));
        for bad in [
            "15043",
            "x+1",
            "+1",
            "1+",
            "1+x",
            "1=101",
            "1+nan",
            "-5+1",
            "99999999999+1",
        ] {
            assert!(bias(bad).is_err(), "{bad}");
        }
    }
}
