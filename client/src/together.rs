//! One request that spends several budgets: how its parts are listed, and how it
//! waits. Knows nothing of leases.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use leasehold_key::Key;
use leasehold_spend::{Code, Joint, Lane as Place, Patience, Slot, Together, Verdict};

use crate::{
    budget::{Budget, until, wait_for},
    client::Client,
    driver::Shared,
};

/// What a request for several budgets is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a verdict that nobody reads lets every request through"]
pub struct JointVerdict {
    /// `Admitted`: every budget gave its units, within its promise. `Degraded`:
    /// the failure mode of at least one of them let the request through. `Shadowed`:
    /// at least one of them would have refused it, and is in shadow mode. Anything
    /// else: nothing was spent of any of them.
    pub verdict: Verdict,
    /// Which budget refused; none when the request may go ahead. If several would
    /// have, the one whose refusal stands longest.
    pub refused_by: Option<RefusedBy>,
}

/// The budget that a refusal came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedBy {
    /// Its place in the list, from 0; the first one if it is listed twice.
    pub index: usize,
    /// Its key.
    pub key: Key,
}

impl JointVerdict {
    /// Whether the request may go ahead.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// When it is worth trying again, if the coordinator said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict.retry_after()
    }
}

impl fmt::Display for RefusedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {})", self.key, self.index)
    }
}

impl Client {
    /// Spends units of several budgets: of all of them or of none. Asks the
    /// coordinator for what is not held here, in one message, and waits for one
    /// answer for each budget; in all no longer than the longest `max_wait_ms`
    /// among their policies.
    ///
    /// A refusal by one leaves the others untouched and says which it was. The
    /// order of the list does not matter: requests whose lists cross never block
    /// each other for good, in this process or between gateways. A budget that is
    /// listed twice pays both; parts of no units are met. All budgets must be
    /// this client's: another's is refused with the code `other_client`.
    ///
    /// Dropped before it is answered, it spends nothing.
    ///
    /// ```no_run
    /// # async fn example(client: &leasehold_client::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let tenant = client.budget("tenant/acme")?;
    /// let user = client.budget("user/acme/ada")?;
    /// let global = client.budget("global")?;
    /// let told = client.spend_all([(&tenant, 1), (&user, 1), (&global, 5)]).await;
    /// if let Some(refused_by) = &told.refused_by {
    ///     eprintln!("{} said no: {:?}", refused_by.key, told.verdict);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn spend_all<'a, P>(&self, parts: P) -> impl Future<Output = JointVerdict> + Send + use<P>
    where
        P: IntoIterator<Item = (&'a Budget, u64)>,
    {
        let listed = Listed::new(&self.shared, parts);
        let shared = Arc::clone(&self.shared);
        async move {
            let listed = match listed {
                Ok(listed) => listed,
                Err(told) => return told,
            };
            let request = Together::new(listed.parts(), Patience::OneAnswer);
            let wait = Duration::from_nanos(request.max_wait_ns());
            listed.told(answer_of(request, wait, &shared).await)
        }
    }

    /// As [`spend_all`](Self::spend_all), in the lane of this name of every budget whose
    /// policy has one; in the lowest of the others.
    pub fn spend_all_in<'a, P>(
        &self,
        lane: &str,
        parts: P,
    ) -> impl Future<Output = JointVerdict> + Send + use<P>
    where
        P: IntoIterator<Item = (&'a Budget, u64)>,
    {
        let listed = Listed::new(&self.shared, parts);
        let shared = Arc::clone(&self.shared);
        let lane: Arc<str> = lane.into();
        async move {
            let listed = match listed {
                Ok(listed) => listed,
                Err(told) => return told,
            };
            let mut lanes = listed.lanes(&lane);
            loop {
                let request = Together::new(listed.parts(), Patience::OneAnswer);
                let request = request.in_lanes(lanes.iter().copied());
                let wait = Duration::from_nanos(request.max_wait_ns());
                let joint = answer_of(request, wait, &shared).await;
                // The first request of a key teaches which lanes there are: it was
                // refused as one of the lowest.
                let known = listed.lanes(&lane);
                let is_higher = known.iter().zip(&lanes).any(|(now, then)| now < then);
                match joint {
                    Joint::Refused {
                        verdict: Verdict::Denied { .. },
                        ..
                    } if is_higher => lanes = known,
                    joint => return listed.told(joint),
                }
            }
        }
    }

    /// As [`spend_all`](Self::spend_all), but waits for capacity if need be, up to
    /// `wait` in all. Units that it has already are held for it meanwhile, of one
    /// budget after another in the order of their keys; of those that come after
    /// the one that it waits for it holds nothing.
    pub fn spend_all_within<'a, P>(
        &self,
        parts: P,
        wait: Duration,
    ) -> impl Future<Output = JointVerdict> + Send + use<P>
    where
        P: IntoIterator<Item = (&'a Budget, u64)>,
    {
        let listed = Listed::new(&self.shared, parts);
        let shared = Arc::clone(&self.shared);
        async move {
            let listed = match listed {
                Ok(listed) => listed,
                Err(told) => return told,
            };
            let request = Together::new(listed.parts(), until(&shared.clock, wait));
            listed.told(answer_of(request, wait, &shared).await)
        }
    }

    /// Spends units of several budgets from what is held here: of all of them or
    /// of none. Synchronous, and never waits. `Empty` names the first budget (by
    /// key) that holds too little; asks for all that do are on their way, in one
    /// message.
    pub fn try_spend_all<'a>(
        &self,
        parts: impl IntoIterator<Item = (&'a Budget, u64)>,
    ) -> JointVerdict {
        match Listed::new(&self.shared, parts) {
            Ok(listed) => {
                let request = Together::new(listed.parts(), Patience::OneAnswer);
                listed.told(request.try_spend(&self.shared.clock))
            }
            Err(told) => told,
        }
    }
}

/// The parts of a request in the order that all requests keep, everywhere: that
/// of their keys' texts.
struct Listed(Vec<Part>);

struct Part {
    key: Key,
    slot: Arc<Slot>,
    units: u64,
    index: usize,
}

impl Listed {
    fn new<'a>(
        shared: &Arc<Shared>,
        parts: impl IntoIterator<Item = (&'a Budget, u64)>,
    ) -> Result<Self, JointVerdict> {
        let mut listed: Vec<Part> = Vec::new();
        for (index, (budget, units)) in parts.into_iter().enumerate() {
            if !budget.is_of(shared) {
                // Its leases are dated by another clock.
                let key = budget.key().clone();
                let code = Code::OtherClient;
                return Err(JointVerdict {
                    verdict: Verdict::Denied {
                        code,
                        retry_after: None,
                    },
                    refused_by: Some(RefusedBy { index, key }),
                });
            }
            listed.push(Part {
                key: budget.key().clone(),
                slot: Arc::clone(budget.slot()),
                units,
                index,
            });
        }
        listed.sort_by(|one, other| {
            let one = (one.key.as_str(), one.index);
            one.cmp(&(other.key.as_str(), other.index))
        });
        listed.dedup_by(|again, first| {
            let is_same = Arc::ptr_eq(&again.slot, &first.slot);
            if is_same {
                first.units = first.units.saturating_add(again.units);
            }
            is_same
        });
        Ok(Self(listed))
    }

    fn parts(&self) -> Vec<(Arc<Slot>, u64)> {
        let part = |part: &Part| (Arc::clone(&part.slot), part.units);
        self.0.iter().map(part).collect()
    }

    /// Where the lane of this name is at each of them.
    fn lanes(&self, name: &str) -> Vec<Place> {
        let lane = |part: &Part| {
            if part.slot.lanes_version() == 0 {
                return Place::LOWEST;
            }
            let (lane, is_there) = part.slot.lane(name);
            if !is_there {
                part.slot.count_misnamed();
            }
            lane
        };
        self.0.iter().map(lane).collect()
    }

    fn told(&self, joint: Joint) -> JointVerdict {
        match joint {
            Joint::Allowed(verdict) => JointVerdict {
                verdict,
                refused_by: None,
            },
            Joint::Refused { place, verdict } => JointVerdict {
                verdict,
                refused_by: self.0.get(place).map(|part| RefusedBy {
                    index: part.index,
                    key: part.key.clone(),
                }),
            },
        }
    }
}

/// The answer, or what is known when the time is up. Dropped, it gives back what
/// it holds.
async fn answer_of(mut request: Together, wait: Duration, shared: &Shared) -> Joint {
    let joint = wait_for(wait, |context| request.poll(context, &shared.clock)).await;
    joint.unwrap_or_else(|| request.give_up(&shared.clock))
}
