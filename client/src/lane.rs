//! A handle for one lane of one key. Knows no session, and no lane but by its name.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_spend::{Lane as Place, Verdict};

use crate::budget::Budget;

/// The answer is kept above the lane's place.
const VERSION_SHIFT: u32 = 32;

/// A handle for one lane of a key's policy: cheap to clone and to keep.
///
/// Lanes make a difference when there is too little: what waits in a higher lane is
/// served before what waits in a lower one, the coordinator keeps the higher lanes'
/// reserves back from the lower ones, and refuses the lower ones first. While units are
/// left here, requests of all lanes take them alike, so under overload a request of a
/// high lane is best made by [`spend`](Self::spend), which queues for its own units.
///
/// A policy without lanes, a name that it does not have, and a key of which no policy is
/// known yet all mean the lowest lane, which is also a [`Budget`]'s own.
#[derive(Debug)]
pub struct Lane {
    budget: Budget,
    name: Arc<str>,
    /// The place of the lane in the policy's list, and the list that this is true of.
    known: AtomicU64,
}

impl Clone for Lane {
    fn clone(&self) -> Self {
        Self {
            budget: self.budget.clone(),
            name: Arc::clone(&self.name),
            known: AtomicU64::new(self.known.load(Ordering::Relaxed)),
        }
    }
}

impl Lane {
    pub(crate) fn new(budget: Budget, name: &str) -> Self {
        Self {
            budget,
            name: name.into(),
            known: AtomicU64::new(u64::from(Place::LOWEST.0)),
        }
    }

    /// The lane's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the key's policy has a lane of this name, as far as is known here.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.budget.slot().lane(&self.name).1
    }

    fn place(&self) -> Place {
        let slot = self.budget.slot();
        let version = slot.lanes_version();
        // Relaxed: version and place are one value.
        let known = self.known.load(Ordering::Relaxed);
        let (known_of, place) = (known >> VERSION_SHIFT, known & u64::from(u32::MAX));
        if known_of == u64::from(version) {
            return u32::try_from(place).map_or(Place::LOWEST, Place);
        }
        let (place, is_there) = slot.lane(&self.name);
        if !is_there {
            slot.count_misnamed();
            tracing::warn!(
                key = %self.budget.key(),
                lane = %self.name,
                "the policy has no such lane: its requests are of the lowest"
            );
        }
        let known = u64::from(version) << VERSION_SHIFT | u64::from(place.0);
        self.known.store(known, Ordering::Relaxed);
        place
    }

    /// As [`Budget::try_spend`].
    #[inline]
    pub fn try_spend(&self, units: u64) -> Verdict {
        self.budget.try_spend_in(self.place(), units)
    }

    /// As [`Budget::spend`]; waits at most as long as the lane's `max_wait_ms`.
    pub async fn spend(&self, units: u64) -> Verdict {
        let place = self.place();
        let verdict = self.budget.spend_in(place, units).await;
        // The first request of a key teaches which lanes there are: it was refused as
        // one of the lowest.
        if matches!(verdict, Verdict::Denied { .. }) && self.place() < place {
            return self.budget.spend_in(self.place(), units).await;
        }
        verdict
    }

    /// As [`Budget::spend_within`], in the lane's turn.
    pub async fn spend_within(&self, units: u64, wait: Duration) -> Verdict {
        self.budget.spend_within_in(self.place(), units, wait).await
    }
}
