//! The forward pass as a diagram: what each step reads, what it makes of it, and in which shape.

use nelumbo::engine::EngineCore;
use nelumbo::engine::compare::{Traced, trace};
use nelumbo::model::Config;
use nelumbo::model::config::{MlpKind, NormKind};
use nelumbo::quant::Weights;

use crate::exit::Failure;

/// The diagram of a prompt of `tokens`, and of the token after it.
pub fn text(engine: &mut EngineCore, tokens: &[u32]) -> Result<String, Failure> {
    let (_, traced) = trace(engine, |engine| {
        let mut trial = engine.trial(tokens.len() + 1)?;
        let next = trial.feed(tokens)?;
        trial.feed(&[next])
    })?;
    let steps = steps(&traced);
    let mut text = head(engine);
    let mut done = 0;
    for (index, step) in steps.iter().enumerate() {
        let count = step[0].param("num_tokens").unwrap_or(0);
        let title = if index + 1 == steps.len() {
            format!("decode: 1 token at position {done}")
        } else {
            format!("prefill: {count} tokens at position {done}")
        };
        let painter = Painter {
            engine,
            tokens: count,
            context: done + count,
        };
        // of a long prompt the first and the last step say it all
        if index == 0 || index + 2 >= steps.len() {
            text += &format!("\n{title}\n{}", painter.step(step));
        } else if index == 1 {
            text += &format!(
                "\n({} steps of a prompt like the one before)\n",
                steps.len() - 3
            );
        }
        done += count;
    }
    Ok(text)
}

/// What the model is, and how its numbers are kept.
fn head(engine: &EngineCore) -> String {
    let decoder = engine.decoder();
    let c = decoder.config();
    let report = decoder.gpu().report();
    format!(
        "{}: {} layers, {} wide; {} query heads and {} key heads of {}; MLP {} wide; {} tokens{}\n\
         weights {}, activations {}, cache {}; {} ({})\n",
        c.architecture,
        c.num_layers,
        c.hidden_size,
        c.num_heads,
        c.num_kv_heads,
        c.head_dim,
        c.intermediate_size,
        c.vocab_size,
        if c.tied_head {
            ", the head is the embedding"
        } else {
            ""
        },
        decoder.weights().head().format.name,
        decoder.tuning().activations.name(),
        decoder.kv().format().name(),
        report.name,
        report.backend.name(),
    )
}

/// Each begins with an embedding, which may be several dispatches.
fn steps(traced: &[Traced]) -> Vec<&[Traced]> {
    let is_embedding = |t: &Traced| t.place.op == "embedding";
    let is_first =
        |&i: &usize| is_embedding(&traced[i]) && (i == 0 || !is_embedding(&traced[i - 1]));
    let starts: Vec<usize> = (0..traced.len()).filter(is_first).collect();
    let ends = starts.iter().skip(1).copied().chain([traced.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| &traced[start..end])
        .collect()
}

/// A line of the diagram.
#[derive(Debug, PartialEq)]
struct Line {
    op: &'static str,
    kernel: &'static str,
    shapes: String,
    meaning: &'static str,
    dispatches: usize,
}

struct Painter<'a> {
    engine: &'a EngineCore,
    /// Of the step.
    tokens: usize,
    /// Tokens of the sequence, those of the step included.
    context: usize,
}

impl Painter<'_> {
    fn step(&self, step: &[Traced]) -> String {
        let layers: Vec<Vec<Line>> = step
            .chunk_by(|a, b| a.place.layer == b.place.layer)
            .map(|part| self.lines(part))
            .collect();
        let numbers: Vec<Option<usize>> = step
            .chunk_by(|a, b| a.place.layer == b.place.layer)
            .map(|part| part[0].place.layer)
            .collect();
        let mut text = String::new();
        let mut at = 0;
        while at < layers.len() {
            let same = |i: &usize| {
                numbers[*i].is_some() == numbers[at].is_some() && layers[*i] == layers[at]
            };
            let end = (at..layers.len()).take_while(same).last().unwrap_or(at);
            if let (Some(first), Some(last)) = (numbers[at], numbers[end]) {
                text += &match end - at {
                    0 => format!("  layer {first}\n"),
                    more => format!("  layers {first} to {last} (x {})\n", more + 1),
                };
            }
            let indent = if numbers[at].is_some() { "    " } else { "  " };
            for line in &layers[at] {
                text += &line.paint(indent);
            }
            at = end + 1;
        }
        text
    }

    /// Dispatches of the same operation are one line.
    fn lines(&self, part: &[Traced]) -> Vec<Line> {
        let same = |a: &Traced, b: &Traced| {
            let key = |t: &Traced| (t.place.op, t.variant.kernel.name, self.shapes(t));
            key(a) == key(b)
        };
        part.chunk_by(same)
            .map(|run| Line {
                op: run[0].place.op,
                kernel: run[0].variant.kernel.name,
                shapes: self.shapes(&run[0]),
                meaning: meaning(&run[0], self.engine.decoder().config()),
                dispatches: run.len(),
            })
            .collect()
    }

    /// "x [38, 576] x q8 [960, 576] -> q [38, 9, 64], k and v [38, 3, 64]"
    fn shapes(&self, t: &Traced) -> String {
        let decoder = self.engine.decoder();
        let (c, n) = (decoder.config(), self.tokens);
        let weights = decoder.weights();
        let layer = t.place.layer.and_then(|layer| weights.layers.get(layer));
        let (kernel, op) = (t.variant.kernel.name, t.place.op);
        match (op, kernel, layer) {
            ("embedding", "embedding", _) => {
                format!(
                    "ids [{n}], table {} -> hidden [{n}, {}]",
                    matrix(&weights.embedding),
                    c.hidden_size
                )
            }
            (_, "halve", _) => format!("x [{n}, ..] -> f16"),
            (_, "add_positions" | "add_norm", _) => format!("-> hidden [{n}, {}]", c.hidden_size),
            (_, "layer_norm", _) => format!("hidden [{n}, {}] -> records", c.hidden_size),
            ("qkv", "rope", _) => format!("qkv [{n}, {}] -> {}", c.qkv_rows(), qkv(c, n)),
            ("qkv", _, Some(layer)) if t.tensors.iter().any(|(name, _)| name == "q") => {
                format!("{} -> {}", product(n, &layer.qkv), qkv(c, n))
            }
            ("qkv", _, Some(layer)) => {
                format!("{} -> qkv [{n}, {}]", product(n, &layer.qkv), c.qkv_rows())
            }
            ("attention", "attention" | "attention_coop", _) => format!(
                "q [{n}, {}, {d}], k and v [{}, {}, {d}] -> [{n}, {}]",
                c.num_heads,
                self.context,
                c.num_kv_heads,
                c.q_width(),
                d = c.head_dim,
            ),
            ("attention", ..) => {
                let rows = t.param("num_rows").unwrap_or(n);
                format!("{rows} partial results -> [{n}, {}]", c.q_width())
            }
            ("o", "pack", _) => format!("[{n}, {}] -> records", c.q_width()),
            ("o", _, Some(layer)) => format!(
                "{} -> hidden [{n}, {}]",
                product(n, &layer.o),
                c.hidden_size
            ),
            ("gate_up", _, Some(layer)) => {
                format!(
                    "{} -> [{n}, {}]",
                    product(n, &layer.gate_up),
                    c.intermediate_size
                )
            }
            ("down", _, Some(layer)) => format!(
                "{} -> hidden [{n}, {}]",
                product(n, &layer.down),
                c.hidden_size
            ),
            (_, "gather_rows", _) => {
                let rows = t.param("num_rows").unwrap_or(0);
                format!("hidden [{n}, {w}] -> [{rows}, {w}]", w = c.hidden_size)
            }
            ("head", ..) => {
                let rows = t.param("num_tokens").unwrap_or(0);
                format!(
                    "{} -> logits [{rows}, {}]",
                    product(rows, weights.head()),
                    c.vocab_size
                )
            }
            (_, "argmax", _) => match t.workgroups {
                [slices, rows, _] if t.param("width") == Some(c.vocab_size) => {
                    format!(
                        "logits [{rows}, {}] -> {} candidates",
                        c.vocab_size,
                        slices * rows
                    )
                }
                [_, rows, _] => format!(
                    "candidates [{rows}, {}] -> ids [{rows}]",
                    t.param("width").unwrap_or(0)
                ),
            },
            _ => format!("logits [.., {}]", c.vocab_size),
        }
    }
}

/// "q8 [960, 576]"
fn matrix(weights: &Weights) -> String {
    format!(
        "{} [{}, {}]",
        weights.format.name, weights.rows, weights.columns
    )
}

/// "[38, 576] x q8 [960, 576]"
fn product(tokens: usize, weights: &Weights) -> String {
    format!("[{tokens}, {}] x {}", weights.columns, matrix(weights))
}

fn qkv(c: &Config, n: usize) -> String {
    format!(
        "q [{n}, {}, {d}], k and v [{n}, {}, {d}]",
        c.num_heads,
        c.num_kv_heads,
        d = c.head_dim
    )
}

/// What a step is for, in a model that computes what `c` says.
fn meaning(t: &Traced, c: &Config) -> &'static str {
    let norm_before = c.norm == NormKind::Rms && c.norm_places.before;
    let window = t.place.layer.and_then(|layer| c.layer_kind(layer).window);
    let makes_q = t.tensors.iter().any(|(name, _)| name == "q");
    match (t.place.op, t.variant.kernel.name) {
        ("embedding", "embedding") => "a row of the table for each token",
        (_, "halve") => "rows as f16, for matrix units",
        (_, "add_positions") => "a row of the positions added to each token",
        (_, "add_norm") => "norm, added to the residual stream",
        (_, "layer_norm") => "norm of the residual stream",
        (_, "finish_logits") => "factor and cap of the logits",
        ("qkv", "rope") if c.qk_norm.is_some() => {
            "norms; rotated by position; keys and values into the cache"
        }
        ("qkv", "rope") => "rotated by position; keys and values into the cache",
        ("qkv", _) if makes_q => match norm_before {
            true => "norm, product; rotated by position, keys and values into the cache",
            false => "product; rotated by position, keys and values into the cache",
        },
        ("qkv", _) => match norm_before {
            true => "norm, product",
            false => "product",
        },
        ("attention", "attention_merge") => "results of parts of the context, joined",
        ("attention", _) => match (window, c.attention_scale.is_some() || c.score_cap.is_some()) {
            (None, false) => "softmax(q k / sqrt(d)) v over all tokens before",
            (None, true) => "softmax(scores of q k) v over all tokens before",
            (Some(_), false) => "softmax(q k / sqrt(d)) v over a window of tokens before",
            (Some(_), true) => "softmax(scores of q k) v over a window of tokens before",
        },
        ("o", "pack") => "rows as records",
        ("o" | "down", _) if c.norm_places.after => "product",
        ("o" | "down", _) => "product, added to the residual stream",
        ("gate_up", _) => match (norm_before, c.mlp) {
            (true, MlpKind::SwiGlu) => "norm, product; silu(gate) * up",
            (true, MlpKind::GeGlu) => "norm, product; gelu(gate) * up",
            (true, MlpKind::Gelu) => "norm, product; gelu",
            (false, MlpKind::SwiGlu) => "product; silu(gate) * up",
            (false, MlpKind::GeGlu) => "product; gelu(gate) * up",
            (false, MlpKind::Gelu) => "product; gelu",
        },
        (_, "gather_rows") => "the tokens that get logits",
        ("head", _) => match c.norm {
            NormKind::Rms => "norm, product: a logit for each token of the vocabulary",
            NormKind::Layer => "product: a logit for each token of the vocabulary",
        },
        (_, "penalties") => "logits of tokens seen before, lowered",
        (_, "sample") => "a token, drawn",
        (_, "argmax") => "the likeliest token",
        _ => "",
    }
}

impl Line {
    fn paint(&self, indent: &str) -> String {
        let times = if self.dispatches > 1 {
            format!(" x {}", self.dispatches)
        } else {
            String::new()
        };
        let name = format!("{}{times}", self.kernel);
        let line = format!(
            "{indent}{:<11}{name:<16}  {:<62}  {}",
            self.op, self.shapes, self.meaning
        );
        format!("{}\n", line.trim_end())
    }
}
