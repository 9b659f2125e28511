//! Many users on a clock that is a number: what pages are worth, and what the pacer is.

use super::*;
use crate::engine::pace::Load;
use crate::kernels::peaks::Peaks;
use crate::model::roofline::{KvForm, ModelShape, Roofline, WeightForm};
use crate::model::shapes::BuiltIn;
use crate::model::synthetic;

/// Like a large GPU with a model of 8 billion weights in 8 bits: 8 ms to read the weights, a little for each
/// token, and for each that it attends to.
fn gpu(chunks: &[Chunk]) -> f64 {
    let load = Load::of(chunks);
    0.008
        + 3e-5 * load.decodes as f64
        + 2.5e-8 * load.decode_context as f64
        + 5e-5 * load.prompt_tokens as f64
        + 5e-9 * load.prompt_context as f64
}

/// Like a small model on a few cores: every token costs.
fn cpu(chunks: &[Chunk]) -> f64 {
    let load = Load::of(chunks);
    0.004
        + 1.5e-3 * load.decodes as f64
        + 1e-6 * load.decode_context as f64
        + 1.2e-3 * load.prompt_tokens as f64
        + 3e-7 * load.prompt_context as f64
}

/// Conversations and documents: half of the prompts under 300 tokens, one in twenty over 2,000.
fn mixed(requests: usize, rate: Option<f64>) -> Workload {
    Workload {
        requests,
        rate,
        prompt: "lognormal:300:1.2".parse().unwrap(),
        output: "lognormal:150:0.8".parse().unwrap(),
        longest: 4096,
        seed: 1,
    }
}

fn setup() -> Setup {
    Setup {
        max_batched_tokens: 2048,
        max_running: 256,
        max_model_len: 4096,
        pool_tokens: 1 << 17,
        chunking: Chunking::Whole,
        watched: false,
        memory: Memory::Paged { prefix_cache: true },
    }
}

fn run(setup: &Setup, arrivals: &[Arrival], cost: &dyn StepCost) -> Outcome {
    simulate(setup, &synthetic::tiny(), arrivals, cost).unwrap()
}

#[test]
fn ten_thousand_requests_end_once_each_and_the_same_way_each_time() {
    let arrivals = mixed(10_000, Some(20.0)).arrivals().unwrap();
    // room for a twentieth of what could run, so that many are preempted
    let tight = Setup {
        pool_tokens: 16_384,
        ..setup()
    };
    let outcome = run(&tight, &arrivals, &gpu);
    assert_eq!((outcome.served.len(), outcome.refused), (10_000, 0));
    assert!(outcome.preemptions > 100, "{}", outcome.preemptions);
    let wanted: usize = arrivals.iter().map(|a| a.output_tokens).sum();
    let drawn: usize = outcome.served.iter().map(|s| s.tokens).sum();
    assert_eq!(drawn, wanted);
    assert_eq!(outcome.gaps.len(), drawn - 10_000);
    for served in &outcome.served {
        assert!(served.arrival < served.first && served.first <= served.end);
        assert_eq!(served.arrival, arrivals[served.index].at);
    }
    assert!(outcome.busy_seconds <= outcome.seconds);
    let few = &arrivals[..1500];
    assert_eq!(run(&tight, few, &gpu), run(&tight, few, &gpu));
}

#[test]
fn a_request_alone_takes_its_steps() {
    let cost = |chunks: &[Chunk]| chunks.iter().map(|c| c.len as f64).sum::<f64>();
    let arrivals = [Arrival {
        at: 10.0,
        prompt_tokens: 100,
        output_tokens: 5,
        prefix: None,
    }];
    for memory in [
        Memory::Paged { prefix_cache: true },
        Memory::Contiguous(Reserve::Context),
        Memory::Contiguous(Reserve::Foreseen),
    ] {
        let setup = Setup {
            max_batched_tokens: 64,
            max_running: 4,
            memory,
            ..setup()
        };
        let outcome = run(&setup, &arrivals, &cost);
        let served = outcome.served[0];
        // two steps of a hundred tokens, then four of one
        assert_eq!((served.first, served.end, served.tokens), (110.0, 114.0, 5));
        assert_eq!((outcome.steps, outcome.gaps.len()), (6, 4));
        assert_eq!((served.tpot(), served.longest_gap), (Some(1.0), 1.0));
    }
}

#[test]
fn prompts_with_a_common_beginning_are_computed_once() {
    let request = |at, group| Arrival {
        at,
        prompt_tokens: 500,
        output_tokens: 4,
        prefix: Some(Prefix { group, tokens: 480 }),
    };
    let arrivals = [request(0.0, 7), request(1000.0, 7), request(2000.0, 8)];
    let outcome = run(&setup(), &arrivals, &gpu);
    // 30 pages of the second are found; each draws its last three tokens from one before
    assert_eq!(outcome.computed_tokens, 1500 - 480 + 3 * 3);
    let forgetful = Setup {
        memory: Memory::Paged {
            prefix_cache: false,
        },
        ..setup()
    };
    assert_eq!(run(&forgetful, &arrivals, &gpu).computed_tokens, 1509);
}

/// What is compared: everything arrives at once, memory for 16 whole contexts, seats and budget of steps
/// the same, and how many requests have memory on average while others wait for it.
#[test]
fn pages_hold_at_least_twice_the_requests_of_contiguous_memory() {
    let arrivals = mixed(4000, None).arrivals().unwrap();
    let of = |memory| {
        let setup = Setup {
            pool_tokens: 16 * 4096,
            memory,
            ..setup()
        };
        let outcome = run(&setup, &arrivals, &gpu);
        let figures = outcome.figures(&Slo::default());
        println!(
            "{memory:?}: {:.1} at once on average, {} at most, waste {:.1} %, {:.0} tokens/s, {} preempted",
            outcome.memory.mean_running().unwrap(),
            outcome.memory.most_running,
            100.0 * outcome.memory.waste(),
            figures.output_throughput,
            outcome.preemptions
        );
        outcome
    };
    let paged = of(Memory::Paged {
        prefix_cache: false,
    });
    let context = of(Memory::Contiguous(Reserve::Context));
    let foreseen = of(Memory::Contiguous(Reserve::Foreseen));
    let at_once = |outcome: &Outcome| outcome.memory.mean_running().unwrap();
    assert_eq!(context.memory.most_running, 16);
    assert!(at_once(&paged) >= 2.0 * at_once(&context));
    assert!(at_once(&paged) >= at_once(&foreseen));
    // pages of 16 tokens and sequences of some hundreds
    let waste = paged.memory.waste();
    assert!((0.005..0.04).contains(&waste), "{waste}");
    assert!(context.memory.waste() > 0.5 && foreseen.memory.waste() > waste);
}

/// A model of 8 billion weights in 8 bits on a card whose kernels reach its rates: the arithmetic of 80 tokens
/// is done while weights are read, so that a few tokens of a prompt cost nothing, and all beyond them do.
fn card() -> RooflineCost {
    let roofline = Roofline::at_best(Peaks {
        stream_bytes_s: 2e12,
        fma_flops: 300e12,
        dot4_ops: 300e12,
        dispatch_s: 0.0,
    });
    let config = BuiltIn::find("llama-3.1-8b").unwrap().config();
    RooflineCost {
        roofline,
        shape: ModelShape::new(config, WeightForm::Q8, KvForm::F16, 128 << 20),
    }
}

/// What is compared: the same requests at the same rate, with chunks of a fixed size while somebody decodes,
/// and with those that the pacer allows for a limit; requests a second that got their first token in time and
/// never waited longer than that limit for another. Below what a device can serve, at it, and beyond it, where
/// queues only grow.
#[test]
fn the_chunks_that_the_pacer_picks_are_nearly_the_best() {
    let card = card();
    type Device<'a> = (&'a str, &'a dyn StepCost, &'a str, f64);
    let devices: [Device; 3] = [
        ("line", &gpu, "lognormal:300:1.2", 1.5),
        ("card", &card, "lognormal:600:1", 1.5),
        ("cpu", &cpu, "lognormal:300:1.2", 8.0),
    ];
    for (device, rate, limit) in [
        (0, 8.0, 0.030),
        (0, 12.0, 0.050),
        (0, 20.0, 0.050),
        (1, 8.0, 0.020),
        (1, 11.0, 0.032),
        (1, 13.0, 0.060),
        (1, 14.0, 0.020),
        (1, 14.0, 0.032),
        (1, 14.0, 0.060),
        (1, 16.0, 0.020),
        (1, 16.0, 0.032),
        (1, 16.0, 0.060),
        (1, 20.0, 0.032),
        (2, 0.5, 0.150),
        (2, 1.0, 0.150),
    ] {
        let (device, cost, prompt, ttft) = devices[device];
        let name = format!("{device}, {rate}/s, {:.0} ms", limit * 1e3);
        let workload = Workload {
            prompt: prompt.parse().unwrap(),
            ..mixed(1500, Some(rate))
        };
        let arrivals = workload.arrivals().unwrap();
        let slo = Slo {
            ttft: Some(ttft),
            tpot: None,
            itl: Some(limit),
        };
        let goodput = |chunking| {
            let setup = Setup {
                chunking,
                ..setup()
            };
            let outcome = run(&setup, &arrivals, cost);
            let figures = outcome.figures(&slo);
            println!(
                "{name}: {chunking:?}: {:.3}/s of {:.3}, ttft p95 {:.2} s, itl p99 {:.1} ms, largest {}",
                figures.goodput,
                figures.request_throughput,
                figures.ttft.p95,
                figures.itl.p99 * 1e3,
                outcome.largest_chunk
            );
            figures.goodput
        };
        let fixed = [16, 32, 64, 128, 256, 512, 1024, 2048].map(|n| goodput(Chunking::Fixed(n)));
        let best = fixed.into_iter().fold(0.0, f64::max);
        let paced = goodput(Chunking::MaxItl(limit));
        println!("{name}: {:.2} of the best", paced / best);
        assert!(paced >= 0.8 * best, "{name}: {paced} of {best}");
        // and that it matters: some size is much worse
        let worst = fixed.into_iter().fold(f64::MAX, f64::min);
        assert!(worst < 0.8 * best, "{name}: any chunk would do");
        assert!(best > 0.05 * rate, "{name}: nothing can be promised at all");
    }
}

#[test]
fn what_cannot_be_simulated_is_refused_by_name() {
    let arrivals = mixed(3, None).arrivals().unwrap();
    let problem = |setup: &Setup, cost: &dyn StepCost| {
        let error = simulate(setup, &synthetic::tiny(), &arrivals, cost).unwrap_err();
        error.to_string()
    };
    type Change = fn(&mut Setup);
    let wrong: [(&str, Change); 6] = [
        ("parallel", |setup| setup.max_running = 0),
        ("batch size", |setup| setup.max_batched_tokens = 8),
        ("context", |setup| setup.max_model_len = 1),
        ("pool", |setup| setup.pool_tokens = 15),
        ("chunk", |setup| setup.chunking = Chunking::Fixed(0)),
        ("max_itl", |setup| {
            setup.chunking = Chunking::MaxItl(f64::NAN);
        }),
    ];
    for (field, change) in wrong {
        let mut wrong = setup();
        change(&mut wrong);
        let problem = problem(&wrong, &gpu);
        assert!(problem.contains(field), "{problem}");
    }
    for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
        let problem = problem(&setup(), &move |_: &[Chunk]| seconds);
        assert!(problem.contains("cost"), "{problem}");
    }
    // what no memory holds is counted, and everybody else is served
    let long = Arrival {
        at: 0.0,
        prompt_tokens: 5000,
        output_tokens: 1,
        prefix: None,
    };
    for memory in [
        Memory::Paged { prefix_cache: true },
        Memory::Contiguous(Reserve::Foreseen),
    ] {
        let all = [vec![long.clone()], arrivals.clone()].concat();
        let outcome = run(&Setup { memory, ..setup() }, &all, &gpu);
        assert_eq!((outcome.refused, outcome.served.len()), (1, 3));
    }
}
