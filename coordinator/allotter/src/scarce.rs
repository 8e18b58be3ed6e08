//! What becomes of requests for a key of which there is not enough: units are
//! recalled for them, or they are told when to ask again. Knows one key after an
//! entry; gives nothing to anybody.

use std::collections::HashMap;

use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::SessionId,
    outcome::{Code, LeaseView, Refusal},
    policy::Policy,
};

use crate::{
    allotter::Conclusion,
    book::Book,
    fair::Fairness,
    recall::{self, ROUNDS_MAX, Terms},
    serve::{Supply, divide},
};

/// Somebody waits: look again no sooner than this.
const WAKE_WAITING_US: u64 = 1_000;
/// Somebody wants ahead: units that free up within this come in one entry.
const WAKE_WANTING_US: u64 = 2_000;
/// Nothing frees up by time: look again after this, and refuse until then.
pub(crate) const LOOK_AGAIN_US: u64 = 1_000_000;
/// The longest and the shortest time that a recall may take.
const RECALL_US: (u64, u64) = (10_000, 125_000);
/// After a look that found nobody to recall from, the next one waits so long for
/// each lease that it has to look at.
const LOOK_COST_US: u64 = 10;

/// A key of which somebody wants more than there was.
pub(crate) struct Scarce<'a> {
    pub(crate) key: &'a Key,
    pub(crate) policy: &'a Policy,
    pub(crate) fairness: &'a Fairness,
    pub(crate) supply: Supply,
    pub(crate) next_free_us: Option<u64>,
    pub(crate) now_us: u64,
}

impl Scarce<'_> {
    /// When it is looked at again.
    pub(crate) fn wake_us(&self, book: &Book) -> Option<u64> {
        if !book.is_wanted() {
            return None;
        }
        let waits = book.holders.values().any(|holder| holder.waiting > 0);
        let soonest = if waits {
            WAKE_WAITING_US
        } else {
            WAKE_WANTING_US
        };
        let frees = self.next_free_us.unwrap_or(LOOK_AGAIN_US).max(soonest);
        let wake = self.now_us.saturating_add(frees);
        let recalled = book.recall_end_us().unwrap_or(u64::MAX);
        Some(wake.min(recalled.max(self.now_us.saturating_add(1))))
    }

    /// How long a recall may take: two of them within the time that a request waits.
    fn recall_until_us(&self) -> u64 {
        let (least, most) = RECALL_US;
        self.now_us
            .saturating_add((self.policy.max_wait_us / 2).clamp(least, most))
    }

    /// When it is worth asking again: when the next units are free by time, or else
    /// when the first session ends that has some and cannot be asked, or else after
    /// a while.
    fn retry_after_us(&self, ledger: &Ledger, attached: &HashMap<SessionId, u64>) -> u64 {
        if self.next_free_us.is_none() {
            let leases = ledger.account(self.key).map(|account| account.leases);
            let holds = |lease: &LeaseView| {
                attached.contains_key(&lease.session) && recall::booked(lease) > 0
            };
            // Who is there renews its session, so its end says nothing, but it may
            // spend or hand back at any moment.
            if leases.is_some_and(|leases| leases.iter().any(holds)) {
                return LOOK_AGAIN_US;
            }
        }
        ledger
            .more_free_at(self.key, self.now_us)
            .map_or(LOOK_AGAIN_US, |when_us| {
                when_us.saturating_sub(self.now_us).max(1)
            })
    }
}

/// Recalls for the requests that still wait, or refuses them. Says whether what is
/// free may now serve somebody else, so that the key is to be looked at at once.
pub(crate) fn answer_waiting(
    book: &mut Book,
    ledger: &Ledger,
    attached: &HashMap<SessionId, u64>,
    scarce: &Scarce<'_>,
    conclusion: &mut Conclusion,
) -> bool {
    let Scarce {
        supply,
        fairness,
        now_us,
        ..
    } = *scarce;
    if supply.free > 0 && !divide(book, supply, fairness).is_empty() {
        // More came back than was counted on: the next entry gives it out.
        return true;
    }
    if !book.holders.values().any(|holder| holder.waiting > 0) {
        rebalance(book, ledger, attached, scarce, conclusion);
        return false;
    }
    refuse_barred(book, scarce, conclusion);
    let mut waiting: Vec<(u64, SessionId)> = book
        .holders
        .iter()
        .filter(|(_, holder)| holder.waiting > 0 && !holder.refused)
        .map(|(session, holder)| (holder.since, *session))
        .collect();
    if waiting.is_empty() {
        return false;
    }
    waiting.sort_unstable();
    let under_way = book.recalls_under_way(now_us);
    // What is kept for the others is not there for the greedy.
    let only_greedy = waiting
        .iter()
        .all(|(_, session)| fairness.is_greedy(*session));
    let kept = if only_greedy { fairness.reserve() } else { 0 };
    let there = supply
        .free
        .saturating_sub(kept)
        .saturating_add(under_way.unwrap_or(0));
    let needed: u64 = waiting
        .iter()
        .filter_map(|(_, session)| book.holders.get(session))
        .fold(0_u64, |sum, holder| sum.saturating_add(holder.waiting))
        .saturating_sub(there);
    let first = waiting.first().map(|(_, session)| *session);
    let head = first
        .filter(|session| !fairness.is_greedy(*session))
        .and_then(|session| book.holders.get(&session))
        .filter(|holder| holder.head > 1)
        .map_or(0, |holder| holder.head.saturating_sub(there));
    let asks = needed > 0
        && now_us >= book.no_recall_until_us
        && waiting
            .iter()
            .filter_map(|(_, session)| book.holders.get(session))
            .any(|holder| holder.rounds < ROUNDS_MAX);
    let mut asked = false;
    if asks {
        let least_us = fairness.idle_us(scarce.policy);
        let leases = ledger
            .account(scarce.key)
            .map_or_else(Vec::new, |account| account.leases);
        let choice = recall::choose(
            book,
            scarce.key,
            &leases,
            |session| attached.contains_key(&session),
            Terms {
                needed,
                head,
                least_us,
                now_us,
                until_us: scarce.recall_until_us(),
            },
        );
        asked = !choice.recalls.is_empty();
        conclusion.recalls.extend(choice.recalls);
        if !asked {
            // Looking costs as much as there are holders: a flood of requests that
            // wait must not look again for each of them.
            let leases = u64::try_from(leases.len()).unwrap_or(u64::MAX);
            let again_us = choice
                .again_us
                .unwrap_or(u64::MAX)
                .min(now_us.saturating_add(least_us));
            book.no_recall_until_us =
                again_us.max(now_us.saturating_add(leases.saturating_mul(LOOK_COST_US)));
        }
    }
    let mut refuse = Vec::new();
    for (_, session) in waiting {
        let Some(holder) = book.holders.get_mut(&session) else {
            continue;
        };
        if asked && holder.rounds < ROUNDS_MAX {
            holder.rounds += 1;
        } else if under_way.is_none() && !asked {
            refuse.push(session);
        }
    }
    if refuse.is_empty() {
        return false;
    }
    let refusal = Refusal {
        code: Code::Limit,
        retry_after_us: Some(scarce.retry_after_us(ledger, attached)),
    };
    let mut gone = 0_usize;
    for session in &refuse {
        let Some(holder) = book.holders.get_mut(session) else {
            continue;
        };
        if supply.free > 0 && gone > 0 {
            // The units that were saved up for the first may serve this one.
            continue;
        }
        conclusion
            .refusals
            .push((*session, scarce.key.clone(), refusal));
        if holder.wait_until_us > now_us {
            holder.refused = true;
        } else {
            holder.stop_waiting();
            gone += 1;
        }
    }
    supply.free > 0 && gone > 0
}

/// Refuses requests of sessions that demand far more than their fair share and have
/// had it: nothing is recalled for them.
fn refuse_barred(book: &mut Book, scarce: &Scarce<'_>, conclusion: &mut Conclusion) {
    for (session, holder) in &mut book.holders {
        if holder.waiting == 0 || holder.refused {
            continue;
        }
        let Some(retry_after_us) = scarce.fairness.bars(*session) else {
            continue;
        };
        conclusion.refusals.push((
            *session,
            scarce.key.clone(),
            Refusal {
                code: Code::Limit,
                retry_after_us: Some(retry_after_us),
            },
        ));
        if holder.wait_until_us > scarce.now_us {
            holder.refused = true;
        } else {
            holder.stop_waiting();
        }
    }
}

/// Moves a unit to where it is of far more use, when nothing is free and nobody
/// waits.
fn rebalance(
    book: &mut Book,
    ledger: &Ledger,
    attached: &HashMap<SessionId, u64>,
    scarce: &Scarce<'_>,
    conclusion: &mut Conclusion,
) {
    if scarce.supply.free > scarce.policy.reserve {
        return;
    }
    let attached = |session| attached.contains_key(&session);
    let may_get = |session| scarce.fairness.bars(session).is_none();
    let lease = recall::least_useful(book, attached, may_get, scarce.now_us)
        .and_then(|session| ledger.lease(session, scarce.key))
        .filter(|lease| lease.current && recall::booked(lease) > 0);
    if let Some(lease) = lease {
        conclusion.recalls.push(recall::ask(
            book,
            scarce.key,
            &lease,
            1,
            scarce.now_us,
            scarce.recall_until_us(),
        ));
    }
}

/// Tells everybody who wants units of a key that there are none.
pub(crate) fn refuse_all(
    book: &mut Book,
    key: &Key,
    code: Code,
    retry_after_us: Option<u64>,
    conclusion: &mut Conclusion,
) {
    for (session, holder) in &mut book.holders {
        if holder.want > 0 {
            holder.stop_wanting();
            conclusion.refusals.push((
                *session,
                key.clone(),
                Refusal {
                    code,
                    retry_after_us,
                },
            ));
        }
    }
}
