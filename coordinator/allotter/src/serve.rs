//! Who gets how much of one key's free units. Knows one key at one moment, and
//! nothing of how units come to be free.

use std::{cmp::Ordering, collections::BinaryHeap};

use leasehold_ledger::entry::SessionId;

use crate::{
    book::{Book, Queue},
    fair::Fairness,
};

/// What there is to give.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'a> {
    /// Units that are kept for the requests of each lane, the highest first; empty:
    /// all requests are alike.
    pub(crate) lanes: &'a [u64],
    /// Units that can be granted.
    pub(crate) free: u64,
    /// Units in leases.
    pub(crate) outstanding: u64,
    /// Units that are kept for requests that wait.
    pub(crate) reserve: u64,
    /// Units that go on idling for less are not recalled.
    pub(crate) idle_us: u64,
    /// Cluster time.
    pub(crate) now_us: u64,
}

impl Supply<'_> {
    /// The lane that is meant by what was said: one that the policy does not have is
    /// its lowest.
    pub(crate) fn lane(&self, said: u32) -> usize {
        usize::try_from(said)
            .unwrap_or(usize::MAX)
            .min(self.lowest())
    }

    pub(crate) fn lowest(&self) -> usize {
        self.lanes.len().saturating_sub(1)
    }

    /// What requests of a lane, and everything that is wanted with no request waiting
    /// as one of the lowest, must leave for the lanes above.
    pub(crate) fn kept_from(&self, lane: usize) -> u64 {
        self.lanes
            .iter()
            .take(lane)
            .fold(0, |sum, reserve| sum.saturating_add(*reserve))
    }
}

/// What somebody is to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) session: SessionId,
    pub(crate) units: u64,
}

/// Divides the free units.
///
/// 1. Waiting requests, lane by lane, the highest first, and in a lane oldest first:
///    what the first request of each needs. When that is more than what is free and
///    not kept for a higher lane, the units are saved up for it and nobody else of its
///    lane or a lower one gets any, or it would wait for ever behind cheaper requests.
/// 2. The other waiting requests of the lane, oldest first.
/// 3. What is wanted with no request waiting, as long as more than the reserves are
///    free: the greatest `demand / (held + 1)` first, up to the holder's share of
///    everything unspent by its peak demand, one unit at least to who has none.
///    What is left stays here for who runs out next: it asks ahead, and nobody has
///    to be recalled from.
///
/// Who demands far more than its fair share under overload comes last in the lowest
/// lane, gets no more than that there, and nothing of the reserve. In higher lanes
/// nobody is held to it: the demand that it is judged by is that of all lanes.
pub(crate) fn divide(book: &Book, supply: Supply<'_>, fairness: &Fairness) -> Vec<Share> {
    let mut shares: Vec<Share> = Vec::new();
    let mut free = supply.free;
    if free == 0 {
        return shares;
    }
    for lane in 0..=supply.lowest() {
        if !serve_lane(book, supply, fairness, lane, &mut free, &mut shares) {
            return shares;
        }
    }
    park(book, supply, fairness, free, &mut shares);
    shares
}

/// Serves the requests that wait in one lane. False: it saves up for one of them, so
/// that there is nothing for the lanes below.
fn serve_lane(
    book: &Book,
    supply: Supply<'_>,
    fairness: &Fairness,
    lane: usize,
    free: &mut u64,
    shares: &mut Vec<Share>,
) -> bool {
    let kept = supply.kept_from(lane);
    let is_lowest = lane == supply.lowest();
    let is_greedy = |session| is_lowest && fairness.is_greedy(session);
    let allows = |session| fairness.allows(session).filter(|_| is_lowest);
    let mut waiting: Vec<(SessionId, &Queue)> = book
        .holders
        .iter()
        .flat_map(|(session, holder)| holder.queues.iter().map(|queue| (*session, queue)))
        .filter(|(_, queue)| supply.lane(queue.lane) == lane)
        .collect();
    waiting.sort_by_key(|(session, queue)| (is_greedy(*session), queue.since));
    // Of a higher lane, some of them have a share already.
    let above = shares.len();
    // Whose first request was served, what it needed, and where the share is.
    let mut served: Vec<(&Queue, u64, usize)> = Vec::new();
    for (session, queue) in waiting {
        let need = queue.head.clamp(1, queue.waiting);
        let there = free.saturating_sub(kept);
        if let Some(allowed) = allows(session) {
            // A first request that is dearer than what is allowed is served all the
            // same once that is not nothing, or it never would be.
            if allowed == 0 || need > there.saturating_sub(fairness.reserve()) {
                continue;
            }
        } else if need > there {
            return false;
        }
        *free -= need;
        let known = shares
            .iter()
            .take(above)
            .position(|share| share.session == session);
        let place = known.unwrap_or(shares.len());
        match shares.get_mut(place) {
            Some(share) => share.units += need,
            None => shares.push(Share {
                session,
                units: need,
            }),
        }
        served.push((queue, need, place));
    }
    for (queue, need, place) in served {
        let there = free.saturating_sub(kept);
        let share = &mut shares[place];
        let mut more = queue.waiting.saturating_sub(need).min(there);
        if let Some(allowed) = allows(share.session) {
            more = more
                .min(allowed.saturating_sub(share.units))
                .min(there.saturating_sub(fairness.reserve()));
        }
        share.units += more;
        *free -= more;
    }
    true
}

/// Gives what is free to those who want it with no request waiting.
fn park(
    book: &Book,
    supply: Supply<'_>,
    fairness: &Fairness,
    mut free: u64,
    shares: &mut Vec<Share>,
) {
    let reserve = supply
        .reserve
        .max(fairness.reserve())
        .saturating_add(supply.kept_from(supply.lowest()));
    if free <= reserve {
        return;
    }
    let mut wanting: BinaryHeap<Wanting> = BinaryHeap::new();
    for (session, holder) in &book.holders {
        if holder.want == 0 {
            continue;
        }
        let place = if holder.waits() {
            shares.iter().position(|share| share.session == *session)
        } else {
            None
        };
        if holder.waits() && place.is_none() {
            // Its first request could not be served: a part is of no use to it.
            continue;
        }
        let given = place.map_or(0, |place| shares[place].units);
        let mut want = holder.want.saturating_sub(given);
        if let Some(allowed) = fairness.allows(*session) {
            want = want.min(allowed.saturating_sub(given));
        }
        if want > 0 {
            wanting.push(Wanting {
                session: *session,
                demand: holder.demand_milli.max(1),
                peak: holder.peak,
                held: holder.held_at(supply.now_us).saturating_add(given),
                want,
                place,
            });
        }
    }
    let everything = u128::from(supply.free) + u128::from(supply.outstanding);
    let holders = u128::try_from(book.holders.len())
        .unwrap_or(u128::MAX)
        .max(1);
    while let Some(first) = wanting.pop() {
        let share = match book.peaks {
            0 => everything / holders,
            peaks => everything.saturating_mul(u128::from(first.peak)) / peaks,
        };
        // A part of what it spends before it could be recalled is worth having there
        // in any case.
        let soon = u128::from(first.demand) * u128::from(supply.idle_us) / 1_000_000_000;
        let share = share.max(soon * SOON_PERCENT / 100);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        // Who has more than half of a large share is left alone: a message for each
        // unit would be the price of a difference that nobody notices.
        if share >= LARGE_SHARE && first.held > share / 2 {
            continue;
        }
        let units = share
            .saturating_sub(first.held)
            .max(u64::from(first.held == 0))
            .min(first.want)
            .min(free - reserve);
        if units == 0 {
            continue;
        }
        free -= units;
        match first.place {
            Some(place) => shares[place].units += units,
            None => shares.push(Share {
                session: first.session,
                units,
            }),
        }
        if free <= reserve {
            break;
        }
    }
}

/// This much of what a holder spends within the time for which units idle that are
/// recalled. More lets fewer requests wait and strands more units.
const SOON_PERCENT: u128 = 40;
/// A share of so many units is topped up only when it is half empty.
const LARGE_SHARE: u64 = 8;

/// Somebody who wants units ahead; the greatest is served next.
#[derive(Debug, PartialEq, Eq)]
struct Wanting {
    session: SessionId,
    demand: u64,
    peak: u64,
    held: u64,
    want: u64,
    place: Option<usize>,
}

impl Ord for Wanting {
    /// By `demand / (held + 1)` as a fraction, so that no float decides; then the
    /// older session.
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u128::from(self.demand) * (u128::from(other.held) + 1);
        let right = u128::from(other.demand) * (u128::from(self.held) + 1);
        left.cmp(&right)
            .then_with(|| other.session.cmp(&self.session))
    }
}

impl PartialOrd for Wanting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod lanes;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use leasehold_ledger::policy::{Kind, Policy};
    use proptest::prelude::*;

    use super::*;
    use crate::book::Holder;

    fn queue(lane: u32, waiting: u64, head: u64, since: u64) -> Queue {
        Queue {
            lane,
            waiting,
            head,
            since,
            ..Queue::default()
        }
    }

    fn holder(want: u64, waiting: u64, head: u64, since: u64) -> Holder {
        let queue = queue(0, waiting, head, since);
        Holder {
            want,
            queues: (waiting > 0).then_some(queue).into_iter().collect(),
            ..Holder::default()
        }
    }

    fn book(holders: &[(u128, Holder)]) -> Book {
        let mut book = Book::default();
        for (session, holder) in holders {
            book.set(SessionId(*session), holder.clone());
        }
        book
    }

    fn supply(free: u64) -> Supply<'static> {
        Supply {
            lanes: &[],
            free,
            outstanding: 0,
            reserve: 0,
            idle_us: 0,
            now_us: 0,
        }
    }

    fn shares(book: &Book, free: u64) -> Vec<(u128, u64)> {
        divide(book, supply(free), &Fairness::default())
            .into_iter()
            .map(|share| (share.session.0, share.units))
            .collect()
    }

    #[test]
    fn the_oldest_waiting_request_is_served_first() {
        let book = book(&[(1, holder(1, 1, 1, 7)), (2, holder(1, 1, 1, 3))]);
        assert_eq!(shares(&book, 1), [(2, 1)]);
        assert_eq!(shares(&book, 2), [(2, 1), (1, 1)]);
    }

    #[test]
    fn many_waiting_requests_of_one_do_not_shut_out_another() {
        let book = book(&[(1, holder(100, 100, 1, 1)), (2, holder(1, 1, 1, 2))]);
        assert_eq!(shares(&book, 10), [(1, 9), (2, 1)]);
    }

    #[test]
    fn units_are_saved_up_for_a_first_request_that_needs_several() {
        let book = book(&[(1, holder(5, 5, 5, 1)), (2, holder(1, 1, 1, 2))]);
        assert_eq!(shares(&book, 4), []);
        assert_eq!(shares(&book, 6), [(1, 5), (2, 1)]);
    }

    #[test]
    fn what_is_wanted_ahead_goes_by_demand_over_holdings() {
        let mut rich = holder(10, 0, 0, 0);
        rich.demand_milli = 1_000;
        rich.peak = 1;
        rich.unspent = 9;
        let mut poor = holder(10, 0, 0, 0);
        poor.demand_milli = 1_000;
        poor.peak = 1;
        let book = book(&[(1, rich), (2, poor)]);
        assert_eq!(shares(&book, 1), [(2, 1)]);
    }

    #[test]
    fn what_is_wanted_ahead_is_capped_at_the_demand_share_of_everything_unspent() {
        let mut busy = holder(100, 0, 0, 0);
        busy.demand_milli = 3_000;
        busy.peak = 3;
        let mut quiet = holder(100, 0, 0, 0);
        quiet.demand_milli = 1_000;
        quiet.peak = 1;
        let book = book(&[(1, busy), (2, quiet)]);
        assert_eq!(shares(&book, 40), [(1, 30), (2, 10)]);
    }

    #[test]
    fn somebody_who_has_nothing_gets_one_unit_at_least() {
        let mut busy = holder(0, 0, 0, 0);
        busy.peak = 1_000;
        let mut quiet = holder(5, 0, 0, 0);
        quiet.demand_milli = 1;
        let book = book(&[(1, busy), (2, quiet)]);
        assert_eq!(shares(&book, 10), [(2, 1)]);
    }

    #[test]
    fn the_reserve_is_for_requests_that_wait() {
        let mut ahead = holder(10, 0, 0, 0);
        ahead.peak = 1;
        let kept = Supply {
            reserve: 3,
            ..supply(5)
        };
        let book = book(&[(1, ahead), (2, holder(4, 4, 4, 1))]);
        let shares = divide(&book, kept, &Fairness::default());
        let units: Vec<_> = shares
            .iter()
            .map(|share| (share.session.0, share.units))
            .collect();
        // Four of the five to who waits; the last one is of the reserve.
        assert_eq!(units, [(2, 4)]);
    }

    #[test]
    fn who_is_greedy_comes_last_and_leaves_two_units() {
        let mut book = book(&[(1, holder(50, 50, 1, 1)), (2, holder(1, 1, 1, 2))]);
        for (session, demand_milli) in [(1, 100_000), (2, 100)] {
            let mut changed = book.holders[&SessionId(session)].clone();
            changed.demand_milli = demand_milli;
            book.set(SessionId(session), changed);
        }
        let policy = Policy::new(Kind::SlidingWindow {
            limit: 120,
            window_us: 120_000_000,
        });
        let fairness = Fairness::judge(&mut book, &policy, 0, 1);
        let units = |free| -> Vec<(u128, u64)> {
            divide(&book, supply(free), &fairness)
                .into_iter()
                .map(|share| (share.session.0, share.units))
                .collect()
        };
        assert_eq!(units(1), [(2, 1)]);
        assert_eq!(units(3), [(2, 1)]);
        assert_eq!(units(4), [(2, 1), (1, 1)]);
        // A horizon (10 s) at the fair level of 0.9 a second.
        assert_eq!(units(60), [(2, 1), (1, 9)]);
    }

    fn any_holder() -> impl Strategy<Value = Holder> {
        (
            0..200_u64,
            0..200_u64,
            0..20_u64,
            0..50_u64,
            0..100_u64,
            0..100_u64,
            0..100_u64,
        )
            .prop_map(
                |(want, waiting, head, since, unspent, peak, demand_milli)| {
                    let waiting = waiting.min(want);
                    Holder {
                        unspent,
                        peak,
                        demand_milli,
                        ..holder(want, waiting, head.clamp(1, waiting.max(1)), since)
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn no_more_than_what_is_free_is_divided_and_nobody_gets_more_than_it_wants(
            holders in prop::collection::vec(any_holder(), 0..12),
            free in 0..500_u64,
            outstanding in 0..500_u64,
        ) {
            let mut book = Book::default();
            for (session, holder) in holders.iter().enumerate() {
                book.set(SessionId(session as u128), holder.clone());
            }
            let supply = Supply { outstanding, ..supply(free) };
            let shares = divide(&book, supply, &Fairness::default());
            prop_assert!(shares.iter().map(|share| share.units).sum::<u64>() <= free);
            for share in &shares {
                prop_assert!(share.units > 0);
                prop_assert!(share.units <= book.holders[&share.session].want);
            }
            let sessions: std::collections::BTreeSet<_> =
                shares.iter().map(|share| share.session).collect();
            prop_assert_eq!(sessions.len(), shares.len());
        }

        #[test]
        fn nobody_is_served_while_an_older_request_waits_for_its_first_units(
            holders in prop::collection::vec(any_holder(), 0..12),
            free in 0..500_u64,
        ) {
            let mut book = Book::default();
            for (place, holder) in holders.iter().enumerate() {
                let mut holder = holder.clone();
                for queue in &mut holder.queues {
                    queue.since = queue.since * 16 + place as u64;
                }
                book.set(SessionId(place as u128), holder);
            }
            let shares = divide(&book, supply(free), &Fairness::default());
            let got = |session: SessionId| {
                shares.iter().find(|share| share.session == session).map_or(0, |share| share.units)
            };
            for (older, first) in &book.holders {
                let Some(first) = first.queues.first() else { continue };
                if got(*older) >= first.head {
                    continue;
                }
                for (younger, second) in &book.holders {
                    if second.queues.first().is_none_or(|second| second.since > first.since) {
                        prop_assert_eq!(got(*younger), 0);
                    }
                }
            }
        }

        #[test]
        fn a_request_for_one_unit_is_never_left_waiting_while_units_are_free(
            waiters in 1..20_u64,
            free in 0..40_u64,
        ) {
            let mut book = Book::default();
            for place in 0..waiters {
                book.set(SessionId(u128::from(place)), holder(1, 1, 1, place));
            }
            let shares = divide(&book, supply(free), &Fairness::default());
            prop_assert_eq!(shares.len() as u64, waiters.min(free));
        }
    }
}
