//! A handle for one key, and how a request waits. Knows no session.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use leasehold_key::Key;
use leasehold_spend::{Begun, Clock, Lane as Place, Patience, Peek, Quota, Slot, Verdict, Waiter};

use crate::{
    clock::SystemClock,
    driver::{Alive, Shared},
    lane::Lane,
};

/// A handle for one key: cheap to clone, and the fastest way to spend.
#[derive(Clone, Debug)]
pub struct Budget {
    key: Key,
    slot: Arc<Slot>,
    shared: Arc<Shared>,
    alive: Arc<Alive>,
}

impl Budget {
    pub(crate) fn new(key: Key, slot: Arc<Slot>, shared: Arc<Shared>, alive: Arc<Alive>) -> Self {
        Self {
            key,
            slot,
            shared,
            alive,
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn alive(&self) -> &Arc<Alive> {
        &self.alive
    }

    /// How long a request is prepared to wait that begins now.
    pub(crate) fn patience(&self, wait: Duration) -> Patience {
        until(&self.shared.clock, wait)
    }

    /// Whether it was made by the client that this is of.
    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Spends units from what is held here. Synchronous: it never waits, takes no
    /// lock and allocates nothing. `Empty` means that an ask is on its way.
    #[inline]
    pub fn try_spend(&self, units: u64) -> Verdict {
        self.slot.try_spend(units, &self.shared.clock)
    }

    /// A handle for a lane of the key's policy. The budget itself stands for the
    /// lowest.
    #[must_use]
    pub fn lane(&self, name: &str) -> Lane {
        Lane::new(self.clone(), name)
    }

    #[inline]
    pub(crate) fn try_spend_in(&self, lane: Place, units: u64) -> Verdict {
        self.slot.try_spend_in(lane, units, &self.shared.clock)
    }

    pub(crate) async fn spend_in(&self, lane: Place, units: u64) -> Verdict {
        spend(&self.slot, &self.shared.clock, lane, units).await
    }

    pub(crate) async fn spend_within_in(&self, lane: Place, units: u64, wait: Duration) -> Verdict {
        spend_within(&self.slot, &self.shared.clock, lane, units, wait).await
    }

    /// What is known of the budget without asking anybody and without spending: how
    /// many units a request could get here, and when it is worth to come back if it
    /// is refused. An estimate: other gateways take units all the time.
    #[must_use]
    pub fn peek(&self) -> Peek {
        self.slot.peek(&self.shared.clock)
    }

    /// What callers may be told of the key's policy: its public name, limit and window.
    /// None until the coordinator said it, which it does with its first answer.
    #[must_use]
    pub fn quota(&self) -> Option<Arc<Quota>> {
        self.slot.quota()
    }

    /// Spends units; asks the coordinator when too few are held, and waits for
    /// that one answer, at most the policy's `max_wait_ms`.
    pub async fn spend(&self, units: u64) -> Verdict {
        self.spend_in(Place::LOWEST, units).await
    }

    /// Spends units; waits for capacity if need be, up to `wait`, first come
    /// first served.
    pub async fn spend_within(&self, units: u64, wait: Duration) -> Verdict {
        self.spend_within_in(Place::LOWEST, units, wait).await
    }
}

pub(crate) async fn spend(
    slot: &Arc<Slot>,
    clock: &SystemClock,
    lane: Place,
    units: u64,
) -> Verdict {
    match slot.spend_in(lane, units, Patience::OneAnswer, clock) {
        Begun::Answered(verdict) => verdict,
        Begun::Waits(waiter) => {
            let wait = Duration::from_nanos(slot.max_wait_ns_in(lane));
            verdict_of(waiter, wait, clock).await
        }
    }
}

pub(crate) async fn spend_within(
    slot: &Arc<Slot>,
    clock: &SystemClock,
    lane: Place,
    units: u64,
    wait: Duration,
) -> Verdict {
    match slot.spend_in(lane, units, until(clock, wait), clock) {
        Begun::Answered(verdict) => verdict,
        Begun::Waits(waiter) => verdict_of(waiter, wait, clock).await,
    }
}

pub(crate) fn until(clock: &SystemClock, wait: Duration) -> Patience {
    let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    Patience::Until(clock.now_ns().saturating_add(wait_ns))
}

/// The verdict, or what is known when the time is up. Dropped, it leaves the
/// queue.
async fn verdict_of(mut waiter: Waiter, wait: Duration, clock: &SystemClock) -> Verdict {
    let verdict = wait_for(wait, |context| waiter.poll(context, clock)).await;
    verdict.unwrap_or_else(|| waiter.give_up(clock))
}

/// What is polled for, or nothing when the time is up.
pub(crate) async fn wait_for<T>(
    wait: Duration,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let mut time_out = pin!(tokio::time::sleep(wait));
    poll_fn(|context| {
        if let Poll::Ready(told) = poll(context) {
            return Poll::Ready(Some(told));
        }
        time_out.as_mut().poll(context).map(|()| None)
    })
    .await
}
