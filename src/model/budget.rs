//! How long a context may be and how many pages the cache has, by what memory there is. Pure
//! arithmetic; nothing here knows a device.
//!
//! ```text
//!   weights | activations, metadata, read-backs | KV cache
//!   fixed   | grow with context and sequences   | pages x bytes of a page, less where layers see a window
//!   <------------------------- at most the budget ------------------------->
//! ```
//!
//! What is wanted is room for every sequence at its longest. Where that is too much, the cache gets
//! what is left, but room for one sequence at least: a context that nobody asked for is shortened
//! until that fits, one that was asked for is refused, with the sum and with the longest that would do.

use crate::error::{Error, Result};
use crate::kv::{MAX_PAGES, PAGE_SIZE, pages_for};
use std::str::FromStr;

/// A context that nobody asked for is not made shorter than this, in tokens.
const LEAST_DEFAULT_CONTEXT: usize = 512;

/// What everything on the device may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemoryLimit {
    /// So many bytes.
    Bytes(u64),
    /// This part, in percent, of what the device has, or the host where the device is its CPU.
    Percent(f64),
}

impl MemoryLimit {
    /// In bytes, of `all` there are; `None` where they are needed and unknown.
    pub fn of(self, all: Option<u64>) -> Option<u64> {
        match self {
            MemoryLimit::Bytes(bytes) => Some(bytes),
            MemoryLimit::Percent(share) => all.map(|all| (all as f64 * share / 100.0) as u64),
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    /// `6GiB`, `1.5GiB`, `800MiB`, `6GB`, `800MB`, `80%`; also TiB and TB.
    fn from_str(text: &str) -> Result<MemoryLimit, String> {
        let text = text.trim();
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let wanted = "expected a size such as 6GiB, 1.5GiB or 800MiB, or a share such as 80%";
        let value: f64 = number
            .parse()
            .map_err(|_| format!("\"{text}\": {wanted}"))?;
        let scale = match unit.trim_start().to_ascii_lowercase().as_str() {
            "%" if (1.0..=100.0).contains(&value) => return Ok(MemoryLimit::Percent(value)),
            "%" => return Err(format!("\"{text}\" is not in 1%..=100%")),
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            "mb" => 1e6,
            "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
            "gb" => 1e9,
            "tb" => 1e12,
            _ => return Err(format!("\"{text}\": {wanted}")),
        };
        let bytes = value * scale;
        if !(1e6..=1e15).contains(&bytes) {
            return Err(format!("\"{text}\" is not in 1MB..=1000TB"));
        }
        Ok(MemoryLimit::Bytes(bytes as u64))
    }
}

/// The two sizes that give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Pages of the cache; of layers that see a window there may be fewer.
    pub pages: usize,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Whether somebody asked for just this context.
    pub is_asked: bool,
    /// Sequences that each want to grow as long.
    pub sequences: usize,
    /// Tokens in all, where somebody has a number of his own.
    pub pool_tokens: Option<usize>,
}

impl Wish {
    /// The shortest context that would do.
    pub fn least_context(&self) -> usize {
        if self.is_asked {
            self.context
        } else {
            self.context.min(LEAST_DEFAULT_CONTEXT)
        }
    }

    /// Everything that is wanted, were the context `context`.
    pub fn in_full(&self, context: usize) -> PoolSize {
        let one = pages_for(context);
        let pages = match self.pool_tokens {
            Some(tokens) => pages_for(tokens),
            None => one.saturating_mul(self.sequences),
        };
        let pages = pages.clamp(1, MAX_PAGES);
        PoolSize { context, pages }
    }

    /// The least that will do with it: room for one sequence, unless less was asked for.
    fn at_least(&self, context: usize) -> PoolSize {
        let pages = self.in_full(context).pages.min(pages_for(context));
        PoolSize { context, pages }
    }
}

/// What things cost, in bytes.
pub struct Costs<'a> {
    /// The weights.
    pub weights: u64,
    /// Keys and values of all layers; more for more of either size.
    pub cache: &'a dyn Fn(PoolSize) -> u64,
    /// Everything else; more for more of either size.
    pub scratch: &'a dyn Fn(PoolSize) -> u64,
}

impl Costs<'_> {
    /// Bytes of everything.
    pub fn total(&self, size: PoolSize) -> u64 {
        let rest = self.weights.saturating_add((self.scratch)(size));
        (self.cache)(size).saturating_add(rest)
    }
}

/// The sizes for `wish` within `limit`; all of the wish where there is none.
///
/// # Errors
/// [`Error::DoesNotFit`] with the sum, and the longest context that would fit.
pub fn choose(wish: &Wish, costs: &Costs, limit: Option<u64>) -> Result<PoolSize> {
    let whole = wish.in_full(wish.context);
    let Some(limit) = limit else {
        return Ok(whole);
    };
    let fits = |size: PoolSize| costs.total(size) <= limit;
    if fits(whole) {
        return Ok(whole);
    }
    let context = wish.context;
    let least = wish.at_least(context);
    if fits(least) {
        let with = |pages| PoolSize { context, pages };
        let pages = largest(least.pages, whole.pages, |pages| fits(with(pages)));
        return Ok(with(pages));
    }
    // whole pages: less would leave room that nobody can use
    let at = |pages: usize| wish.at_least(pages * PAGE_SIZE);
    let longest = fits(at(1)).then(|| largest(1, pages_for(context), |pages| fits(at(pages))));
    match longest.map(at) {
        Some(size) if size.context >= wish.least_context() => Ok(size),
        longest => Err(refusal(costs, least, limit, longest)),
    }
}

/// What is tried next where the device had no room for `size`; `None` when nothing less will do.
pub fn smaller(size: PoolSize, least_context: usize) -> Option<PoolSize> {
    let PoolSize { context, pages } = size;
    let one = pages_for(context);
    if pages > one {
        let pages = (pages / 2).max(one);
        return Some(PoolSize { context, pages });
    }
    let context = (context / 2).max(least_context);
    let pages = pages.min(pages_for(context));
    (context < size.context).then_some(PoolSize { context, pages })
}

/// Calls `attempt` with ever smaller sizes, from `size` on, as long as it is the device's memory that is
/// too small.
///
/// # Errors
/// What the last attempt reports.
pub fn until_it_fits<T>(
    mut size: PoolSize,
    least_context: usize,
    mut attempt: impl FnMut(PoolSize) -> Result<T>,
) -> Result<T> {
    loop {
        match (attempt(size), smaller(size, least_context)) {
            (Err(Error::OutOfMemory { what, bytes }), Some(next)) => {
                log::warn!(
                    "the device is out of memory at {what} ({bytes} bytes): trying a cache of {} \
                     tokens instead of {}",
                    next.pages * PAGE_SIZE,
                    size.pages * PAGE_SIZE
                );
                size = next;
            }
            (result, _) => return result,
        }
    }
}

/// The largest of `low..=high` that `fits`; `low` does, and none does beyond one that does not.
pub(super) fn largest(mut low: usize, mut high: usize, fits: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

fn refusal(costs: &Costs, size: PoolSize, limit: u64, longest: Option<PoolSize>) -> Error {
    let advice = match longest {
        Some(size) if size.context > 1 => format!(
            "--ctx-size {} is the largest that fits; a larger --gpu-memory allows more, if the \
             device has it",
            size.context
        ),
        _ => "no --ctx-size is small enough: it takes a larger --gpu-memory, another device or a \
              smaller model"
            .to_owned(),
    };
    Error::DoesNotFit {
        what: format!(
            "the model ({} bytes of weights, {} of activations, {} of KV cache for {} tokens)",
            costs.weights,
            (costs.scratch)(size),
            (costs.cache)(size),
            size.pages * PAGE_SIZE
        ),
        needed_bytes: costs.total(size),
        available_bytes: limit,
        advice,
    }
}

#[cfg(test)]
#[path = "budget/tests.rs"]
mod tests;
