//! For whom accounts were opened, as far as this leader remembers: so that the keys that
//! one gateway's callers make up do not fill what a budget has room for, and others find
//! none. Knows nothing of what becomes of an account.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use leasehold_key::Key;
use leasehold_ledger::Ledger;

use crate::access::Spender;

/// How often the accounts of an identity that has as many as it may are looked through for
/// some that are not there any more.
const SWEEP_EVERY_US: u64 = 1_000_000;

#[derive(Debug, Default)]
struct Opened {
    keys: HashSet<Key>,
    swept_us: u64,
}

/// Accounts by who opened them.
#[derive(Debug, Default)]
pub(super) struct Openers(HashMap<Arc<str>, Opened>);

impl Openers {
    /// Whether somebody may have units of a key: it has an account, or they may open one
    /// more. Takes note that they do.
    pub(super) fn may_use(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        spender: Option<&Spender>,
        key: &Key,
    ) -> bool {
        let Some(spender) = spender else {
            return true;
        };
        // Without a budget no account comes to be.
        if ledger.has_account(key) || ledger.resolve(key).is_none() {
            return true;
        }
        let opened = self.0.entry(Arc::clone(&spender.identity)).or_default();
        if opened.keys.contains(key) {
            return true;
        }
        let is_full = |opened: &Opened| opened.keys.len() >= spender.accounts_max;
        if is_full(opened) && now_us >= opened.swept_us.saturating_add(SWEEP_EVERY_US) {
            opened.swept_us = now_us;
            opened.keys.retain(|key| ledger.has_account(key));
        }
        if is_full(opened) {
            metrics::counter!("leasehold_refused_total", "limit" => "accounts_per_identity_max")
                .increment(1);
            return false;
        }
        opened.keys.insert(key.clone());
        true
    }
}
