//! An engine with a way to speculate, and what an answer took.

use nelumbo::engine::speculate::{Proposer, SpeculateOptions};
use nelumbo::engine::{EngineCore, EngineOptions, Event, Request};
use nelumbo::model::Texts;
use nelumbo::text::Message;
use nelumbo::{Error, LoadOptions, Model};
use std::path::Path;
use std::time::Instant;

/// A way to speculate.
pub struct Lane {
    pub engine: EngineCore,
    texts: Texts,
    /// Answers so far.
    asked: u64,
}

/// An answer, and what it took.
#[derive(Clone)]
pub struct Run {
    pub tokens: Vec<u32>,
    /// From the first token on.
    pub seconds: f64,
    pub passes: u64,
    pub proposed: u64,
    pub accepted: u64,
}

impl Lane {
    pub fn open(
        path: &Path,
        load: &LoadOptions,
        speculate: SpeculateOptions,
        draft: Option<Box<dyn Proposer + Send>>,
    ) -> Result<Lane, Error> {
        let Model { decoder, texts } = Model::load(path, load, &mut |_, _| ())?;
        let options = EngineOptions {
            speculate,
            ..EngineOptions::default()
        };
        let mut engine = EngineCore::with_options(decoder, &options)?;
        if let Some(draft) = draft {
            engine.set_draft(draft)?;
        }
        Ok(Lane {
            engine,
            texts,
            asked: 0,
        })
    }

    /// The answer to a message, greedy, up to so many tokens; each as a tenant of its own, so that nothing is
    /// known from the turn before.
    pub fn answer(&mut self, text: &str, max_tokens: usize) -> Result<Run, Error> {
        let messages = [Message::new("user", text)];
        let tokens = self.texts.encode_chat(&messages, "2026-01-01")?;
        self.asked += 1;
        self.engine.submit(Request {
            tokens,
            cache_salt: self.asked.to_le_bytes().to_vec(),
            max_tokens,
            end_tokens: self.texts.end_tokens.clone(),
            ..Request::default()
        })?;
        let (mut tokens, mut start) = (Vec::new(), None);
        let mut before = self.engine.speculation();
        while !self.engine.is_idle() {
            for event in self.engine.step()? {
                match event {
                    Event::Token { token, .. } => tokens.push(token),
                    Event::Finished { .. } => {}
                    Event::Failed { failure, .. } => return Err(failure.into()),
                }
            }
            if start.is_none() && !tokens.is_empty() {
                start = Some(Instant::now());
                before = self.engine.speculation();
            }
        }
        let after = self.engine.speculation();
        Ok(Run {
            tokens,
            seconds: start.map_or(0.0, |start| start.elapsed().as_secs_f64()),
            passes: after.target_passes - before.target_passes,
            proposed: after.proposed - before.proposed,
            accepted: after.accepted - before.accepted,
        })
    }
}

/// Names and texts of fixtures.
pub fn prompts(names: &[&'static str]) -> Vec<(&'static str, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speculate");
    let read = |name: &&'static str| {
        let path = folder.join(format!("{name}.txt"));
        let text = std::fs::read_to_string(&path).expect("a fixture of the repository");
        (*name, text.trim_end().to_owned())
    };
    names.iter().map(read).collect()
}
