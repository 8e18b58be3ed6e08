//! One request of each manner, from its call to the lines in the logs. Knows no rate.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_checkers::{Joint, PermitLook, Record as Noted, Settlement};
use leasehold_client::{Budget, Client, NotAdmitted, Settled, Verdict};
use leasehold_tests::{HIGH_LANE, Manner, Told, clock_ns};
use rand::Rng as _;

use crate::record::{Shared, lock};

/// What `spend` waits at most, unless a policy says otherwise.
const PATIENCE: Duration = Duration::from_millis(250);
/// What a paced request waits for its turn.
const TURN_WITHIN: Duration = Duration::from_millis(500);
/// A permit is in use for so long at most, and looked at so often meanwhile.
const WORK_MS: u64 = 200;
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Units that are reserved, and the most that are then used.
const RESERVED: u64 = 4;
const USED_MAX: u64 = 6;
const USED_WITHIN_MS: u64 = 60;

/// Permits have numbers.
static PERMITS: AtomicU64 = AtomicU64::new(0);

/// A stream's budgets: of all manners but one there is one.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) client: Arc<Client>,
    pub(crate) budgets: Arc<[Budget]>,
    pub(crate) key: Arc<str>,
    pub(crate) shared: Shared,
}

/// An answer, with when it was asked for and given.
struct Timed<T> {
    answer: T,
    call_ns: u64,
    return_ns: u64,
    /// Whether it took a message: a request that is answered from what is held, or by
    /// a refusal that still stands, is answered the first time it is polled; one that
    /// joins the queue is not.
    waited: bool,
}

fn told_of(verdict: &Verdict) -> Told {
    match verdict {
        Verdict::Admitted => Told::Admitted,
        Verdict::Degraded => Told::Degraded,
        Verdict::Unavailable { .. } => Told::Unavailable,
        _ => Told::Refused,
    }
}

fn told_instead(refused: &NotAdmitted) -> Told {
    told_of(&refused.0)
}

impl Target {
    /// Makes one request. Nothing to do for a target without a budget.
    pub(crate) async fn request(self, manner: Manner) -> io::Result<()> {
        let Some(budget) = self.budgets.first() else {
            return Ok(());
        };
        match manner {
            Manner::Flood | Manner::Honest => {
                let timed = self.timed(PATIENCE, budget.spend(1)).await?;
                self.spent(&timed)
            }
            Manner::High => {
                let lane = budget.lane(HIGH_LANE);
                let timed = self.timed(PATIENCE, lane.spend(1)).await?;
                self.spent(&timed)
            }
            Manner::Paced => {
                let spend = budget.spend_within(1, TURN_WITHIN);
                let timed = self.timed(TURN_WITHIN, spend).await?;
                self.spent(&timed)
            }
            Manner::Joint => self.joint().await,
            Manner::Permits => self.permit(budget).await,
            Manner::Reserve => self.reserve(budget).await,
        }
    }

    /// Spends one unit of what is held.
    pub(crate) fn try_spend(&self) -> io::Result<()> {
        let Some(budget) = self.budgets.first() else {
            return Ok(());
        };
        let call_ns = clock_ns();
        let answer = budget.try_spend(1);
        self.spent(&Timed {
            answer,
            call_ns,
            return_ns: clock_ns(),
            waited: false,
        })
    }

    async fn timed<T>(
        &self,
        patience: Duration,
        asking: impl Future<Output = T>,
    ) -> io::Result<Timed<T>> {
        let call_ns = clock_ns();
        let number = lock(&self.shared).begin(&self.key, call_ns, patience);
        let mut asking = pin!(asking);
        let mut waited = false;
        let answer = poll_fn(|context| {
            let polled = asking.as_mut().poll(context);
            waited |= polled.is_pending();
            polled
        })
        .await;
        let return_ns = clock_ns();
        lock(&self.shared).end(number, waited, return_ns)?;
        Ok(Timed {
            answer,
            call_ns,
            return_ns,
            waited,
        })
    }

    fn told<T>(&self, told: Told, timed: &Timed<T>) -> io::Result<()> {
        lock(&self.shared).told(told, timed.call_ns, timed.return_ns, timed.waited)
    }

    fn spent(&self, timed: &Timed<Verdict>) -> io::Result<()> {
        let told = told_of(&timed.answer);
        self.told(told, timed)?;
        if told == Told::Admitted {
            lock(&self.shared).admitted(&self.key, 1, timed.call_ns, timed.return_ns)?;
        }
        Ok(())
    }

    /// One unit of the first key, two of the second, and so on, or none of any.
    async fn joint(&self) -> io::Result<()> {
        let parts: Vec<(&Budget, u64)> = self.budgets.iter().zip(1..).collect();
        let asking = self.client.spend_all(parts.iter().copied());
        let timed = self.timed(PATIENCE, asking).await?;
        let told = told_of(&timed.answer.verdict);
        self.told(told, &timed)?;
        let mut record = lock(&self.shared);
        let admitted = told == Told::Admitted;
        if admitted {
            for (budget, units) in &parts {
                let key = budget.key().as_str();
                record.admitted(key, *units, timed.call_ns, timed.return_ns)?;
            }
        }
        let parts = parts.iter().map(|(budget, units)| {
            let key = budget.key().as_str().to_owned();
            (key, *units)
        });
        record.note(|gateway| {
            Noted::Joint(Joint {
                gateway,
                parts: parts.collect(),
                call_ns: timed.call_ns,
                return_ns: timed.return_ns,
                admitted,
            })
        })
    }

    /// Holds a permit for a while, and looks at it again and again.
    async fn permit(&self, budget: &Budget) -> io::Result<()> {
        let asking = budget.acquire_within(1, PATIENCE);
        let timed = self.timed(PATIENCE, asking).await?;
        let permit = match &timed.answer {
            Ok(permit) => permit,
            Err(refused) => return self.told(told_instead(refused), &timed),
        };
        let told = told_of(&permit.verdict());
        self.told(told, &timed)?;
        if told != Told::Admitted {
            return Ok(());
        }
        lock(&self.shared).admitted(&self.key, 1, timed.call_ns, timed.return_ns)?;
        // Relaxed: only that no two are alike.
        let number = PERMITS.fetch_add(1, Ordering::Relaxed);
        let work = Duration::from_millis(rand::rng().random_range(1..=WORK_MS));
        let done = tokio::time::Instant::now() + work;
        loop {
            let looked_ns = clock_ns();
            let is_valid = permit.is_valid();
            lock(&self.shared).note(|gateway| {
                Noted::Permit(PermitLook {
                    gateway,
                    key: self.key.as_ref().to_owned(),
                    number,
                    units: 1,
                    call_ns: timed.call_ns,
                    return_ns: timed.return_ns,
                    valid_ns: is_valid.then_some(looked_ns),
                })
            })?;
            let now = tokio::time::Instant::now();
            // Whoever finds that it has ended stops working.
            if !is_valid || now >= done {
                return Ok(());
            }
            tokio::time::sleep_until(done.min(now + LOOK_EVERY)).await;
        }
    }

    /// Reserves, works, and settles for less or for more.
    async fn reserve(&self, budget: &Budget) -> io::Result<()> {
        let timed = self.timed(PATIENCE, budget.reserve(RESERVED)).await?;
        let Timed {
            answer,
            call_ns,
            return_ns,
            waited,
        } = timed;
        let tell = |told| lock(&self.shared).told(told, call_ns, return_ns, waited);
        let reservation = match answer {
            Ok(reservation) => reservation,
            Err(refused) => return tell(told_instead(&refused)),
        };
        let told = told_of(&reservation.verdict());
        tell(told)?;
        if told != Told::Admitted {
            return Ok(());
        }
        let used = rand::rng().random_range(0..=USED_MAX);
        let work = Duration::from_millis(rand::rng().random_range(1..=USED_WITHIN_MS));
        tokio::time::sleep(work).await;
        let settling_ns = clock_ns();
        let settled = reservation.settle(used);
        let settled_ns = clock_ns();
        let (reserved, taken, overrun) = match settled {
            Settled::Within { returned } => (RESERVED.saturating_sub(returned), 0, 0),
            Settled::Over { taken, overrun } => (RESERVED, taken, overrun),
            Settled::TooLate { overrun } => (RESERVED, 0, overrun),
            _ => return Ok(()),
        };
        let mut record = lock(&self.shared);
        record.admitted(&self.key, reserved, call_ns, return_ns)?;
        if taken > 0 {
            record.admitted(&self.key, taken, settling_ns, settled_ns)?;
        }
        record.note(|gateway| {
            Noted::Settlement(Settlement {
                gateway,
                key: self.key.as_ref().to_owned(),
                call_ns,
                return_ns: settled_ns,
                reserved: RESERVED,
                used,
                charged: reserved.saturating_add(taken),
                overrun,
            })
        })
    }
}
