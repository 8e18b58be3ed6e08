//! The ledger's interface before there is a ledger: delete this file, and its two
//! lines in `lib.rs`, when there is one.
#![allow(
    missing_docs,
    clippy::unused_self,
    clippy::must_use_candidate,
    reason = "a stand-in"
)]

use leasehold_key::{Key, Pattern};

use crate::{
    entry::{Entry, Rule, SessionId},
    outcome::{AccountView, Applied, Availability, Code, LeaseView, SessionView},
    policy::Policy,
    settings::Settings,
};

#[derive(Debug, Default)]
pub struct Ledger {
    settings: Settings,
}

impl Ledger {
    pub fn new() -> Self {
        Self::default()
    }
    pub fn apply(&mut self, _index: u64, _entry: &Entry) -> Applied {
        Applied::default()
    }
    pub fn now_us(&self) -> u64 {
        0
    }
    pub fn last_index(&self) -> u64 {
        0
    }
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
    pub fn needs_time(&self) -> bool {
        false
    }
    pub fn digest(&self) -> u64 {
        0
    }
    pub fn account(&self, _key: &Key) -> Option<AccountView> {
        None
    }
    pub fn accounts(&self, _prefix: &str, _after: Option<&Key>, _limit: usize) -> Vec<AccountView> {
        Vec::new()
    }
    pub fn available(&self, _key: &Key, _now_us: u64) -> Availability {
        Availability::NoBudget
    }
    pub fn session(&self, _id: SessionId) -> Option<SessionView> {
        None
    }
    pub fn sessions(&self, _after: Option<SessionId>, _limit: usize) -> Vec<SessionView> {
        Vec::new()
    }
    pub fn leases(&self, _id: SessionId) -> Vec<LeaseView> {
        Vec::new()
    }
    pub fn lease(&self, _id: SessionId, _key: &Key) -> Option<LeaseView> {
        None
    }
    pub fn policy(&self, _name: &str) -> Option<&Policy> {
        None
    }
    pub fn resolve(&self, _key: &Key) -> Option<(&str, Option<&str>, &Policy)> {
        None
    }
    pub fn policies(&self) -> Vec<(&str, &Policy)> {
        Vec::new()
    }
    pub fn budgets(&self) -> Vec<(&Pattern, &Rule)> {
        Vec::new()
    }
    pub fn totals(&self) -> Totals {
        Totals::default()
    }
    pub fn budget(&self, _pattern: &Pattern) -> Option<&Rule> {
        None
    }
    pub fn node_disk(&self, _node_id: u64) -> Option<u128> {
        None
    }
}

impl Code {
    pub fn as_str(self) -> &'static str {
        "limit"
    }
}

impl Settings {
    /// # Errors
    /// Never, yet.
    pub fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Policy {
    /// # Errors
    /// Never, yet.
    pub fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Debug, Default)]
pub struct Totals {
    pub accounts: u64,
    pub sessions: u64,
    pub outstanding: u64,
    pub leases: u64,
}
