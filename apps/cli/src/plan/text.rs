//! A plan for people: a name and what is to be said of it on each line.

use nelumbo::model::plan::Plan;

use crate::models::human_bytes;
use crate::output;

/// The table. `adapter` is the one that speeds are of.
pub fn table(plan: &Plan, adapter: Option<&str>) -> String {
    let by = &plan.weight_bytes_by_format;
    let users = match plan.users {
        1 => "1 user".to_owned(),
        users => format!("{users} users"),
    };
    let pieces = |count: usize| {
        if count == 1 {
            "1 piece".to_owned()
        } else {
            format!("{count} pieces")
        }
    };
    let mut rows = vec![
        ["model".to_owned(), model(plan)],
        [
            "weights".to_owned(),
            format!(
                "{} {}, of that scales {}; f32 {}, f16 {}, q8 {}, int8 {}",
                plan.weights_format,
                human_bytes(plan.weight_bytes),
                human_bytes(plan.weight_scale_bytes),
                human_bytes(by.f32),
                human_bytes(by.f16),
                human_bytes(by.q8),
                human_bytes(by.int8),
            ),
        ],
        [
            "cache".to_owned(),
            format!(
                "{} {}, {} bytes a token; {} tokens {}, {users} {} ({} bytes)",
                plan.kv_dtype,
                plan.attention,
                plan.kv_bytes_per_token,
                plan.ctx_size,
                human_bytes(plan.kv_bytes_per_user),
                human_bytes(plan.kv_bytes),
                plan.kv_bytes,
            ),
        ],
        ["pages".to_owned(), pages(plan)],
        [
            "beside".to_owned(),
            format!(
                "activations {}, read-backs and parameters {}",
                human_bytes(plan.scratch_bytes),
                human_bytes(plan.other_bytes)
            ),
        ],
        [
            "bindings".to_owned(),
            format!(
                "of {} at most: a layer's keys in {}, a matrix in up to {}",
                human_bytes(plan.binding_bytes),
                plan.kv_slabs_per_layer
                    .map_or_else(|| "none that would do".to_owned(), pieces),
                pieces(plan.weight_shards),
            ),
        ],
        ["total".to_owned(), human_bytes(plan.total_bytes)],
        ["memory".to_owned(), memory(plan)],
        ["verdict".to_owned(), verdict(plan)],
    ];
    if let (Some(context), Some(most)) = (plan.max_ctx_size, plan.max_users) {
        let text = match context.max(most) {
            0 => "no context at all".to_owned(),
            _ => format!(
                "{users} with up to {context} tokens; up to {most} with {}",
                plan.ctx_size
            ),
        };
        rows.push(["would fit".to_owned(), text]);
    }
    rows.push(["speed".to_owned(), speed(plan, adapter)]);
    output::table(rows.into_iter())
}

fn model(plan: &Plan) -> String {
    let runs = if plan.runs_here {
        ""
    } else {
        ", planned with only"
    };
    format!(
        "{} ({}), {:.2} B parameters{runs}",
        plan.model,
        plan.architecture,
        plan.params as f64 / 1e9
    )
}

fn pages(plan: &Plan) -> String {
    let all = human_bytes(plan.pages_bytes);
    if let [group] = &plan.kv_groups[..] {
        return format!("{} of {}, {all}", group.pages, human_bytes(plan.page_bytes));
    }
    let groups = plan.kv_groups.iter().map(|group| {
        let seen = match group.window {
            Some(window) => format!("see {window} tokens"),
            None => "see all".to_owned(),
        };
        let (layers, pages) = (group.layers, group.pages);
        let bytes = human_bytes(group.bytes);
        format!("{layers} layers {seen}: {pages}, {bytes}")
    });
    format!("{}; {all}", groups.collect::<Vec<_>>().join("; "))
}

fn memory(plan: &Plan) -> String {
    match (plan.memory_bytes, plan.memory_source) {
        (Some(bytes), Some("given")) => format!("{}, as given", human_bytes(bytes)),
        (Some(bytes), Some("host")) => {
            format!("{}, most of what the host has free", human_bytes(bytes))
        }
        (Some(bytes), _) => format!("{}, most of what the adapter has", human_bytes(bytes)),
        (None, _) => "nobody tells".to_owned(),
    }
}

fn verdict(plan: &Plan) -> String {
    let word = match plan.fits {
        Some(true) => "fits",
        Some(false) => "does not fit",
        None => "unknown",
    };
    format!("{word}: {}", plan.reason)
}

fn speed(plan: &Plan, adapter: Option<&str>) -> String {
    let speed = &plan.speed;
    let Some(bandwidth) = speed.bandwidth_bytes_s else {
        return "unknown: no adapter was measured, and no --bandwidth is given".to_owned();
    };
    let number = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), |value| digits(&value));
    let mut text = format!(
        "{} tok/s after {} tokens (at most {} at {:.1} GB/s), {} at the end of the context",
        number(speed.decode_tok_s),
        speed.prompt_tokens,
        number(speed.decode_tok_s_bound),
        bandwidth / 1e9,
        number(speed.decode_tok_s_full),
    );
    if plan.users > 1 {
        text += &format!(", {} for all users", number(speed.decode_tok_s_all));
    }
    if let Some(seconds) = speed.ttft_s {
        text += &format!(
            "; {} s to the first token of {}",
            digits(&seconds),
            speed.prompt_tokens
        );
    }
    match adapter {
        Some(adapter) if speed.ttft_s.is_some() => format!("{text}; {adapter}"),
        _ => text,
    }
}

/// Three digits that count.
fn digits(value: &f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        let words = [1234.5, 99.94, 1.234, 0.0123].map(|value| digits(&value));
        assert_eq!(words, ["1234", "99.9", "1.23", "0.012"]);
    }
}
