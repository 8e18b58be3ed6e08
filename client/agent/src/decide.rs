//! The one place that spends: what a request costs of which keys goes in, what it is told
//! comes out. Knows neither HTTP nor Envoy, nor how a request was turned into keys.

use std::{future::Future, pin::pin, time::Duration};

use leasehold_client::{
    Budget, BudgetError, Client, Code, JointVerdict, Key, RefusedBy, Verdict,
    http::{Answer, Answers},
};

use crate::config::Unless;

/// Without a coordinator the failure mode answers within this. A connection that is
/// lost may be back at once, so it is not the first moment that decides.
const ALONE_WITHIN: Duration = Duration::from_millis(40);
/// What a request is told to wait when there is no room for its key.
const ROOM_AFTER: Duration = Duration::from_secs(1);

/// What a request costs of one key. No units: it is only asked whether one would be
/// refused now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) key: Key,
    pub(crate) units: u64,
    /// It is only counted: where it cannot be, the request passes all the same.
    pub(crate) only_counted: bool,
}

/// How a request is charged: all of it or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask<'a> {
    pub(crate) charges: Vec<Charge>,
    /// The lane of all charges; none: the lowest.
    pub(crate) lane: Option<&'a str>,
    /// What becomes of a charge to a key that no budget matches.
    pub(crate) no_budget: Unless,
}

/// What a request is told.
#[derive(Debug)]
pub(crate) struct Decision {
    /// One for each charge that there was room for; none at all if one that may refuse was
    /// not among them.
    pub(crate) parts: Vec<Part>,
    pub(crate) told: JointVerdict,
}

/// How one charge stands.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its place among the charges that were asked for.
    pub(crate) place: usize,
    pub(crate) budget: Budget,
    pub(crate) units: u64,
    pub(crate) only_counted: bool,
    /// Why it is not charged, which is allowed: no budget matches the key, or it is only
    /// counted and cannot be.
    pub(crate) uncharged: Option<Code>,
}

impl Part {
    pub(crate) fn is_uncharged(&self) -> bool {
        self.uncharged.is_some()
    }
}

impl Decision {
    /// What callers over HTTP are told of it, with the figures of this moment.
    pub(crate) fn answer(&self, answers: &Answers) -> Answer {
        let mut charged = Vec::with_capacity(self.parts.len());
        let mut told = self.told.clone();
        for (index, part) in self.parts.iter().enumerate() {
            if part.is_uncharged() {
                continue;
            }
            if let Some(by) = &mut told.refused_by
                && self.told.refused_by.as_ref().map(|by| by.index) == Some(index)
            {
                by.index = charged.len();
            }
            charged.push((&part.budget, part.units));
        }
        answers.answer(&told, &charged)
    }
}

/// Decides what requests are told.
#[derive(Clone, Debug)]
pub(crate) struct Decider {
    client: Client,
}

impl Decider {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Charges all of it or nothing. Dropped before it is answered, it charges nothing.
    pub(crate) async fn decide(&self, ask: &Ask<'_>) -> Decision {
        let mut parts = Vec::with_capacity(ask.charges.len());
        for (place, charge) in ask.charges.iter().enumerate() {
            match self.client.budget_of(charge.key.clone()) {
                Ok(budget) => parts.push(Part {
                    place,
                    budget,
                    units: charge.units,
                    only_counted: charge.only_counted,
                    uncharged: None,
                }),
                Err(error) if charge.only_counted => {
                    tracing::debug!(%error, "no room for a key that is only counted");
                }
                Err(error) => return no_room(&error),
            }
        }
        // A budget that nobody has set up is found out by being asked.
        loop {
            let told = self.attempt(&parts, ask.lane).await;
            let refuser = told.refused_by.as_ref().map(|by| by.index);
            let code = told.verdict.code();
            let may_lack = code == Some(Code::NoBudget) && ask.no_budget == Unless::Allow;
            match refuser.and_then(|index| parts.get_mut(index)) {
                Some(part) if may_lack || part.only_counted => {
                    part.uncharged = Some(code.unwrap_or(Code::Empty));
                }
                _ => return Decision { parts, told },
            }
        }
    }

    async fn attempt(&self, parts: &[Part], lane: Option<&str>) -> JointVerdict {
        let listed = |index: usize| parts.get(index).filter(|part| !part.is_uncharged());
        let mut mildest = Verdict::Admitted;
        let mut spent: Vec<(usize, &Part)> = Vec::with_capacity(parts.len());
        for index in 0..parts.len() {
            let Some(part) = listed(index) else {
                continue;
            };
            if part.units > 0 {
                spent.push((index, part));
                continue;
            }
            // Before anything is charged: a refusal charges nothing.
            let verdict = self.look(&part.budget).await;
            if !verdict.is_allowed() {
                return refused(verdict, index, &part.budget);
            }
            mildest = mark(mildest, verdict);
        }
        match (spent.as_slice(), lane) {
            ([], _) => allowed(mildest),
            ([(index, part)], None) => {
                let verdict = self.spend(&part.budget, part.units).await;
                if verdict.is_allowed() {
                    allowed(mark(mildest, verdict))
                } else {
                    refused(verdict, *index, &part.budget)
                }
            }
            (several, lane) => {
                let list = || several.iter().map(|(_, part)| (&part.budget, part.units));
                let at_once = || self.client.try_spend_all(list());
                let is_empty = |told: &JointVerdict| told.verdict == Verdict::Empty;
                let mut told = match lane {
                    None => {
                        let waits = || self.client.spend_all(list());
                        self.promptly(waits, at_once, is_empty).await
                    }
                    Some(lane) => {
                        let waits = || self.client.spend_all_in(lane, list());
                        self.promptly(waits, at_once, is_empty).await
                    }
                };
                match &mut told.refused_by {
                    Some(by) => {
                        by.index = several.get(by.index).map_or(by.index, |(index, _)| *index);
                    }
                    None => told.verdict = mark(mildest, told.verdict),
                }
                told
            }
        }
    }

    async fn spend(&self, budget: &Budget, units: u64) -> Verdict {
        let at_once = || budget.try_spend(units);
        let is_empty = |verdict: &Verdict| *verdict == Verdict::Empty;
        self.promptly(|| budget.spend(units), at_once, is_empty)
            .await
    }

    /// Whether one unit would be refused now: it is reserved and handed back, so that
    /// the coordinator is asked if nothing is known here.
    async fn look(&self, budget: &Budget) -> Verdict {
        let told = self
            .promptly(
                || budget.reserve(1),
                || budget.try_reserve(1),
                |told| matches!(told, Err(error) if error.0 == Verdict::Empty),
            )
            .await;
        match told {
            Ok(reservation) => reservation.verdict(),
            Err(error) => error.0,
        }
    }

    /// The answer of a request that waits for one; once there has been nobody to ask for
    /// a moment, what is said without waiting.
    async fn promptly<T, F: Future<Output = T>>(
        &self,
        waits: impl Fn() -> F,
        at_once: impl Fn() -> T,
        is_empty: impl Fn(&T) -> bool,
    ) -> T {
        loop {
            {
                let mut waiting = pin!(waits());
                tokio::select! {
                    biased;
                    told = &mut waiting => return told,
                    () = self.left_alone() => {}
                }
                // Dropped here: it takes nothing with it.
            }
            let told = at_once();
            // Empty: somebody can be asked again.
            if !is_empty(&told) {
                return told;
            }
        }
    }

    async fn left_alone(&self) {
        loop {
            tokio::time::sleep(ALONE_WITHIN).await;
            if !self.client.is_connected() {
                return;
            }
        }
    }
}

fn allowed(verdict: Verdict) -> JointVerdict {
    JointVerdict {
        verdict,
        refused_by: None,
    }
}

fn refused(verdict: Verdict, index: usize, budget: &Budget) -> JointVerdict {
    let key = budget.key().clone();
    JointVerdict {
        verdict,
        refused_by: Some(RefusedBy { index, key }),
    }
}

fn no_room(error: &BudgetError) -> Decision {
    tracing::debug!(%error, "no room for a key");
    Decision {
        parts: Vec::new(),
        told: allowed(Verdict::Denied {
            code: Code::TooManyKeys,
            retry_after: Some(ROOM_AFTER),
        }),
    }
}

/// Of two verdicts that let a request through, the one that is further from the promise.
fn mark(one: Verdict, other: Verdict) -> Verdict {
    let rank = |verdict: &Verdict| match verdict {
        Verdict::Admitted => 0,
        Verdict::Estimated => 1,
        Verdict::Shadowed { .. } => 2,
        _ => 3,
    };
    if rank(&other) > rank(&one) {
        other
    } else {
        one
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_furthest_from_the_promise_marks_the_answer() {
        let shadowed = Verdict::Shadowed { code: Code::Limit };
        assert_eq!(
            mark(Verdict::Admitted, Verdict::Degraded),
            Verdict::Degraded
        );
        assert_eq!(mark(Verdict::Degraded, shadowed), Verdict::Degraded);
        assert_eq!(
            mark(Verdict::Estimated, Verdict::Admitted),
            Verdict::Estimated
        );
        assert_eq!(mark(shadowed, Verdict::Estimated), shadowed);
    }
}
