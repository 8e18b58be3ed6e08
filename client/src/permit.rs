//! Permits of a concurrency budget: units that are in use for a while. Knows no
//! session.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use leasehold_spend::{self as spend, Begun, Clock, Patience, Verdict};

use crate::{
    budget::{Budget, wait_for},
    driver::{Alive, Shared},
    error::NotAdmitted,
};

/// Units of a concurrency budget in use.
///
/// Over all gateways no more than the limit are valid at one moment. A permit ends
/// when it is dropped, and its units are there for others; and it ends when the
/// session's deadline passes, because this gateway had no answer of the coordinator
/// for so long, or when the client is closed: then others may get its units at any
/// moment. Work that must not overlap asks [`is_valid`](Self::is_valid) before each
/// step that counts, or runs beside [`ended`](Self::ended). A renewal of the
/// session, about once a second, prolongs all its permits.
#[derive(Debug)]
#[must_use = "a permit that is dropped has ended"]
pub struct Permit {
    /// None: let through without units.
    inner: Option<spend::Permit>,
    verdict: Verdict,
    units: u64,
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

impl Permit {
    /// How many units it has.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// `Admitted`; or what let the request through without units: `Degraded` by the
    /// failure mode, `Shadowed` by shadow mode. Such a permit is outside the promise,
    /// and only ends when it is dropped.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether it has not ended. What was once found to have ended stays so.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let clock = &self.shared.clock;
        self.inner
            .as_ref()
            .is_none_or(|inner| inner.is_valid(clock))
    }

    /// Waits until it has ended. It is one branch of a `select!`, beside the work:
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn example(jobs: &leasehold_client::Budget) -> Result<(), Box<dyn std::error::Error>> {
    /// let permit = jobs.acquire(1).await?;
    /// tokio::select! {
    ///     () = work() => {}
    ///     () = permit.ended() => eprintln!("stopped: somebody else may begin"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ended(&self) {
        let Some(inner) = &self.inner else {
            return std::future::pending().await;
        };
        let clock = &self.shared.clock;
        loop {
            let (told, until_ns) =
                poll_fn(|context| Poll::Ready(inner.poll_ended(context, clock))).await;
            if told.is_ready() {
                return;
            }
            let left_ns = until_ns.saturating_sub(clock.now_ns());
            let mut deadline = pin!(tokio::time::sleep(Duration::from_nanos(left_ns)));
            poll_fn(|context| {
                let told = inner.poll_ended(context, clock).0;
                if told.is_pending() {
                    // If it is renewed by then, it is looked at again.
                    return deadline.as_mut().poll(context);
                }
                told
            })
            .await;
        }
    }
}

impl Budget {
    /// Takes permits of a concurrency budget; asks the coordinator when too few are
    /// held, and waits for that one answer, at most the policy's `max_wait_ms`.
    ///
    /// # Errors
    /// When it is not admitted: the verdict says why, and when to come back. A
    /// budget of any other kind has the code `wrong_kind`.
    pub async fn acquire(&self, units: u64) -> Result<Permit, NotAdmitted> {
        let wait = Duration::from_nanos(self.slot().max_wait_ns());
        self.acquire_for(units, Patience::OneAnswer, wait).await
    }

    /// Takes permits of a concurrency budget; waits for them if need be, up to
    /// `wait`, first come first served.
    ///
    /// # Errors
    /// When it is not admitted in time.
    pub async fn acquire_within(&self, units: u64, wait: Duration) -> Result<Permit, NotAdmitted> {
        let patience = self.patience(wait);
        self.acquire_for(units, patience, wait).await
    }

    /// Takes permits that are held here. Synchronous, and never waits. `Empty` means
    /// that an ask is on its way.
    ///
    /// # Errors
    /// When it is not admitted.
    pub fn try_acquire(&self, units: u64) -> Result<Permit, NotAdmitted> {
        let acquired = self.slot().try_acquire(units, &self.shared().clock);
        self.acquired(units, acquired)
    }

    async fn acquire_for(
        &self,
        units: u64,
        patience: Patience,
        wait: Duration,
    ) -> Result<Permit, NotAdmitted> {
        let clock = &self.shared().clock;
        let acquired = match self.slot().acquire(units, patience, clock) {
            Ok(permit) => Ok(permit),
            Err(Begun::Answered(verdict)) => Err(verdict),
            Err(Begun::Waits(mut waiter)) => {
                let told = wait_for(wait, |context| waiter.poll_permit(context, clock)).await;
                told.unwrap_or_else(|| waiter.give_up_permit(clock))
            }
        };
        self.acquired(units, acquired)
    }

    fn acquired(
        &self,
        units: u64,
        acquired: Result<spend::Permit, Verdict>,
    ) -> Result<Permit, NotAdmitted> {
        let (inner, verdict) = match acquired {
            Ok(permit) => (Some(permit), Verdict::Admitted),
            Err(verdict) if verdict.is_allowed() => (None, verdict),
            Err(verdict) => return Err(NotAdmitted(verdict)),
        };
        Ok(Permit {
            inner,
            verdict,
            units,
            shared: Arc::clone(self.shared()),
            _alive: Arc::clone(self.alive()),
        })
    }
}
