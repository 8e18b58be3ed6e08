//! A look at a key without spending. Knows only what was heard last: an estimate.

use std::{sync::Arc, time::Duration};

use crate::{
    clock::Clock, kind::BudgetKind, lane::Lane, message::Policy, slot::Slot, sync::lock,
    verdict::Code,
};

/// What callers of a gateway may be told of a key's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quota {
    /// The policy's public name, never its internal one.
    pub public_name: String,
    /// The kind of the budget.
    pub kind: BudgetKind,
    /// The limit or capacity; none: it is unlimited.
    pub limit: Option<u64>,
    /// The window, the period's length, or the time in which an empty bucket fills;
    /// none: time frees nothing.
    pub window: Option<Duration>,
    /// It counts what it would refuse, and refuses nothing: there is nothing that callers
    /// should keep to.
    pub shadow: bool,
}

impl Quota {
    fn of(policy: &Policy) -> Self {
        let is_unlimited = policy.kind == BudgetKind::Unlimited;
        let is_freed_by_time = !matches!(
            policy.kind,
            BudgetKind::Total | BudgetKind::Concurrency | BudgetKind::Unlimited
        );
        let window = Duration::from_micros(policy.window_us);
        Self {
            public_name: policy.public_name.clone(),
            kind: policy.kind,
            limit: Some(policy.limit).filter(|_| !is_unlimited),
            window: Some(window).filter(|window| is_freed_by_time && !window.is_zero()),
            shadow: policy.shadow,
        }
    }
}

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
    /// What callers may be told of the key's policy, once the coordinator said it.
    #[must_use]
    pub fn quota(&self) -> Option<Arc<Quota>> {
        lock(&self.quota).clone()
    }

    pub(crate) fn set_quota(&self, policy: &Policy) {
        let quota = Quota::of(policy);
        *lock(&self.quota) = Some(Arc::new(quota));
    }

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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn told(kind: BudgetKind, window_us: u64) -> (Option<u64>, Option<Duration>) {
        let quota = Quota::of(&Policy {
            kind,
            limit: 7,
            window_us,
            public_name: "free".to_owned(),
            ..Policy::default()
        });
        assert_eq!(quota.public_name, "free");
        (quota.limit, quota.window)
    }

    #[test]
    fn a_limit_is_told_unless_there_is_none_and_a_window_if_time_frees_units() {
        let minute = Some(Duration::from_secs(60));
        assert_eq!(told(BudgetKind::Window, 60_000_000), (Some(7), minute));
        assert_eq!(told(BudgetKind::Total, 60_000_000), (Some(7), None));
        assert_eq!(told(BudgetKind::Concurrency, 60_000_000), (Some(7), None));
        assert_eq!(told(BudgetKind::Bucket, 0), (Some(7), None));
        assert_eq!(told(BudgetKind::Unlimited, 60_000_000), (None, None));
    }
}
