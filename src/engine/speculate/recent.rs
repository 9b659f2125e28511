//! Texts that are over: what one of them says, the next may say again. Each tenant has its own.

use super::suffix::{BREAK, Found, MOST_MATCHED, SuffixIndex};
use std::collections::{BTreeMap, VecDeque};

/// Tokens that are kept of a tenant's texts. A text that is longer is kept from where so many are left.
pub const TENANT_TOKENS: usize = 65536;
/// Tenants whose texts are kept: at most 50 MiB in all.
pub const TENANTS: usize = 16;

/// Texts of several tenants. Nobody finds those of others.
#[derive(Debug)]
pub struct Recent {
    tenants: BTreeMap<Vec<u8>, Tenant>,
    tenant_tokens: usize,
    most_tenants: usize,
    /// Texts that were taken.
    count: u64,
}

/// The texts of one.
#[derive(Debug, Default)]
struct Tenant {
    /// Each text with a break after it.
    index: SuffixIndex,
    /// Their lengths with the breaks, oldest first.
    lens: VecDeque<usize>,
    /// How the newest began.
    newest: Vec<u32>,
    /// When the last came.
    last: u64,
}

impl Default for Recent {
    /// For [`TENANTS`] with [`TENANT_TOKENS`] each.
    fn default() -> Recent {
        Recent::new(TENANT_TOKENS, TENANTS)
    }
}

impl Recent {
    /// For `most_tenants` with `tenant_tokens` each.
    ///
    /// # Panics
    /// When there is no room for a text: for two tokens and a break.
    pub fn new(tenant_tokens: usize, most_tenants: usize) -> Recent {
        assert!(
            tenant_tokens > 2 && most_tenants > 0,
            "{tenant_tokens} tokens of {most_tenants} tenants"
        );
        Recent {
            tenants: BTreeMap::new(),
            tenant_tokens,
            most_tenants,
            count: 0,
        }
    }

    /// Takes a text that is over. Whose last text came longest ago goes where there are too many.
    pub fn take(&mut self, tokens: &[u32], cache_salt: &[u8]) {
        if tokens.len() < 3 {
            return; // nothing in it follows two tokens
        }
        self.count += 1;
        if !self.tenants.contains_key(cache_salt) {
            if self.tenants.len() == self.most_tenants {
                let oldest = self.tenants.iter().min_by_key(|(_, tenant)| tenant.last);
                let oldest = oldest.map(|(salt, _)| salt.clone());
                oldest.and_then(|salt| self.tenants.remove(&salt));
            }
            let tenant = Tenant::default();
            self.tenants.insert(cache_salt.to_owned(), tenant);
        }
        let tenant = self.tenants.get_mut(cache_salt).expect("it was added");
        tenant.last = self.count;
        tenant.take(tokens, self.tenant_tokens);
    }

    /// The longest run of tokens in a tenant's texts that `context` ends with.
    pub fn longest(&self, context: &[u32], cache_salt: &[u8]) -> Option<Found> {
        self.tenants.get(cache_salt)?.index.longest(context)
    }

    /// What followed it there, at most `most` tokens.
    ///
    /// # Panics
    /// When it was found in another tenant's texts, or before another text was taken.
    pub fn after(&self, found: Found, most: usize, cache_salt: &[u8]) -> Vec<u32> {
        self.tenants[cache_salt].index.after(found, most)
    }
}

impl Tenant {
    fn take(&mut self, tokens: &[u32], most: usize) {
        let text = &tokens[self
            .known(tokens)
            .max(tokens.len().saturating_sub(most - 1))..];
        let len = text.len() + 1;
        while self.index.len() + len > most {
            let oldest = self.lens.pop_front();
            self.index
                .forget(oldest.expect("no text is longer than all may be"));
        }
        self.index.extend(text);
        self.index.push(BREAK);
        self.lens.push_back(len);
        self.newest.clear();
        self.newest.extend(tokens.iter().take(most));
    }

    /// Tokens that need not be taken again: a conversation goes on where its last turn ended, and several
    /// answers have one prompt. The last of these are, since what follows is found by them.
    fn known(&self, tokens: &[u32]) -> usize {
        let both = self.newest.iter().zip(tokens);
        let equal = both.take_while(|(a, b)| a == b).count();
        equal.saturating_sub(MOST_MATCHED)
    }
}
