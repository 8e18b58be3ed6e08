//! The handle of a client. Knows neither the wire nor the session.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use leasehold_key::Key;
use leasehold_spend::{Code, Lane, Slot, Verdict};
use tokio::sync::watch;

use crate::{
    budget::{self, Budget},
    builder::Builder,
    driver::{Alive, Progress, Shared},
    error::BudgetError,
};

/// How long `close` waits for the coordinator.
const CLOSE_WITHIN: Duration = Duration::from_secs(2);
/// What a request is told to wait when the client has no room for its key.
pub(crate) const ROOM_AFTER: Duration = Duration::from_secs(1);

/// One holder: one session with the coordinator, shared by all clones.
///
/// Its task ends when the last clone and the last [`Budget`] are dropped. Leases
/// that were not handed back by [`close`](Self::close) then count as spent when
/// the session expires.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    alive: Arc<Alive>,
    progress: watch::Receiver<Progress>,
}

impl Client {
    /// Begins to set a client up.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(
        shared: Arc<Shared>,
        alive: Arc<Alive>,
        progress: watch::Receiver<Progress>,
    ) -> Self {
        Self {
            shared,
            alive,
            progress,
        }
    }

    /// What went wrong last on the way to a session: the endpoint, and why. For people;
    /// of interest while [`is_connected`](Self::is_connected) says no.
    #[must_use]
    pub fn last_error(&self) -> String {
        self.shared.last_error.lock().clone()
    }

    /// Waits until a session was opened for the first time; false if the client was
    /// closed before.
    pub(crate) async fn was_open(&self) -> bool {
        let mut progress = self.progress.clone();
        let open = progress.wait_for(|progress| progress.was_open).await;
        open.is_ok()
    }

    /// A handle for one key, cheap to clone and to keep: the fastest way to spend.
    ///
    /// # Errors
    /// When the text is not a key, or the client has as many keys as it may.
    pub fn budget(&self, key: &str) -> Result<Budget, BudgetError> {
        self.budget_of(Key::parse(key)?)
    }

    /// A handle for one key that was parsed or built before.
    ///
    /// # Errors
    /// When the client has as many keys as it may.
    pub fn budget_of(&self, key: Key) -> Result<Budget, BudgetError> {
        let Some((slot, is_new)) = self.shared.registry.slot_or_new(&key) else {
            let max = self.shared.registry.keys_max();
            return Err(BudgetError::TooManyKeys { max });
        };
        if self.shared.is_closing.load(Ordering::Acquire) {
            // The driver may be gone.
            slot.close();
        }
        if is_new {
            // The driver adopts it at once, so that its first ask is not late.
            self.shared.notify.notify_one();
        }
        Ok(Budget::new(
            key,
            slot,
            Arc::clone(&self.shared),
            Arc::clone(&self.alive),
        ))
    }

    /// Spends units of a key from what is held here: synchronous, never waits.
    #[inline]
    pub fn try_spend(&self, key: &str, units: u64) -> Verdict {
        let clock = &self.shared.clock;
        match self.shared.registry.with(key, |slot| {
            let verdict = slot.try_spend(units, clock);
            (verdict, slot.is_evicted())
        }) {
            Some((verdict, false)) => verdict,
            _ => match self.find(key) {
                Ok(slot) => slot.try_spend(units, clock),
                Err(verdict) => verdict,
            },
        }
    }

    /// Spends units of a key; asks the coordinator when too few are held, and
    /// waits for that one answer, at most the policy's `max_wait_ms`.
    pub async fn spend(&self, key: &str, units: u64) -> Verdict {
        loop {
            let slot = match self.find(key) {
                Ok(slot) => slot,
                Err(verdict) => return verdict,
            };
            let verdict = budget::spend(&slot, &self.shared.clock, Lane::LOWEST, units).await;
            if !was_evicted(&slot, verdict) {
                return verdict;
            }
        }
    }

    /// Spends units of a key; waits for capacity if need be, first come first
    /// served.
    pub async fn spend_within(&self, key: &str, units: u64, wait: Duration) -> Verdict {
        loop {
            let slot = match self.find(key) {
                Ok(slot) => slot,
                Err(verdict) => return verdict,
            };
            let verdict =
                budget::spend_within(&slot, &self.shared.clock, Lane::LOWEST, units, wait).await;
            if !was_evicted(&slot, verdict) {
                return verdict;
            }
        }
    }

    /// Hands everything back and ends the session. Every request is told
    /// `Unavailable` from now on. Waits two seconds at most for the coordinator;
    /// what it did not hear of counts as spent when the session expires.
    pub async fn close(&self) {
        self.shared.is_closing.store(true, Ordering::Release);
        self.shared.notify.notify_one();
        let mut progress = self.progress.clone();
        let over = progress.wait_for(|progress| progress.is_over);
        if tokio::time::timeout(CLOSE_WITHIN, over).await.is_err() {
            tracing::warn!("closed without an answer of the coordinator");
        }
    }

    /// Whether a coordinator can be asked now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.line.is_up()
    }

    /// How many keys are kept here now.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shared.registry.keys()
    }

    /// The slot of a key, made if it is new.
    fn find(&self, key: &str) -> Result<Arc<Slot>, Verdict> {
        let found = self
            .shared
            .registry
            .with(key, Arc::clone)
            .filter(|slot| !slot.is_evicted());
        if let Some(slot) = found {
            return Ok(slot);
        }
        if self.shared.is_closing.load(Ordering::Acquire) {
            return Err(Verdict::Unavailable { code: Code::Closed });
        }
        let Ok(key) = Key::parse(key) else {
            return Err(Verdict::Denied {
                code: Code::BadKey,
                retry_after: None,
            });
        };
        self.shared.registry.slot(&key).ok_or(Verdict::Denied {
            code: Code::TooManyKeys,
            retry_after: Some(ROOM_AFTER),
        })
    }
}

/// Whether a request met a slot that was taken out of service in the moment in
/// which it was found: the key has, or will have, another.
fn was_evicted(slot: &Slot, verdict: Verdict) -> bool {
    verdict == Verdict::Unavailable { code: Code::Closed } && slot.is_evicted()
}
