//! What operators corrected in an account by hand, for good: who pays wants to see
//! it, and the same correction twice must change nothing. Does not know what a
//! correction does to the books.

use std::sync::Arc;

use crate::{accounts::count, digest, wire};

/// The most corrections that an account keeps, and so can have.
pub const CORRECTIONS_MAX: usize = 10_000;
/// For how long an account is kept for its corrections' sake alone, so that one that
/// is repeated is known: an hour.
const REMEMBERED_US: u64 = 3_600_000_000;

/// One correction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Correction {
    /// Chosen by whoever corrects, unique within the account.
    pub id: String,
    /// What was done.
    pub change: Change,
    /// How many units became free by it, or fewer; may be less than was asked for.
    pub effect: i64,
    /// Why, for people.
    pub reason: String,
    /// Who, as far as is known.
    pub by: String,
    /// Cluster time.
    pub at_us: u64,
    /// What the leader's wall clock said, in microseconds since 1970, for people.
    pub wall_unix_us: i64,
}

/// What a correction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Frees so many units, or counts so many more. Of a total, it adds to the limit or
    /// takes from it.
    Adjust(i64),
    /// Nothing is counted any more. What is outstanding stays so.
    Reset,
}

/// An account's corrections, the oldest first. Most accounts have none, and keep nothing
/// for them. Shared with snapshots that are being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Corrections(Option<Arc<All>>);

#[derive(Clone, Debug, Default)]
struct All {
    corrections: Vec<Correction>,
    hashes: digest::Sum,
}

impl Corrections {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Correction> {
        self.0.iter().flat_map(|all| &all.corrections)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |all| all.corrections.len())
    }

    pub(crate) fn find(&self, id: &str) -> Option<&Correction> {
        self.iter().find(|correction| correction.id == id)
    }

    pub(crate) fn push(&mut self, correction: Correction) {
        let all = Arc::make_mut(self.0.get_or_insert_default());
        all.hashes.add(digest::words([
            count(all.corrections.len()),
            digest::bytes(&wire::correction_bytes(&correction)),
        ]));
        all.corrections.push(correction);
    }

    /// Until when the account must be kept, so that a repeated correction is known.
    pub(crate) fn remembered_until_us(&self) -> u64 {
        let last = self.0.as_ref().and_then(|all| all.corrections.last());
        last.map_or(0, |last| last.at_us.saturating_add(REMEMBERED_US))
    }

    /// 0 when there is none.
    pub(crate) fn hash(&self) -> u64 {
        self.0.as_ref().map_or(0, |all| all.hashes.value())
    }
}
