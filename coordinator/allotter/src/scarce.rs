//! What becomes of requests for a key of which there is not enough: units are
//! recalled for them, or they are told when to ask again. Knows one key after an
//! entry; gives nothing to anybody.

use std::collections::{BTreeSet, HashMap};

use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::SessionId,
    outcome::{Code, LeaseView, Refusal},
    policy::{Kind, Policy},
};

use crate::{
    allotter::{Conclusion, Refused},
    book::{Book, Holder, Queue},
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
    pub(crate) supply: Supply<'a>,
    pub(crate) next_free_us: Option<u64>,
    pub(crate) now_us: u64,
}

impl Scarce<'_> {
    /// When it is looked at again.
    pub(crate) fn wake_us(&self, book: &Book) -> Option<u64> {
        if !book.is_wanted() {
            return None;
        }
        let waits = book.holders.values().any(Holder::waits);
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
    /// a while. None: of a total that nobody has anything of, only an operator frees
    /// units.
    fn retry_after_us(&self, ledger: &Ledger, attached: &HashMap<SessionId, u64>) -> Option<u64> {
        if self.next_free_us.is_none() {
            let leases = ledger.account(self.key).map(|account| account.leases);
            let holds = |lease: &LeaseView| {
                attached.contains_key(&lease.session) && recall::booked(lease) > 0
            };
            // Who is there renews its session, so its end says nothing, but it may
            // spend or hand back at any moment.
            if leases.is_some_and(|leases| leases.iter().any(holds)) {
                return Some(LOOK_AGAIN_US);
            }
        }
        match ledger.more_free_at(self.key, self.now_us) {
            Some(when_us) => Some(when_us.saturating_sub(self.now_us).max(1)),
            None if matches!(self.policy.kind, Kind::Total { .. }) => None,
            None => Some(LOOK_AGAIN_US),
        }
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
    if !book.holders.values().any(Holder::waits) {
        rebalance(book, ledger, attached, scarce, conclusion);
        return false;
    }
    refuse_barred(book, scarce, conclusion);
    // In the order in which they would be served.
    let mut waiting: Vec<Place> = book
        .holders
        .iter()
        .flat_map(|(session, holder)| {
            let queues = holder.queues.iter().filter(|queue| !queue.refused);
            queues.map(|queue| Place {
                lane: supply.lane(queue.lane),
                since: queue.since,
                session: *session,
                said: queue.lane,
            })
        })
        .collect();
    let Some(first) = waiting.iter().min().copied() else {
        return false;
    };
    waiting.sort_unstable();
    let under_way = book.recalls_under_way(now_us);
    // What is kept for the others is not there for the greedy, nor what is kept for
    // higher lanes for this one.
    let is_greedy =
        |place: &Place| place.lane == supply.lowest() && fairness.is_greedy(place.session);
    let only_greedy = waiting.iter().all(is_greedy);
    let kept = if only_greedy { fairness.reserve() } else { 0 };
    let there = supply
        .free
        .saturating_sub(kept)
        .saturating_sub(supply.kept_from(first.lane))
        .saturating_add(under_way.unwrap_or(0));
    let needed: u64 = waiting
        .iter()
        .filter_map(|place| place.queue(book))
        .fold(0_u64, |sum, queue| sum.saturating_add(queue.waiting))
        .saturating_sub(there);
    let head = Some(first)
        .filter(|place| !is_greedy(place))
        .and_then(|place| place.queue(book))
        .filter(|queue| queue.head > 1)
        .map_or(0, |queue| queue.head.saturating_sub(there));
    let asks = needed > 0
        && now_us >= book.no_recall_until_us
        && waiting
            .iter()
            .filter_map(|place| place.queue(book))
            .any(|queue| queue.rounds < ROUNDS_MAX);
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
    for place in waiting {
        let Some(queue) = place.queue_mut(book) else {
            continue;
        };
        if asked && queue.rounds < ROUNDS_MAX {
            queue.rounds += 1;
        } else if under_way.is_none() && !asked {
            refuse.push(place);
        }
    }
    if refuse.is_empty() {
        return false;
    }
    let refusal = Refusal {
        code: Code::Limit,
        retry_after_us: scarce.retry_after_us(ledger, attached),
    };
    let mut told: BTreeSet<SessionId> = BTreeSet::new();
    let mut gone = false;
    for place in refuse {
        if supply.free > 0 && gone {
            // The units that were saved up for the first may serve this one.
            continue;
        }
        // One answer for each session, about the highest of its lanes that is refused:
        // what waits below it is refused as well, in its turn.
        if told.insert(place.session) {
            conclusion.refusals.push(Refused {
                session: place.session,
                key: scarce.key.clone(),
                refusal,
                lane: u32::try_from(place.lane).unwrap_or(u32::MAX),
            });
        }
        gone |= place.refuse(book, now_us);
    }
    supply.free > 0 && gone
}

/// Where requests of one lane of a session wait. Ordered as they are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    lane: usize,
    since: u64,
    session: SessionId,
    /// The lane as the session named it.
    said: u32,
}

impl Place {
    fn queue<'a>(&self, book: &'a Book) -> Option<&'a Queue> {
        let holder = book.holders.get(&self.session)?;
        holder.queues.iter().find(|queue| queue.lane == self.said)
    }

    fn queue_mut<'a>(&self, book: &'a mut Book) -> Option<&'a mut Queue> {
        let holder = book.holders.get_mut(&self.session)?;
        holder
            .queues
            .iter_mut()
            .find(|queue| queue.lane == self.said)
    }

    /// They were told no: who does not stay queued is gone. Says whether they are.
    fn refuse(&self, book: &mut Book, now_us: u64) -> bool {
        let Some(holder) = book.holders.get_mut(&self.session) else {
            return false;
        };
        let mut gone = false;
        holder.queues.retain_mut(|queue| {
            if queue.lane != self.said {
                return true;
            }
            queue.refused = queue.wait_until_us > now_us;
            gone |= !queue.refused;
            queue.refused
        });
        gone
    }
}

/// Refuses requests of sessions that demand far more than their fair share and have
/// had it: nothing is recalled for them.
fn refuse_barred(book: &mut Book, scarce: &Scarce<'_>, conclusion: &mut Conclusion) {
    let lowest = scarce.supply.lowest();
    for (session, holder) in &mut book.holders {
        let Some(retry_after_us) = scarce.fairness.bars(*session) else {
            continue;
        };
        let mut is_told = false;
        holder.queues.retain_mut(|queue| {
            if queue.refused || scarce.supply.lane(queue.lane) != lowest {
                return true;
            }
            if !is_told {
                is_told = true;
                conclusion.refusals.push(Refused {
                    session: *session,
                    key: scarce.key.clone(),
                    refusal: Refusal {
                        code: Code::Limit,
                        retry_after_us: Some(retry_after_us),
                    },
                    lane: u32::try_from(lowest).unwrap_or(u32::MAX),
                });
            }
            queue.refused = queue.wait_until_us > scarce.now_us;
            queue.refused
        });
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
    // What comes back while the lanes' reserve is short would go there.
    let kept = scarce.supply.kept_from(scarce.supply.lowest());
    let free = scarce.supply.free;
    if free < kept || free > scarce.policy.reserve.saturating_add(kept) {
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
            conclusion.refuse(
                *session,
                key,
                Refusal {
                    code,
                    retry_after_us,
                },
            );
        }
    }
}
