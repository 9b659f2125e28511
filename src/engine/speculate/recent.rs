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

#[cfg(test)]
mod tests {
    use super::*;

    /// What followed `context` in texts of `salt`.
    fn after(recent: &Recent, context: &[u32], salt: &[u8]) -> Option<Vec<u32>> {
        let found = recent.longest(context, salt)?;
        Some(recent.after(found, 8, salt))
    }

    /// A text that nothing else is in.
    fn text(number: u32, len: u32) -> Vec<u32> {
        (0..len).map(|i| 1000 * number + i).collect()
    }

    #[test]
    fn nobody_finds_what_others_said() {
        let mut recent = Recent::default();
        recent.take(&[1, 2, 3, 4], b"a");
        recent.take(&[1, 2, 5, 6], b"b");
        assert_eq!(after(&recent, &[1, 2], b"a"), Some(vec![3, 4]));
        assert_eq!(after(&recent, &[1, 2], b"b"), Some(vec![5, 6]));
        assert_eq!(after(&recent, &[1, 2], b""), None);
        recent.take(&[1, 2, 7, 8], b"");
        assert_eq!(after(&recent, &[1, 2], b"a"), Some(vec![3, 4]));
        assert_eq!(after(&recent, &[2, 7], b"a"), None);
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let mut recent = Recent::default();
        recent.take(&[1, 2, 3], b"");
        recent.take(&[4, 5, 6], b"");
        assert_eq!(after(&recent, &[1, 2], b""), Some(vec![3]));
        assert_eq!(after(&recent, &[2, 3], b""), None, "it ended there");
        assert_eq!(after(&recent, &[3, 4], b""), None);
        let found = recent.longest(&[3, 4, 5], b"").unwrap();
        assert_eq!(found.len, 2, "what came before is another text");
        recent.take(&[8, 9], b"");
        assert_eq!(after(&recent, &[8, 9], b""), None);
    }

    #[test]
    fn the_oldest_go_first() {
        let mut recent = Recent::new(100, 2);
        (0..5).for_each(|number| recent.take(&text(number, 30), b"a"));
        let holds = |recent: &Recent, number: u32, salt: &[u8]| {
            after(recent, &text(number, 30)[..10], salt).is_some()
        };
        let held: Vec<bool> = (0..5).map(|number| holds(&recent, number, b"a")).collect();
        assert_eq!(held, [false, false, true, true, true]);
        assert!(recent.tenants[&b"a"[..]].index.len() <= 100);
        // of a text that is longer than all may be, the end
        recent.take(&text(7, 500), b"a");
        assert!(!holds(&recent, 7, b"a") && !holds(&recent, 4, b"a"));
        let end = [7498 - 1, 7498];
        assert_eq!(after(&recent, &end, b"a"), Some(vec![7499]));
        assert_eq!(recent.tenants[&b"a"[..]].index.len(), 100);

        recent.take(&text(1, 30), b"b");
        recent.take(&text(2, 30), b"a");
        recent.take(&text(3, 30), b"c");
        assert!(!holds(&recent, 1, b"b"), "its last text came first");
        assert!(holds(&recent, 2, b"a") && holds(&recent, 3, b"c"));
    }

    #[test]
    fn a_conversation_is_kept_once() {
        let mut recent = Recent::default();
        let whole = text(3, 900);
        for turn in 1..=9 {
            recent.take(&whole[..100 * turn], b"");
        }
        let tenant = &recent.tenants[&b""[..]];
        assert!(tenant.index.len() < 900 + 9 * (MOST_MATCHED + 1));
        for at in [50, 100, 250, 899] {
            let found = recent.longest(&whole[..at], b"").unwrap();
            assert!(found.len >= 50, "{at}: {found:?}");
            assert_eq!(recent.after(found, 1, b""), whole[at..][..1]);
        }
    }
}
