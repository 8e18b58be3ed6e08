//! Whom to ask for units back when a request waits and nothing is free. Knows
//! what holders are thought to keep and since when they are idle; cannot make
//! anybody hand anything back.

use leasehold_key::Key;
use leasehold_ledger::{entry::SessionId, outcome::LeaseView};

use crate::book::Book;

/// Units asked back from one holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Who is asked.
    pub session: SessionId,
    /// For which account's units.
    pub key: Key,
    /// The lease.
    pub generation: u64,
    /// Hand back until the lease's returned total reaches this.
    pub returned_total_target: u64,
    /// What the lease was granted so far.
    pub granted_total: u64,
    /// All that is left up to the target is needed, not half of it.
    pub whole: bool,
}

/// At most so many holders are asked at once.
const HOLDERS_MAX: usize = 4;
/// At most so many holders are asked for everything, for one request that needs
/// several units.
const GATHERED_MAX: usize = 64;
/// At most so many rounds are made for one request.
pub(crate) const ROUNDS_MAX: u8 = 2;
/// A unit moves only to where it is of so many times the use.
const REBALANCE_FACTOR: u128 = 3;
/// What a recall is to bring, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) needed: u64,
    /// What of it the first request lacks, if that needs several units: less is of
    /// no use to it.
    pub(crate) head: u64,
    /// Only units that would go on idling for so long are asked for.
    pub(crate) least_us: u64,
    pub(crate) now_us: u64,
    pub(crate) until_us: u64,
}

/// Whom to ask, or when it is worth looking again.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) recalls: Vec<Recall>,
    /// The first moment at which somebody can be asked who cannot be now.
    pub(crate) again_us: Option<u64>,
}

/// Asks half of what the holders that are idle longest have, at most four of
/// them, until `needed` units can be expected, and notes whom it asked. Where that
/// cannot be enough for a first request of several units, it asks for everything, of
/// as many as that takes: halves would never add up.
pub(crate) fn choose(
    book: &mut Book,
    key: &Key,
    leases: &[LeaseView],
    attached: impl Fn(SessionId) -> bool,
    terms: Terms,
) -> Choice {
    let Terms {
        needed,
        head,
        least_us,
        now_us,
        until_us,
    } = terms;
    let mut again_us: Option<u64> = None;
    let mut idle: Vec<(u64, &LeaseView, u64)> = Vec::new();
    for lease in leases {
        if !lease.current || !attached(lease.session) {
            continue;
        }
        let booked = booked(lease);
        let (unspent, idle_us) = match book.holders.get(&lease.session) {
            Some(holder) if holder.waits() || holder.recalled_until_us.is_some() => continue,
            Some(holder) => {
                let unspent = booked.min(holder.held_at(now_us));
                (unspent, holder.idle_us(unspent, now_us))
            }
            // Never heard of by this leader: silence counts as idleness.
            None => (booked, u64::MAX),
        };
        if unspent == 0 {
            continue;
        }
        if idle_us >= least_us {
            idle.push((idle_us, lease, unspent));
        } else {
            let then_us = now_us.saturating_add(least_us - idle_us);
            again_us = Some(again_us.map_or(then_us, |known| known.min(then_us)));
        }
    }
    idle.sort_by(|(a_us, a, _), (b_us, b, _)| {
        b_us.cmp(a_us).then_with(|| a.session.cmp(&b.session))
    });
    let halves = idle.iter().take(HOLDERS_MAX);
    let halves = halves.fold(0_u64, |sum, (.., unspent)| {
        sum.saturating_add(unspent.div_ceil(2))
    });
    let whole = head > halves;
    let (enough, most) = if whole {
        (head, GATHERED_MAX)
    } else {
        (needed, HOLDERS_MAX)
    };
    let mut recalls = Vec::new();
    let mut expected = 0_u64;
    for (_, lease, unspent) in idle.into_iter().take(most) {
        if expected >= enough {
            break;
        }
        let units = if whole {
            unspent.min(enough - expected)
        } else {
            unspent.div_ceil(2)
        };
        expected = expected.saturating_add(units);
        let recall = ask(book, key, lease, units, now_us, until_us);
        recalls.push(Recall { whole, ..recall });
    }
    Choice { recalls, again_us }
}

/// Who makes so much less use of a unit that it should be where there is none: its
/// demand per unit held is less than a third of the demand of a session that has
/// nothing and may be given something: a unit that nobody else may have would come
/// back at once. Nobody, while the answer to a recall is awaited.
pub(crate) fn least_useful(
    book: &Book,
    attached: impl Fn(SessionId) -> bool,
    may_get: impl Fn(SessionId) -> bool,
    now_us: u64,
) -> Option<SessionId> {
    if book.recalls_under_way(now_us).is_some() {
        return None;
    }
    let mut poorest = 0_u64;
    let mut least: Option<(SessionId, u64, u64)> = None;
    for (session, holder) in &book.holders {
        let (demand, held) = (holder.demand_milli, holder.held_at(now_us));
        if held == 0 {
            if holder.want > 0 && may_get(*session) {
                poorest = poorest.max(demand);
            }
            continue;
        }
        let makes_less_use = least.is_none_or(|(_, other_demand, other_held)| {
            u128::from(demand) * u128::from(other_held)
                < u128::from(other_demand) * u128::from(held)
        });
        if makes_less_use && attached(*session) {
            least = Some((*session, demand, held));
        }
    }
    let (session, demand, held) = least?;
    let is_worth_it =
        u128::from(poorest) * u128::from(held) > REBALANCE_FACTOR * u128::from(demand);
    is_worth_it.then_some(session)
}

/// Units of a lease that are neither reported spent nor handed back.
pub(crate) fn booked(lease: &LeaseView) -> u64 {
    lease
        .granted_total
        .saturating_sub(lease.spent_total)
        .saturating_sub(lease.returned_total)
}

/// Asks a holder for units, and notes it.
pub(crate) fn ask(
    book: &mut Book,
    key: &Key,
    lease: &LeaseView,
    units: u64,
    now_us: u64,
    until_us: u64,
) -> Recall {
    let mut holder = book
        .holders
        .get(&lease.session)
        .cloned()
        .unwrap_or_default();
    if holder.heard_us == 0 {
        holder.unspent = booked(lease).saturating_sub(units);
        holder.heard_us = now_us;
    }
    holder.recalled_until_us = Some(until_us);
    holder.recalled = units;
    book.set(lease.session, holder);
    Recall {
        session: lease.session,
        key: key.clone(),
        generation: lease.generation,
        returned_total_target: lease.returned_total.saturating_add(units),
        granted_total: lease.granted_total,
        whole: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::{Holder, Queue};

    fn key() -> Key {
        #[expect(clippy::unwrap_used, reason = "a literal key")]
        Key::parse("acme/orders").unwrap()
    }

    fn lease(session: u128, granted_total: u64) -> LeaseView {
        LeaseView {
            key: key(),
            session: SessionId(session),
            holder: String::new(),
            generation: 9,
            granted_total,
            spent_total: 0,
            returned_total: 0,
            current: true,
            deadline_us: 0,
        }
    }

    fn known(unspent: u64, active_us: u64) -> Holder {
        Holder {
            unspent,
            active_us,
            heard_us: active_us,
            demand_milli: 1_000_000,
            ..Holder::default()
        }
    }

    fn asked(book: &mut Book, leases: &[LeaseView], needed: u64) -> Vec<(u128, u64)> {
        let terms = Terms {
            needed,
            head: 0,
            least_us: 1_000_000,
            now_us: 100_000_000,
            until_us: 100_250_000,
        };
        choose(book, &key(), leases, |_| true, terms)
            .recalls
            .into_iter()
            .map(|recall| (recall.session.0, recall.returned_total_target))
            .collect()
    }

    #[test]
    fn half_is_asked_from_the_longest_idle_until_enough_is_expected() {
        let mut book = Book::default();
        book.set(SessionId(1), known(10, 90_000_000));
        book.set(SessionId(2), known(10, 50_000_000));
        let leases = [lease(1, 10), lease(2, 10)];
        assert_eq!(asked(&mut book, &leases, 3), [(2, 5)]);
        let mut book = Book::default();
        assert_eq!(asked(&mut book, &leases, 8), [(1, 5), (2, 5)]);
    }

    #[test]
    fn everything_is_asked_for_when_halves_cannot_be_enough_for_a_first_request() {
        let leases: Vec<_> = (1..=9).map(|session| lease(session, 10)).collect();
        let asked = |head| -> Vec<(u64, bool)> {
            let terms = Terms {
                needed: 50,
                head,
                least_us: 1_000_000,
                now_us: 100_000_000,
                until_us: 100_250_000,
            };
            choose(&mut Book::default(), &key(), &leases, |_| true, terms)
                .recalls
                .into_iter()
                .map(|recall| (recall.returned_total_target, recall.whole))
                .collect()
        };
        assert_eq!(asked(0), [(5, false); 4]);
        assert_eq!(asked(20), [(5, false); 4], "halves of four are enough");
        assert_eq!(asked(25), [(10, true), (10, true), (5, true)]);
        assert_eq!(asked(1_000).len(), 9);
    }

    #[test]
    fn nobody_who_waits_or_spends_now_or_was_asked_already_is_asked() {
        let mut book = Book::default();
        let mut waits = known(10, 0);
        waits.queues.push(Queue::default());
        book.set(SessionId(1), waits);
        book.set(SessionId(2), known(1, 99_999_999));
        let mut asked_already = known(10, 0);
        asked_already.recalled_until_us = Some(1);
        book.set(SessionId(3), asked_already);
        let leases = [lease(1, 10), lease(2, 10), lease(3, 10)];
        assert_eq!(asked(&mut book, &leases, 1), []);
    }

    /// Somebody with this demand and so many units.
    fn with(demand_milli: u64, unspent: u64, want: u64) -> Holder {
        Holder {
            unspent,
            want,
            demand_milli,
            ..Holder::default()
        }
    }

    #[test]
    fn a_unit_moves_to_who_has_none_and_makes_more_than_three_times_the_use_of_it() {
        let mut book = Book::default();
        book.set(SessionId(1), with(3_000, 0, 5));
        book.set(SessionId(2), with(1_000, 1, 0));
        book.set(SessionId(3), with(2_000, 1, 0));
        assert_eq!(
            least_useful(&book, |_| true, |_| true, 0),
            None,
            "three times are not more"
        );
        book.set(SessionId(3), with(2_000, 3, 0));
        assert_eq!(
            least_useful(&book, |_| true, |_| true, 0),
            Some(SessionId(3))
        );
        assert_eq!(
            least_useful(&book, |session| session.0 != 3, |_| true, 0),
            None
        );
        assert_eq!(
            least_useful(&book, |_| true, |session| session.0 != 1, 0),
            None,
            "who has none may get none"
        );
        let mut asked = with(10, 1, 0);
        asked.recalled_until_us = Some(1);
        book.set(SessionId(4), asked);
        assert_eq!(
            least_useful(&book, |_| true, |_| true, 0),
            None,
            "an answer is awaited"
        );
    }

    #[test]
    fn at_most_four_holders_are_asked_and_a_single_unit_can_be_asked_for() {
        let leases: Vec<_> = (1..=9).map(|session| lease(session, 1)).collect();
        let recalls = asked(&mut Book::default(), &leases, 100);
        assert_eq!(recalls, [(1, 1), (2, 1), (3, 1), (4, 1)]);
    }
}
