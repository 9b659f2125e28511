use super::super::roofline::KvForm;
use super::super::shapes::BuiltIn;
use super::*;
use crate::kernels::peaks::Peaks;

const GIB: u64 = 1 << 30;

fn wanted(name: &str) -> Wanted {
    let built_in = BuiltIn::find(name).unwrap();
    Wanted {
        model: name.to_owned(),
        shape: ModelShape::new(built_in.config(), WeightForm::Q8, KvForm::F16, 128 << 20),
        ctx_size: Some(4096),
        users: 1,
        activations: Activations::F32,
        bounds: Bounds {
            max_binding: 128 << 20,
            is_software: false,
        },
        memory: None,
        prompt: 512,
        roofline: None,
    }
}

fn with_memory(name: &str, gib: u64) -> Wanted {
    Wanted {
        memory: Some((gib * GIB, MemorySource::Given)),
        ..wanted(name)
    }
}

#[test]
fn the_counterfactual_has_a_terabyte_of_keys_and_values() {
    let mut asked = wanted("llama-3.1-405b");
    asked.shape = asked.shape.as_mha();
    asked.ctx_size = Some(131_072);
    let plan = asked.plan().unwrap();
    assert_eq!(plan.kv_bytes, 1_082_331_758_592);
    assert_eq!(
        (plan.attention, plan.ctx_size, plan.users),
        ("mha", 131_072, 1)
    );
    assert_eq!((plan.pages, plan.pages_bytes), (8192, plan.kv_bytes));
    assert_eq!((plan.fits, plan.max_ctx_size), (None, None));
    // the weights are those of the model that there is
    assert_eq!(plan.params, 405_853_388_800);
    assert_eq!(
        (plan.weight_bytes_by_format.f32 as f64 / 1e9).round(),
        1623.0
    );
    // 128 heads: a layer's keys are 4 GiB, a binding holds an eighth of one
    assert_eq!(plan.kv_slabs_per_layer, Some(32));
    assert!(plan.weight_shards > 8, "{}", plan.weight_shards);
    let gqa = wanted("llama-3.1-405b").plan().unwrap();
    assert_eq!((gqa.attention, gqa.runs_here), ("gqa", true));
}

#[test]
fn a_context_that_is_no_whole_page_takes_one_and_is_counted_exactly() {
    let mut asked = wanted("llama-3.1-8b");
    (asked.ctx_size, asked.users) = (Some(100), 3);
    let plan = asked.plan().unwrap();
    assert_eq!(plan.kv_bytes, 300 * 131_072);
    assert_eq!((plan.pages, plan.pages_bytes), (21, 21 * 16 * 131_072));
    let parts = plan.weight_bytes + plan.pages_bytes + plan.scratch_bytes + plan.other_bytes;
    assert_eq!(plan.total_bytes, parts);
}

#[test]
fn layers_that_see_a_window_take_pages_for_it_and_a_step() {
    let mut asked = with_memory("gemma-2-2b", 16);
    (asked.ctx_size, asked.users) = (Some(131_072), 3);
    let plan = asked.plan().unwrap();
    let [windowed, all] = plan.kv_groups[..] else {
        panic!("{:?}", plan.kv_groups)
    };
    assert_eq!((windowed.window, windowed.layers), (Some(4096), 13));
    assert_eq!((all.window, all.layers, all.pages), (None, 13, 3 * 8192));
    // 4096 tokens and 512 of a step, wherever they begin in a page, and two splits for all
    assert_eq!(windowed.pages, 3 * (4608 / 16 + 1) + 32);
    let half = plan.page_bytes / 2;
    assert_eq!(
        (windowed.bytes, all.bytes),
        (half * windowed.pages, half * all.pages)
    );
    assert_eq!(plan.pages_bytes, windowed.bytes + all.bytes);
    assert_eq!(plan.kv_bytes, 3 * (131_072 + 4096) * (half / 16));
    // so twice the context fits, but for the windows
    let mut without = asked.clone();
    without.shape.config.layer_kinds = vec![Default::default()];
    let (with, without) = (plan.max_ctx_size.unwrap(), without.plan().unwrap());
    assert_eq!(without.kv_groups.len(), 1);
    let without = without.max_ctx_size.unwrap();
    let windows = windowed.pages as usize * PAGE_SIZE / 3;
    assert!(
        (2 * without).abs_diff(with + windows) < 100,
        "{with} {without}"
    );
    // a context that is no longer than the window is all that there is
    asked.ctx_size = Some(4096);
    assert_eq!(asked.plan().unwrap().kv_groups.len(), 1);
}

#[test]
fn what_fits_fits_at_its_limits_and_not_beyond() {
    let asked = with_memory("llama-3.1-8b", 16);
    let plan = asked.plan().unwrap();
    assert_eq!((plan.fits, plan.memory_source), (Some(true), Some("given")));
    let (context, users) = (plan.max_ctx_size.unwrap(), plan.max_users.unwrap());
    assert!(
        context > 4096 && context.is_multiple_of(16) && users > 1,
        "{context} {users}"
    );
    let fits = |context, users| {
        let asked = Wanted {
            ctx_size: Some(context),
            users,
            ..asked.clone()
        };
        asked.plan().unwrap().fits == Some(true)
    };
    assert!(fits(context, 1) && !fits(context + 1, 1));
    assert!(fits(4096, users) && !fits(4096, users + 1));
}

#[test]
fn what_does_not_fit_is_told_with_what_would() {
    let plan = with_memory("llama-3.1-8b", 6).plan().unwrap();
    assert_eq!(
        (plan.fits, plan.max_ctx_size, plan.max_users),
        (Some(false), Some(0), Some(0))
    );
    assert!(
        plan.reason.contains("weights alone are 8.5 GB"),
        "{}",
        plan.reason
    );
    let as_f16 = |gib| {
        let mut asked = with_memory("llama-3.1-8b", gib);
        asked.shape.weights = WeightForm::F16;
        asked.plan().unwrap().reason
    };
    assert!(as_f16(9).ends_with("as q8 they would fit"), "{}", as_f16(9));
    let mut long = with_memory("llama-3.1-8b", 16);
    long.ctx_size = Some(131_072);
    let plan = long.plan().unwrap();
    assert_eq!((plan.fits, plan.max_users), (Some(false), Some(0)));
    let longest = plan.max_ctx_size.unwrap();
    assert!(
        longest > 30_000 && plan.reason.contains(&longest.to_string()),
        "{}",
        plan.reason
    );
}

#[test]
fn speeds_are_bounded_by_the_bytes_of_a_token() {
    let peaks = Peaks {
        stream_bytes_s: 4.8e12,
        fma_flops: 60e12,
        dot4_ops: 240e12,
        dispatch_s: 1e-6,
    };
    let mut asked = wanted("llama-3.1-8b");
    asked.roofline = Some(Roofline::at_best(peaks));
    let plan = asked.plan().unwrap();
    let speed = plan.speed;
    // 8.53 GB of which the embedding is not read, and 67 MB of cache
    let bound = speed.decode_tok_s_bound.unwrap();
    assert!((580.0..610.0).contains(&bound), "{bound}");
    let decode = speed.decode_tok_s.unwrap();
    assert!(
        decode < bound && decode > 0.8 * bound,
        "{decode} of {bound}"
    );
    assert!(speed.decode_tok_s_full.unwrap() < decode);
    let operations = 2.0 * 6.9e9 * 512.0;
    let ttft = speed.ttft_s.unwrap();
    assert!(ttft > operations / 240e12 && ttft < 0.1, "{ttft}");
    // eight users read the weights once
    asked.users = 8;
    let all = asked.plan().unwrap().speed.decode_tok_s_all.unwrap();
    assert!(all > 5.0 * speed.decode_tok_s_full.unwrap(), "{all}");
    // without operations there is a rate of tokens, but no time of a prompt
    asked.roofline = Some(Roofline::at_best(Peaks {
        fma_flops: f64::INFINITY,
        dot4_ops: f64::INFINITY,
        dispatch_s: 0.0,
        ..peaks
    }));
    let speed = asked.plan().unwrap().speed;
    assert!(speed.ttft_s.is_none() && speed.decode_tok_s.is_some());
    asked.roofline = None;
    assert_eq!(asked.plan().unwrap().speed.decode_tok_s, None);
}

#[test]
fn odd_wishes_are_refused_or_told() {
    let mut asked = wanted("llama-3.1-8b");
    asked.ctx_size = Some(1);
    assert!(asked.plan().unwrap_err().to_string().contains("ctx_size"));
    // the longest context and many users are numbers, too
    (asked.ctx_size, asked.users) = (Some(1 << 24), 1000);
    asked.memory = Some((GIB, MemorySource::Host));
    let plan = asked.plan().unwrap();
    assert_eq!((plan.fits, plan.max_users), (Some(false), Some(0)));
    assert!(plan.reason.contains("pages"), "{}", plan.reason);
    asked.ctx_size = None;
    assert_eq!(asked.plan().unwrap().ctx_size, 8192);
}
