//! A look at a key without spending. Knows only what was heard last: an estimate.

use std::time::Duration;

use crate::{clock::Clock, kind::BudgetKind, lane::Lane, slot::Slot, verdict::Code};

/// What is known of a key without asking: an estimate. Other gateways take units
/// all the time, and this one hears of it only when it is told something anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peek {
    /// Units that a request here could get: those that are left here, and those that
    /// the coordinator said are free when it last answered for this key. Other
    /// gateways may hold more that they do not use.
    pub remaining: u64,
    /// Of these, the ones that are here, which need no answer.
    pub here: u64,
    /// The limit or capacity, once the coordinator said it.
    pub limit: Option<u64>,
    /// The kind of the budget, once the coordinator said it.
    pub kind: Option<BudgetKind>,
    /// Why requests are refused now; none: they are not, as far as is known.
    pub refused: Option<Code>,
    /// How long they will be, if that ends.
    pub retry_after: Option<Duration>,
}

impl Slot {
    /// What is known of the key now.
    pub fn peek(&self, clock: &impl Clock) -> Peek {
        let here = self.left();
        let refusal = self.local_refusal(Lane::LOWEST, clock);
        let refused = refusal.and_then(|verdict| verdict.code());
        Peek {
            remaining: here.saturating_add(self.known_free().unwrap_or(0)),
            here,
            limit: self.known_limit(),
            kind: self.kind(),
            refused,
            retry_after: refusal.and_then(|verdict| verdict.retry_after()),
        }
    }
}
