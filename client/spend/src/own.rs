//! Budgets that a gateway counts by itself: an estimate, or no limit at all. It grants
//! itself what it may spend until it hears more, and no request waits. Knows nothing
//! of how messages travel; what others have spent is in what it is told to be free.

use std::{task::Waker, time::Duration};

use crate::{
    clock::Clock,
    kind::BudgetKind,
    lane::Lane,
    slot::{Inner, Miss, Slot},
    sync::Ordering,
    verdict::{Code, Verdict},
    word::{ESTIMATE, LEFT_MAX},
};

/// What there is of a budget without a limit: more than is spent between two answers.
const ENDLESS: u64 = LEFT_MAX / 2;
/// When it is worth trying again that nothing is left of an estimate: an ask is on its
/// way, whose answer says how much there is.
const ANSWER_WITHIN: Duration = Duration::from_millis(100);

impl Slot {
    /// Whether units of this key are the gateway's own to grant.
    pub(crate) fn counts_by_itself(&self) -> bool {
        matches!(
            self.kind(),
            Some(BudgetKind::Estimate | BudgetKind::Unlimited)
        )
    }

    /// What is told to a request whose units were taken.
    pub(crate) fn admitted(&self) -> Verdict {
        // Relaxed: the flag changes with the policy alone.
        if self.word.load(Ordering::Relaxed) & ESTIMATE == 0 {
            Verdict::Admitted
        } else {
            Verdict::Estimated
        }
    }

    /// This gateway's part of what was free when it was last heard of: it grants itself
    /// so much, `most` at most, less what it has spent since. `spent_known` is what the coordinator knew
    /// then of its spends. Says how much is left; none: it has no lease to tell spends by.
    pub fn grant_own(&self, free: u64, holders: u64, most: u64, spent_known: u64) -> Option<u64> {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        let part = match self.kind() {
            Some(BudgetKind::Unlimited) => ENDLESS,
            _ => (free / holders.max(1)).min(most),
        };
        let lease = inner
            .books
            .current
            .as_mut()
            .filter(|lease| lease.is_own && !lease.is_parked)?;
        let left = loop {
            let left = self.left();
            let since = lease.spent(left).saturating_sub(spent_known);
            let target = part.saturating_sub(since).min(ENDLESS);
            if target >= left {
                // What is spent meanwhile is missing from both.
                lease.granted += target - left;
                self.raise_left(target - left);
                break target;
            }
            // A spender may be faster; then there is less to take back.
            if self.lower_left(left - target) {
                lease.granted -= left - target;
                break target;
            }
        };
        self.serve(&mut inner, &mut wakes);
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        Some(left)
    }

    /// What a request is told that found too little of a key that is counted here: it is
    /// never left to wait.
    pub(crate) fn settle_own(&self, miss: Miss, units: u64, clock: &impl Clock) -> Miss {
        if matches!(miss, Miss::Answer(_)) || !self.counts_by_itself() {
            return miss;
        }
        self.ring_unless_asked(Lane::LOWEST);
        if self.kind() == Some(BudgetKind::Unlimited) {
            return Miss::Answer(self.degrade(units));
        }
        let answer = self.own_answer(&self.lock());
        Miss::Answer(match miss {
            Miss::Refused(verdict) => {
                self.count_refused(units);
                verdict
            }
            Miss::Alone => self.fail(units, Code::Disconnected, clock),
            _ => match answer {
                Some(verdict) => {
                    self.count_refused(units);
                    verdict
                }
                None => self.fail(units, Code::NoAnswer, clock),
            },
        })
    }

    /// What a request is told that finds too little of an estimate, if there is a lease
    /// to tell spends by.
    pub(crate) fn own_answer(&self, inner: &Inner) -> Option<Verdict> {
        let is_estimate = self.kind() == Some(BudgetKind::Estimate);
        let lease = inner.books.current.as_ref();
        let is_counted = lease.is_some_and(|lease| lease.is_own && !lease.is_parked);
        (is_estimate && is_counted).then_some(Verdict::Denied {
            code: Code::Limit,
            retry_after: Some(ANSWER_WITHIN),
        })
    }

    /// Takes in of which kind the budget is. Called with the lock held.
    pub(crate) fn mark_kind(&self, kind: BudgetKind) {
        // AcqRel, both: as any other change of the word under the lock.
        if kind == BudgetKind::Estimate {
            self.word.fetch_or(ESTIMATE, Ordering::AcqRel);
        } else {
            self.word.fetch_and(!ESTIMATE, Ordering::AcqRel);
        }
    }
}
