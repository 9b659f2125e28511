//! Steps of every kind that requests lead to: their number of tokens chooses kernels, their depth
//! splits attention, and their rows of logits are drawn from in several ways.

use crate::engine::EngineCore;
use crate::engine::batch::{Batch, Row};
use crate::engine::request::Sampling;
use crate::error::Result;
use crate::kv::{PAGE_SIZE, Tables};
use crate::model::step::{HeadRows, Span};

/// Tokens of the first steps, one after another: every size that has kernels of its own, and some that
/// fill no tile.
const SIZES: [usize; 7] = [1, 2, 3, 5, 8, 9, 17];
/// A context beyond this is attended to in more than one split.
const DEEP: usize = 256;
/// Tokens beyond it, and those that the last steps take.
const BEYOND: usize = 20;
/// Sequences that steps are made of.
const SEQUENCES: usize = 3;

/// A step: what each sequence adds to it.
pub(super) struct Planned {
    /// In words, for reports.
    pub name: String,
    /// Tokens of each sequence, none where it rests, and who gets logits.
    chunks: [(usize, HeadRows); SEQUENCES],
    /// How tokens are drawn, in turn.
    drawn: Vec<Sampling>,
}

/// The steps, as far as the context and the size of a step allow them.
pub(super) fn plan(engine: &EngineCore, text_len: usize) -> Vec<Planned> {
    let (longest, rows) = (
        engine.decoder().max_batched_tokens(),
        engine.decoder().max_head_rows(),
    );
    let room = room(engine, text_len);
    let [greedy, drawn, penalised] = samplings();
    let alone = |tokens: usize| {
        [
            (tokens, HeadRows::Last(1)),
            (0, HeadRows::None),
            (0, HeadRows::None),
        ]
    };
    let mut steps = Vec::new();
    let mut len = 0;
    for (i, &size) in SIZES.iter().enumerate() {
        if size <= longest && len + size < room {
            let how = [&greedy, &drawn, &penalised][i % 3].clone();
            steps.push(Planned {
                name: format!("{size} tokens at {len}"),
                chunks: alone(size),
                drawn: vec![how],
            });
            len += size;
        }
    }
    let deep = (DEEP + BEYOND).min(room.saturating_sub(BEYOND));
    while len < deep {
        let size = longest.min(deep - len).min(DEEP / 2);
        steps.push(Planned {
            name: format!("{size} tokens at {len}"),
            chunks: alone(size),
            drawn: vec![greedy.clone()],
        });
        len += size;
    }
    let mut last = |name: &str, chunks: [(usize, HeadRows); SEQUENCES], drawn: Vec<Sampling>| {
        let tokens: usize = chunks.iter().map(|chunk| chunk.0).sum();
        let fits = tokens <= longest && drawn.len() <= rows && len + chunks[0].0 <= room;
        if fits {
            len += chunks[0].0;
            let name = format!("{name} at {}", len - chunks[0].0);
            steps.push(Planned {
                name,
                chunks,
                drawn,
            });
        }
    };
    last("a drawn token", alone(1), vec![drawn.clone()]);
    last("a token after penalties", alone(1), vec![penalised.clone()]);
    let all = [(3, HeadRows::All), (0, HeadRows::None), (0, HeadRows::None)];
    last(
        "3 tokens with logits for all",
        all,
        vec![drawn.clone(), greedy.clone(), penalised.clone()],
    );
    if engine.decoder().max_running() >= SEQUENCES {
        let company = [
            (1, HeadRows::Last(1)),
            (5, HeadRows::Last(1)),
            (19, HeadRows::Last(1)),
        ];
        last(
            "a token beside prompts of 5 and 19",
            company,
            vec![penalised, greedy.clone(), drawn.clone()],
        );
        let company = [
            (1, HeadRows::Last(1)),
            (1, HeadRows::None),
            (1, HeadRows::Last(1)),
        ];
        last("a token for each of three", company, vec![greedy, drawn]);
    }
    steps
}

/// The three ways in which tokens are drawn by different kernels.
fn samplings() -> [Sampling; 3] {
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        seed: 11,
        ..Sampling::default()
    };
    let penalised = Sampling {
        repeat_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        repeat_last_n: 64,
        logit_bias: vec![(0, 2.5), (1, -3.0)],
        ..drawn.clone()
    };
    [Sampling::default(), drawn, penalised]
}

/// Tokens that the first sequence can have. The others need a page or two.
fn room(engine: &EngineCore, text_len: usize) -> usize {
    let others = (SEQUENCES - 1) * 2;
    engine
        .servable_len()
        .min(engine.scheduler.pages.longest(others))
        .min(text_len.max(DEEP + 2 * BEYOND))
}

/// The sequences of the steps, and the pages that they own.
pub(super) struct Company {
    text: Vec<u32>,
    sequences: [Member; SEQUENCES],
}

#[derive(Default)]
struct Member {
    pages: Tables,
    len: usize,
}

impl Company {
    /// Sequences without a token yet, of `text`, which is repeated where it ends.
    pub fn new(engine: &EngineCore, text: &[u32]) -> Company {
        assert!(!text.is_empty(), "steps are made of tokens");
        let len = room(engine, text.len()).max(2 * PAGE_SIZE) + SEQUENCES;
        Company {
            text: text.iter().copied().cycle().take(len).collect(),
            sequences: Default::default(),
        }
    }

    /// Computes a step of the plan.
    ///
    /// # Errors
    /// What the device reports.
    pub fn run(&mut self, engine: &mut EngineCore, step: &Planned) -> Result<()> {
        for (member, &(tokens, _)) in self.sequences.iter_mut().zip(&step.chunks) {
            let (pages, end) = (&mut member.pages, member.len + tokens);
            let grown = engine.scheduler.pages().provide(pages, member.len, end);
            assert!(grown, "room was planned for");
        }
        let (mut spans, mut rows) = (Vec::new(), Vec::new());
        let mut drawn = step.drawn.iter().cycle();
        for (i, (member, &(tokens, head_rows))) in
            self.sequences.iter().zip(&step.chunks).enumerate()
        {
            if tokens == 0 {
                continue;
            }
            // each of another beginning
            let text = &self.text[i..];
            let end = member.len + tokens;
            spans.push(Span {
                tokens: &text[member.len..end],
                first_position: member.len,
                pages: &member.pages,
                head_rows,
            });
            let count = match head_rows {
                HeadRows::None => 0,
                HeadRows::Last(count) | HeadRows::Tail(count) => count,
                HeadRows::All => tokens,
            };
            for _ in 0..count {
                let sampling = drawn.next().expect("a step draws in some way");
                rows.push(Row {
                    sampling,
                    seed: sampling.seed,
                    window: &text[end.saturating_sub(sampling.repeat_last_n)..end],
                    position: end,
                    drafted: None,
                    logprobs: 0,
                });
            }
        }
        let batch = Batch {
            copies: &[],
            spans,
            rows,
            expected_seconds: None,
        };
        engine.runner.execute(&batch)?;
        for (member, &(tokens, _)) in self.sequences.iter_mut().zip(&step.chunks) {
            member.len += tokens;
            engine.scheduler.pages().pass(&mut member.pages, member.len);
        }
        Ok(())
    }

    /// Gives the pages back.
    pub fn leave(self, engine: &mut EngineCore) {
        for member in &self.sequences {
            engine.scheduler.pages().release(&member.pages);
        }
    }
}
