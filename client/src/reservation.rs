//! Units that are reserved for work whose cost is known afterwards. Knows no
//! session.

use std::{sync::Arc, time::Duration};

use leasehold_spend::{self as spend, Begun, Clock, Patience, Verdict};

use crate::{
    budget::{Budget, wait_for},
    driver::{Alive, Shared},
    error::NotAdmitted,
};

/// Units that are reserved until they are settled.
///
/// It was admitted when it was made: until it is settled nobody else can use its
/// units, in any gateway. [`settle`](Self::settle) says what was really used.
/// Dropped, it hands everything back: do so only if the work was not done.
///
/// A reservation that is not settled within the policy's `hold_max_ms` (60 seconds
/// if it does not say) counts as spent in full, since nobody knows whether the work
/// was done; so it does when the client is closed, or loses its session (was
/// without a coordinator for longer than the session's time to live). Settling is
/// then [`Settled::TooLate`].
#[derive(Debug)]
#[must_use = "a reservation that is dropped hands its units back"]
pub struct Reservation {
    /// None: let through without units.
    inner: Option<spend::Reservation>,
    verdict: Verdict,
    units: u64,
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

/// What became of a reservation that was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// No more was used than was reserved.
    Within {
        /// Reserved units that were handed back.
        returned: u64,
    },
    /// More was used than was reserved.
    Over {
        /// Units beyond the reservation that were spent of what was left here.
        taken: u64,
        /// Units that there were none for. They are recorded in the account as
        /// overrun, and charged as far as units are free.
        overrun: u64,
    },
    /// The reservation counts as spent in full already.
    TooLate {
        /// Units beyond the reservation. They are recorded as overrun, unless the
        /// client was closed.
        overrun: u64,
    },
    /// The failure mode or shadow mode had let it through without units: nothing is
    /// recorded but that.
    LetThrough,
}

impl Reservation {
    /// How many units are reserved.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// `Admitted` (`Estimated` of an estimate); or what let the request through without units: `Degraded` by the
    /// failure mode, `Shadowed` by shadow mode. Then nothing is reserved.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How much longer it may stay unsettled. None: it is of no lease.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let until_ns = self.inner.as_ref()?.until_ns();
        let left_ns = until_ns.saturating_sub(self.shared.clock.now_ns());
        Some(Duration::from_nanos(left_ns))
    }

    /// Says how many units were really used. Of fewer than were reserved, the rest
    /// is handed back. More are spent of what is left here, as far as that goes;
    /// beyond it they are recorded as overrun, which is outside the promise: the
    /// work was done, and there were no units for it.
    pub fn settle(mut self, actual: u64) -> Settled {
        match self.inner.take() {
            None => Settled::LetThrough,
            Some(inner) => match inner.settle(actual, &self.shared.clock) {
                spend::Settled::Within { returned } => Settled::Within { returned },
                spend::Settled::Over { taken, overrun } => Settled::Over { taken, overrun },
                spend::Settled::TooLate { overrun } => Settled::TooLate { overrun },
                // The core says nothing else; this is the careful reading.
                _ => Settled::TooLate { overrun: 0 },
            },
        }
    }
}

impl Budget {
    /// Reserves units for work whose cost is known afterwards; asks the coordinator
    /// when too few are held, and waits for that one answer, at most the policy's
    /// `max_wait_ms`.
    ///
    /// ```no_run
    /// # async fn generate() -> u64 { 700 }
    /// # async fn example(tokens: &leasehold_client::Budget) -> Result<(), Box<dyn std::error::Error>> {
    /// let hold = tokens.reserve(1_000).await?;
    /// let used = generate().await;
    /// hold.settle(used); // the other 300 are free again at once
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is not admitted: the verdict says why, and when to come back. A
    /// budget of permits has the code `wrong_kind`.
    pub async fn reserve(&self, units: u64) -> Result<Reservation, NotAdmitted> {
        let wait = Duration::from_nanos(self.slot().max_wait_ns());
        self.reserve_for(units, Patience::OneAnswer, wait).await
    }

    /// Reserves units; waits for capacity if need be, up to `wait`, first come first
    /// served.
    ///
    /// # Errors
    /// When it is not admitted in time.
    pub async fn reserve_within(
        &self,
        units: u64,
        wait: Duration,
    ) -> Result<Reservation, NotAdmitted> {
        let patience = self.patience(wait);
        self.reserve_for(units, patience, wait).await
    }

    /// Reserves units of what is held here. Synchronous, and never waits. `Empty`
    /// means that an ask is on its way.
    ///
    /// # Errors
    /// When it is not admitted.
    pub fn try_reserve(&self, units: u64) -> Result<Reservation, NotAdmitted> {
        let reserved = self.slot().try_reserve(units, &self.shared().clock);
        self.reserved(units, reserved)
    }

    async fn reserve_for(
        &self,
        units: u64,
        patience: Patience,
        wait: Duration,
    ) -> Result<Reservation, NotAdmitted> {
        let clock = &self.shared().clock;
        let reserved = match self.slot().reserve(units, patience, clock) {
            Ok(reservation) => Ok(reservation),
            Err(Begun::Answered(verdict)) => Err(verdict),
            Err(Begun::Waits(mut waiter)) => {
                let told = wait_for(wait, |context| waiter.poll_reserved(context, clock)).await;
                told.unwrap_or_else(|| waiter.give_up_reserved(clock))
            }
        };
        self.reserved(units, reserved)
    }

    fn reserved(
        &self,
        units: u64,
        reserved: Result<spend::Reservation, Verdict>,
    ) -> Result<Reservation, NotAdmitted> {
        let (inner, verdict) = match reserved {
            Ok(reservation) => {
                let verdict = reservation.verdict();
                (Some(reservation), verdict)
            }
            Err(verdict) if verdict.is_allowed() => (None, verdict),
            Err(verdict) => return Err(NotAdmitted(verdict)),
        };
        Ok(Reservation {
            inner,
            verdict,
            units,
            shared: Arc::clone(self.shared()),
            _alive: Arc::clone(self.alive()),
        })
    }
}
