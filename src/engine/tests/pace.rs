//! A long prompt beside four who decode, on devices that are formulas.

use super::*;

/// Who decodes meanwhile.
const STREAMS: usize = 4;
/// Seconds that nobody shall wait longer for the next token.
const LIMIT: f64 = 0.150;
/// Tokens of a step at most.
const MOST: usize = 512;

/// A simulated device: seconds of a step, the load and the step's number given.
type Device<'a> = &'a dyn Fn(&Load, usize) -> f64;

/// What became of a prompt.
#[derive(Debug)]
struct Outcome {
    /// Seconds between two tokens of those who decode, in order.
    gaps: Vec<f64>,
    /// Seconds to the prompt's first token.
    first_token: f64,
    /// Tokens of each step.
    chunks: Vec<usize>,
}

impl Outcome {
    /// The gap that one in a hundred exceeds.
    fn p99(&self) -> f64 {
        let mut sorted = self.gaps.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * 99).div_ceil(100) - 1]
    }
}

fn others(steps: usize) -> Load {
    let mut load = Load::default();
    (0..STREAMS).for_each(|i| load.add(100 + 10 * i + steps, 1));
    load
}

/// A prompt of `len` tokens beside the others, its chunks by `pace`, or as large as they can be.
fn prefill(len: usize, pace: Option<&mut Pace>, device: Device) -> Outcome {
    let (limited, paced) = match pace {
        Some(pace) => (pace, true),
        None => (&mut Pace::default(), false),
    };
    let mut outcome = Outcome {
        gaps: Vec::new(),
        first_token: 0.0,
        chunks: Vec::new(),
    };
    let mut position = 0;
    while position < len {
        let others = others(outcome.chunks.len());
        let most = MOST - STREAMS;
        let chunk = if paced {
            limited.prompt_tokens(LIMIT, &others, position, most)
        } else {
            most
        };
        assert!((1..=most).contains(&chunk), "{chunk} tokens");
        let chunk = chunk.min(len - position);
        let mut load = others;
        load.add(position, chunk);
        let seconds = device(&load, outcome.chunks.len());
        limited.learn(&load, seconds);
        outcome.gaps.push(seconds);
        outcome.first_token += seconds;
        outcome.chunks.push(chunk);
        position += chunk;
    }
    outcome
}

/// As an engine that has decoded for a while.
fn after_decoding(device: Device) -> Pace {
    let mut pace = Pace::default();
    let mut prompt = Load::default();
    prompt.add(0, 30);
    pace.learn(&prompt, device(&prompt, 0));
    for step in 0..50 {
        let load = others(step);
        pace.learn(&load, device(&load, step));
    }
    pace
}

fn check(name: &str, len: usize, pace: &mut Pace, device: Device, most_p99: f64) -> Outcome {
    let free = prefill(len, None, device);
    let paced = prefill(len, Some(pace), device);
    let ratio = paced.first_token / free.first_token;
    println!(
        "{name}: p99 {:.3} s of {LIMIT}, {} steps, first token {:.2} s, {ratio:.2} times {:.2} s",
        paced.p99(),
        paced.chunks.len(),
        paced.first_token,
        free.first_token,
    );
    assert!(paced.p99() <= most_p99 * LIMIT, "{name}: {}", paced.p99());
    assert!(ratio <= 2.0, "{name}: {ratio}");
    paced
}

/// Times that are a sum of a step, of tokens, and of what they attend to, like those of a CPU.
fn linear(load: &Load) -> f64 {
    0.012 + 0.003 * load.decodes as f64 + 0.0025 * load.prompt_tokens as f64
}

fn quadratic(load: &Load) -> f64 {
    linear(load) + 2e-6 * load.prompt_context as f64 + 1e-6 * load.decode_context as f64
}

/// The same in each run, 0 to 1.
fn noise(step: usize) -> f64 {
    let mut bits = (step as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits ^= bits >> 29;
    bits = bits.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits >> 40) as f64 / (1u64 << 24) as f64
}

#[test]
fn a_linear_device_is_paced_to_the_limit() {
    let device = |load: &Load, _: usize| linear(load);
    for mut pace in [Pace::default(), after_decoding(&device)] {
        let paced = check("linear", 2000, &mut pace, &device, 1.05);
        let middle = &paced.gaps[8..paced.gaps.len() - 1];
        assert!(middle.iter().all(|&g| g > 0.8 * LIMIT), "{paced:?}");
        let mut load = others(0);
        load.add(0, 50);
        let expected = pace.expected(&load).unwrap();
        assert!((expected / linear(&load) - 1.0).abs() < 0.15, "{expected}");
    }
}

#[test]
fn chunks_shrink_where_each_token_attends_to_more() {
    let device = |load: &Load, _: usize| quadratic(load);
    for mut pace in [Pace::default(), after_decoding(&device)] {
        let paced = check("quadratic", 8000, &mut pace, &device, 1.25);
        let steps = paced.chunks.len();
        let (early, late) = (paced.chunks[steps / 10], paced.chunks[steps * 9 / 10]);
        assert!(late * 2 < early, "{:?}", paced.chunks);
    }
}

#[test]
fn noise_and_outliers_of_five_times_do_not_lead_astray() {
    // one step in two hundred takes five times as long, all others up to a fifth more or less
    let device = |load: &Load, step: usize| {
        let factor = if step % 200 == 77 { 5.0 } else { 1.0 };
        quadratic(load) * factor * (0.8 + 0.4 * noise(step))
    };
    let mut pace = after_decoding(&device);
    let paced = check("noisy", 16_000, &mut pace, &device, 1.3);
    let outlier = paced.chunks.get(76..=78).unwrap();
    assert!(outlier[2] * 2 > outlier[0], "{outlier:?}");
}

#[test]
fn a_device_that_slows_down_is_followed_within_a_few_steps() {
    let device = |load: &Load, step: usize| linear(load) * if step < 20 { 1.0 } else { 3.0 };
    let mut pace = after_decoding(&|load: &Load, _: usize| linear(load));
    let paced = prefill(4000, Some(&mut pace), &device);
    println!("slower: {:.3?}", &paced.gaps[18..28]);
    let late: Vec<f64> = paced.gaps[20..].to_vec();
    let over = late.iter().filter(|&&gap| gap > 1.25 * LIMIT).count();
    assert!(over <= 3, "{over} steps over the limit: {late:?}");
    assert!(late[late.len() - 2] <= 1.25 * LIMIT, "{late:?}");

    // and when it is fast again, so are the chunks
    let mut chunks = prefill(4000, Some(&mut pace), &|load, _| linear(load)).chunks;
    chunks.pop();
    assert!(chunks[8] * 2 > chunks[chunks.len() - 1], "{chunks:?}");
    assert!(*chunks.last().unwrap() > 30, "{chunks:?}");
}

#[test]
fn before_any_measurement_chunks_begin_small_and_grow() {
    let pace = Pace::default();
    assert_eq!(pace.prompt_tokens(LIMIT, &others(0), 0, MOST), FIRST_CHUNK);
    assert_eq!(pace.prompt_tokens(LIMIT, &others(0), 0, 3), 3);
    assert_eq!(pace.expected(&others(0)), None);
    let device = |load: &Load, _: usize| linear(load) / 100.0;
    let chunks = prefill(4000, Some(&mut Pace::default()), &device).chunks;
    assert_eq!(chunks[..3], [16, 32, 64], "{chunks:?}");
    assert!(chunks.iter().any(|&n| n > 500), "{chunks:?}");
}

/// Like a GPU: while weights are read there is time for the arithmetic of 75 tokens, and from there on each
/// takes its own.
fn kinked(load: &Load) -> f64 {
    let tokens = (load.decodes + load.prompt_tokens).next_multiple_of(TILE);
    0.002 + f64::max(0.030, 4e-4 * tokens as f64) + 1e-8 * load.prompt_context as f64
}

#[test]
fn short_prompts_that_cost_nothing_do_not_make_long_ones_free() {
    let device = |load: &Load, _: usize| kinked(load);
    let mut pace = after_decoding(&device);
    prefill(4000, Some(&mut pace), &device);
    for step in 0..3000 {
        let mut load = others(step);
        if step % 3 == 0 {
            load.add(0, 2 + step % 50);
        }
        pace.learn(&load, kinked(&load));
    }
    let paced = check("kinked", 4000, &mut pace, &device, 1.05);
    let whole = &paced.gaps[..paced.gaps.len() - 1];
    assert!(whole.iter().all(|&g| g > 0.85 * LIMIT), "{paced:?}");
    // and what is free is known to be
    let mut load = others(0);
    load.add(0, 40);
    let expected = pace.expected(&load).unwrap();
    assert!((expected / kinked(&load) - 1.0).abs() < 0.1, "{expected}");
}

#[test]
fn a_prompt_goes_on_where_the_limit_is_out_of_reach() {
    // those who decode take longer than the limit by themselves
    let device = |load: &Load, _: usize| 0.2 + 0.002 * load.prompt_tokens as f64;
    let mut pace = after_decoding(&device);
    let paced = prefill(1000, Some(&mut pace), &device);
    let chunk = paced.chunks[paced.chunks.len() / 2];
    assert!((16..=28).contains(&chunk), "{:?}", paced.chunks);
    // where a token alone is dear, one has to do
    let device = |load: &Load, _: usize| 0.1 + 1.0 * load.prompt_tokens as f64;
    pace = after_decoding(&device);
    assert_eq!(pace.prompt_tokens(LIMIT, &others(0), 1000, MOST), 1);
    // times that are none are passed over
    let before = format!("{pace:?}");
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        pace.learn(&others(0), seconds);
    }
    assert_eq!(format!("{pace:?}"), before);
}

#[test]
fn a_large_fixed_cost_makes_chunks_that_are_worth_it() {
    // within the limit 40 tokens would fit; most of each step would be reading weights
    let device = |load: &Load, _: usize| {
        0.100 + 0.001 * load.decodes as f64 + 0.001 * load.prompt_tokens as f64
    };
    let mut pace = after_decoding(&device);
    let paced = prefill(4000, Some(&mut pace), &device);
    println!("fixed: p99 {:.3}, {:?}", paced.p99(), paced.chunks);
    assert!(paced.p99() < 1.3 * LIMIT);
    assert!(paced.chunks[paced.chunks.len() / 2] > 55);
}

#[test]
fn a_small_chunk_beside_many_who_decode_stays_small() {
    // 60 streams and a limit that leaves room for some twenty tokens more
    let device = |load: &Load| {
        let tiles = (load.decodes + load.prompt_tokens).next_multiple_of(TILE);
        let missing = tiles - load.decodes - load.prompt_tokens;
        let prompt = load.prompt_tokens + if load.prompt_tokens > 0 { missing } else { 0 };
        0.02 + 0.001 * load.decodes as f64 + 0.002 * prompt as f64
    };
    let mut streams = Load::default();
    (0..60).for_each(|i| streams.add(100 + i, 1));
    let mut pace = Pace::default();
    for tokens in [0, 16, 0, 24, 8, 0, 16, 24, 8, 0] {
        let load = streams.with_prompt(0, tokens);
        pace.learn(&load, device(&load));
    }
    let chunk = pace.prompt_tokens(0.12, &streams, 0, 452);
    let seconds = device(&streams.with_prompt(0, chunk));
    assert!(chunk > 8 && seconds < 1.25 * 0.12, "{chunk}: {seconds} s");
}

#[test]
fn whatever_was_measured_costs_are_numbers_and_chunks_are_possible() {
    for seed in 0..300 {
        let random = |step: usize| noise(7919 * seed + step);
        let mut pace = Pace::default();
        for step in 0..400 {
            let mut load = Load::default();
            let decodes = (random(4 * step) * 5.0) as usize;
            (0..decodes).for_each(|i| load.add(step + 30 * i, 1));
            if random(4 * step + 1) < 0.5 {
                load.add(step, 2 + (random(4 * step + 2) * 500.0) as usize);
            }
            // from a nanosecond to a quarter of an hour, without rhyme or reason
            let seconds = 10f64.powf(-9.0 + 12.0 * random(4 * step + 3));
            pace.learn(&load, seconds);
            let sane = pace.lines.iter().all(Line::is_sane);
            assert!(sane, "seed {seed}, step {step}: {pace:?}");
            let most = 1 + (random(step) * 511.0) as usize;
            let chunk = pace.prompt_tokens(LIMIT, &load, step, most);
            assert!((1..=most).contains(&chunk), "{chunk} of {most}");
        }
    }
}
