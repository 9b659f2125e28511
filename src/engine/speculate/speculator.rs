//! What is verified in a step: proposals, cut to what pays.

use super::account::Account;
use super::cost::Cost;
use super::drafting::{Asked, Drafting};
use super::gain::{Bounds, Guess, choose};
use super::ngram::{self, NGram};
use super::odds::Odds;
use super::options::{Speculate, SpeculateOptions};
use super::{CLASSES, MOST_PROPOSED, Proposal, Proposer, Text};
use crate::engine::request::RequestId;
use crate::error::Result;

/// Kinds of guesses: the classes of texts, those of a draft model, and a draft of any class.
const DRAFTS: usize = CLASSES;
const ANY_DRAFT: usize = 2 * CLASSES;
/// How often drafts are right, for a beginning.
const FIRST_DRAFT: f64 = 0.6;
/// Plain steps before the first proposal is verified.
const FIRST_PLAIN: u64 = 2;
/// A plain step is measured after so many others: for each that was before, up to a bound.
const PLAIN_EVERY: u64 = 16;
const MOST_PLAIN_EVERY: u64 = 128;
/// A step that took longer than it should at worst by this factor was held up by something else.
const HELD_UP: f64 = 2.0;

/// What came of speculation so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Proposed tokens that were verified.
    pub proposed: u64,
    /// Of these, those that the model said as well.
    pub accepted: u64,
    /// Runs of proposed tokens that were verified.
    pub proposals: u64,
    /// Tokens that sequences drew themselves, one in each step: of a sequence alone, passes of the model.
    /// Without speculation there are as many as tokens, so what was accepted is what was saved.
    pub target_passes: u64,
    /// Seconds that it took to propose.
    pub propose_seconds: f64,
    /// Seconds of steps that verified something and had no prompt in them.
    pub verify_seconds: f64,
}

/// Decides what to verify, and learns from it.
///
/// For each step: [`Speculator::propose`], [`Speculator::took`] with the seconds that took, and when the step
/// is over, [`Speculator::learn`] where something was verified, [`Speculator::plain`] where nothing was.
/// A step that fails is told of by neither.
pub struct Speculator {
    options: SpeculateOptions,
    ngram: Option<NGram>,
    draft: Option<Box<dyn Proposer + Send>>,
    odds: Odds,
    cost: Cost,
    account: Account,
    drafting: Drafting,
    /// Plain steps that were measured, and steps since the last of them.
    plain_steps: u64,
    since_plain: u64,
    totals: Totals,
}

impl Speculator {
    /// As `options` say, with a draft model where there is one.
    pub fn new(options: SpeculateOptions, draft: Option<Box<dyn Proposer + Send>>) -> Speculator {
        let finds = matches!(options.mode, Speculate::NGram | Speculate::Auto);
        let drafts = matches!(options.mode, Speculate::Draft | Speculate::Auto);
        let mut first = ngram::FIRST_CHANCES.to_vec();
        first.resize(ANY_DRAFT + 1, FIRST_DRAFT);
        Speculator {
            options,
            ngram: finds.then(NGram::default),
            draft: draft.filter(|_| drafts),
            odds: Odds::new(first),
            cost: Cost::default(),
            account: Account::default(),
            drafting: Drafting::default(),
            plain_steps: 0,
            since_plain: 0,
            totals: Totals::default(),
        }
    }

    /// Another draft model, or none; of no use where `options` ask for none.
    pub fn set_draft(&mut self, draft: Option<Box<dyn Proposer + Send>>) {
        let drafts = matches!(self.options.mode, Speculate::Draft | Speculate::Auto);
        self.draft = draft.filter(|_| drafts);
    }

    /// Whether what is proposed may have to be accepted by rejection sampling.
    pub fn tells_choices(&self) -> bool {
        self.draft
            .as_ref()
            .is_some_and(|draft| draft.tells_choices())
    }

    /// What to verify of each of `texts`: nothing, or the first tokens of a proposal. `texts` are all that
    /// decode in the step, those included that nothing can be proposed for (`most` is 0 then); the step
    /// may have `max_rows` rows, one for each of them included.
    ///
    /// # Errors
    /// What the draft model's device reports.
    pub fn propose(&mut self, texts: &[Text<'_>], max_rows: usize) -> Result<Vec<Proposal>> {
        self.drafting.ask(0, None);
        let most = self.options.fixed.unwrap_or(self.options.most);
        let most = most.min(MOST_PROPOSED);
        let asked = texts.iter().map(|text| Text {
            most: text.most.min(most),
            ..*text
        });
        let asked: Vec<Text<'_>> = asked.collect();
        let mut proposals = vec![Proposal::default(); texts.len()];
        if max_rows <= texts.len() || (self.ngram.is_none() && self.draft.is_none()) {
            return Ok(proposals);
        }
        if let Some(ngram) = &mut self.ngram {
            propose_for(ngram, &asked, |_| true, 0, &mut proposals)?;
        }
        match self.options.fixed {
            Some(_) => self.propose_fixed(&asked, &mut proposals)?,
            None if self.is_plain_due(texts.len()) => proposals.fill(Proposal::default()),
            None => self.propose_what_pays(&asked, max_rows, &mut proposals)?,
        }
        let mut left = max_rows - texts.len();
        for proposal in &mut proposals {
            proposal.truncate(left);
            left -= proposal.tokens.len();
        }
        Ok(proposals)
    }

    /// The last call of [`Speculator::propose`] took so many seconds.
    pub fn took(&mut self, seconds: f64) {
        self.totals.propose_seconds += seconds;
        self.drafting.took(seconds);
    }

    /// A step of `rows` rows verified proposals: whose, what, and how many tokens of it were accepted; the
    /// other rows were those of who decodes. It took `seconds`; `None` where prompts were in it too, so that
    /// its time tells nothing.
    ///
    /// # Panics
    /// When more was proposed than there were rows, or more accepted than proposed.
    pub fn learn(
        &mut self,
        outcomes: &[(RequestId, &Proposal, usize)],
        rows: usize,
        seconds: Option<f64>,
    ) {
        let (mut proposed, mut accepted) = (0, 0);
        for &(id, proposal, right) in outcomes {
            let len = proposal.tokens.len();
            if len == 0 {
                continue;
            }
            proposed += len;
            accepted += right;
            self.totals.proposals += 1;
            self.odds.learn(id, proposal.class, len, right);
            if proposal.class >= DRAFTS {
                self.odds.learn(id, ANY_DRAFT, len, right);
            }
        }
        assert!(proposed < rows, "{proposed} proposed tokens in {rows} rows");
        if proposed == 0 {
            return self.plain(rows, seconds);
        }
        let base = rows - proposed;
        self.totals.proposed += proposed as u64;
        self.totals.accepted += accepted as u64;
        self.totals.target_passes += base as u64;
        self.totals.verify_seconds += seconds.unwrap_or(0.0);
        self.since_plain += 1;
        let plain = self.cost.expected(base);
        if let (Some(plain), Some(expected)) = (plain, self.cost.seconds(rows)) {
            let taken = seconds.unwrap_or(expected.expected);
            let saved = plain * accepted as f64 / base as f64;
            let lost = taken.min(HELD_UP * expected.high) - plain - saved;
            self.account.settle(lost, plain);
        }
        self.step(base, rows, seconds);
    }

    /// A step with a row for each of `rows` sequences verified nothing; it took `seconds`, `None` as in
    /// [`Speculator::learn`].
    pub fn plain(&mut self, rows: usize, seconds: Option<f64>) {
        self.totals.target_passes += rows as u64;
        if seconds.is_some() {
            self.plain_steps += 1;
            self.since_plain = 0;
        }
        self.step(rows, rows, seconds);
        if let Some(plain) = self.cost.expected(rows) {
            self.account.earn(plain);
        }
    }

    /// A text is over: `tokens` are all that it came to.
    pub fn end(&mut self, id: RequestId, tokens: &[u32], cache_salt: &[u8]) {
        self.odds.end(id);
        if let Some(ngram) = &mut self.ngram {
            ngram.end(id, tokens, cache_salt);
        }
        if let Some(draft) = &mut self.draft {
            draft.end(id, tokens, cache_salt);
        }
    }

    /// What came of it so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// A step is over.
    fn step(&mut self, base: usize, rows: usize, seconds: Option<f64>) {
        self.odds.tick();
        if let Some(seconds) = seconds {
            self.cost.learn(rows, seconds);
        }
        let drafted = self.drafting.settle();
        if let Some(plain) = self.cost.expected(base) {
            self.account.settle(drafted, plain);
        }
    }

    /// Whether the next step has to be plain, so that it is known what is saved.
    fn is_plain_due(&self, base: usize) -> bool {
        let every = (PLAIN_EVERY * self.plain_steps).min(MOST_PLAIN_EVERY);
        self.plain_steps < FIRST_PLAIN || self.since_plain >= every || !self.cost.has_seen(base)
    }

    /// Whatever there is, of the draft model where texts have nothing.
    fn propose_fixed(&mut self, asked: &[Text<'_>], proposals: &mut [Proposal]) -> Result<()> {
        let Some(draft) = &mut self.draft else {
            return Ok(());
        };
        let most = asked.iter().map(|text| text.most).max().unwrap_or(0);
        if !draft.is_free() {
            self.drafting.ask(most, self.cost.expected(asked.len()));
        }
        let wanting: Vec<bool> = proposals.iter().map(|p| p.tokens.is_empty()).collect();
        let drafted = propose_for(&mut **draft, asked, |i| wanting[i], DRAFTS, proposals)?;
        if drafted == 0 {
            self.drafting.only_read();
        }
        Ok(())
    }

    /// What pays of what texts propose, and of what the draft model does where that is better.
    fn propose_what_pays(
        &mut self,
        asked: &[Text<'_>],
        max_rows: usize,
        proposals: &mut [Proposal],
    ) -> Result<()> {
        let mut bounds = Bounds {
            rows: max_rows,
            credit: self.account.credit(),
            beside: [0.0; 3],
            spent: 0.0,
        };
        let guesses = self.guesses(asked, proposals);
        if let Some(draft) = &mut self.draft {
            let drafts = asked.iter().zip(&guesses).map(|(text, guess)| {
                let odds = |kind| {
                    (
                        self.odds.chance(text.id, kind),
                        self.odds.hope(text.id, kind),
                    )
                };
                let (chance, hope) = odds(ANY_DRAFT);
                let is_better = guess.len == 0 || chance > guess.chance;
                (text.most > 0 && is_better).then_some(Guess {
                    chance,
                    hope,
                    len: text.most,
                })
            });
            let drafts: Vec<Option<Guess>> = drafts.collect();
            let question = Asked {
                guesses: &guesses,
                drafts: &drafts,
                is_free: draft.is_free(),
            };
            let len = self.drafting.choose(&question, &self.cost, &bounds);
            if len > 0 {
                if !draft.is_free() {
                    self.drafting.ask(len, self.cost.expected(asked.len()));
                    bounds.spent = self.drafting.expected();
                }
                let is_asked = |i: usize| drafts[i].is_some();
                let texts = asked.iter().map(|text| Text {
                    most: text.most.min(len),
                    ..*text
                });
                let texts: Vec<Text<'_>> = texts.collect();
                let drafted = propose_for(&mut **draft, &texts, is_asked, DRAFTS, proposals)?;
                if drafted == 0 {
                    self.drafting.only_read();
                }
            }
        }
        let guesses = self.guesses(asked, proposals);
        let choice = choose(&guesses, &self.cost, &bounds);
        for (proposal, len) in proposals.iter_mut().zip(choice.lens) {
            proposal.truncate(len);
        }
        Ok(())
    }

    /// What proposals are worth.
    fn guesses(&self, asked: &[Text<'_>], proposals: &[Proposal]) -> Vec<Guess> {
        let guess = |(text, proposal): (&Text<'_>, &Proposal)| Guess {
            chance: self.odds.chance(text.id, proposal.class),
            hope: self.odds.hope(text.id, proposal.class),
            len: proposal.tokens.len().min(text.most),
        };
        asked.iter().zip(proposals).map(guess).collect()
    }
}

/// Fills in what is proposed for those of `texts` that `is_asked` names and that can use any; returns for how
/// many there is something. Classes of this proposer are kinds from `first_kind` on.
fn propose_for(
    proposer: &mut dyn Proposer,
    texts: &[Text<'_>],
    is_asked: impl Fn(usize) -> bool,
    first_kind: usize,
    proposals: &mut [Proposal],
) -> Result<usize> {
    let asked: Vec<usize> = (0..texts.len())
        .filter(|&i| is_asked(i) && texts[i].most > 0)
        .collect();
    if asked.is_empty() {
        return Ok(0);
    }
    let some: Vec<Text<'_>> = asked.iter().map(|&i| texts[i]).collect();
    let proposed = proposer.propose(&some)?;
    assert_eq!(proposed.len(), some.len(), "a proposal for each text");
    let mut filled = 0;
    for (i, mut proposal) in asked.into_iter().zip(proposed) {
        let class = proposal.class;
        assert!(class < CLASSES, "class {class} of {CLASSES}");
        if !proposal.tokens.is_empty() {
            proposal.truncate(texts[i].most);
            proposal.class += first_kind;
            proposals[i] = proposal;
            filled += 1;
        }
    }
    Ok(filled)
}

#[cfg(test)]
#[path = "../tests/speculate.rs"]
mod tests;
