//! Who demands far more than its fair share while there is not enough for
//! everybody, and how much it may get. Knows demands and the supply's rate;
//! gives nothing to anybody.
//!
//! The rule engages when all demand together is more than 1.5 × what the budget
//! supplies (what is free now, spread over the timescale, and what comes back
//! meanwhile: a long window that has hardly been used is no shortage) and a session demands more than 3 × its max-min fair level: the level
//! at which, if nobody got more than it and nobody more than it demands, the
//! supply would just be used up. Such a session's grants are capped at that level,
//! and two units (fewer of a small limit) are kept for the others, if there are any: a flood that is spread
//! evenly makes nobody greedy.

use std::collections::BTreeMap;

use leasehold_ledger::{
    entry::SessionId,
    policy::{Kind, Policy},
};

use crate::book::Book;

/// Demand that is overload, in tenths of the supply.
const OVERLOAD_TENTHS: u128 = 15;
/// So many times the fair level is greedy.
const GREEDY: u64 = 3;
/// Units are recalled that would go on idling for this part of the timescale ...
const IDLE_PARTS: u64 = 63;
/// ... or, under overload, for this one.
const OVERLOADED_IDLE_PARTS: u64 = 240;
/// Units kept for the others ...
const RESERVE: u64 = 2;
/// ... but no more than this part of the limit: of ten, two would be a fifth that
/// nobody gets.
const RESERVE_PARTS: u64 = 50;

/// How the free units of one key are to be shared at one moment.
#[derive(Debug, Default)]
pub(crate) struct Fairness {
    /// What each greedy session may get now, and in how many microseconds one unit
    /// more.
    allowed: BTreeMap<SessionId, (u64, u64)>,
    is_overloaded: bool,
    /// Units kept for those who are not greedy.
    reserve: u64,
}

/// What a budget with so many free units supplies over the next timescale, in
/// thousandths of a unit per second.
fn supply_milli(policy: &Policy, free: u64) -> u64 {
    let (units, period_us) = match policy.kind {
        Kind::SlidingWindow { limit, window_us } => (limit, window_us),
        Kind::TokenBucket {
            refill,
            refill_period_us,
            ..
        }
        | Kind::Paced {
            refill,
            refill_period_us,
            ..
        } => (refill, refill_period_us),
        // What is free is all there is until somebody hands something back.
        Kind::Period { .. }
        | Kind::Total { .. }
        | Kind::Concurrency { .. }
        | Kind::Estimate { .. }
        | Kind::Unlimited => (0, 1),
    };
    let per_second =
        |units, time_us: u64| u128::from(units) * 1_000_000_000 / u128::from(time_us.max(1));
    let milli = per_second(units, period_us) + per_second(free, policy.timescale_us());
    u64::try_from(milli).unwrap_or(u64::MAX)
}

/// The max-min fair level of `demands` for a supply that is less than their sum.
fn fair_level(demands: &mut [u64], supply: u64) -> u64 {
    demands.sort_unstable();
    let mut rest = supply;
    let mut sharers = u64::try_from(demands.len()).unwrap_or(u64::MAX);
    for demand in demands.iter() {
        let level = rest / sharers.max(1);
        if *demand >= level {
            return level;
        }
        rest -= demand;
        sharers -= 1;
    }
    u64::MAX
}

impl Fairness {
    /// Judges everybody who is known on a key, and lets what the greedy may get
    /// grow with time.
    pub(crate) fn judge(book: &mut Book, policy: &Policy, free: u64, now_us: u64) -> Self {
        let supply = supply_milli(policy, free);
        let demand = book
            .holders
            .values()
            .fold(0_u128, |sum, holder| sum + u128::from(holder.demand_milli));
        if book.holders.len() < 2 || demand * 10 <= u128::from(supply) * OVERLOAD_TENTHS {
            return Self::default();
        }
        let mut fairness = Self {
            is_overloaded: true,
            ..Self::default()
        };
        let mut demands: Vec<u64> = book
            .holders
            .values()
            .map(|holder| holder.demand_milli)
            .collect();
        let level = fair_level(&mut demands, supply);
        let horizon_us = policy.demand_horizon_us();
        let is_greedy = |demand_milli| demand_milli > level.saturating_mul(GREEDY);
        let has_others = book
            .holders
            .values()
            .any(|holder| holder.demand_milli > 0 && !is_greedy(holder.demand_milli));
        for (session, holder) in &mut book.holders {
            // Where everybody is, there is nobody to keep anything for.
            if !has_others || !is_greedy(holder.demand_milli) {
                holder.allowance = None;
                continue;
            }
            // A bucket that holds one horizon at the fair level, one unit at least.
            let most = (u128::from(level) * u128::from(horizon_us) / 1_000).max(1_000_000);
            let (since_us, micro) = holder.allowance.unwrap_or((now_us, most));
            let passed_us = u128::from(now_us.saturating_sub(since_us));
            // Millionths of a unit: milli-units per second times microseconds.
            let micro = (micro + u128::from(level) * passed_us / 1_000).min(most);
            holder.allowance = Some((now_us, micro));
            let units = u64::try_from(micro / 1_000_000).unwrap_or(u64::MAX);
            // Rounded up: at that moment there is a unit.
            let missing = 1_000_000 - micro % 1_000_000;
            let more_us = (missing * 1_000).div_ceil(u128::from(level.max(1)));
            let more_us = u64::try_from(more_us).unwrap_or(u64::MAX);
            fairness.allowed.insert(*session, (units, more_us));
        }
        if !fairness.allowed.is_empty() {
            fairness.reserve = RESERVE.min(policy.kind.limit() / RESERVE_PARTS);
        }
        fairness
    }

    /// For how long a unit must be going to idle before it is recalled. Under
    /// overload every unit that idles is one that somebody is refused meanwhile.
    pub(crate) fn idle_us(&self, policy: &Policy) -> u64 {
        let parts = if self.is_overloaded {
            OVERLOADED_IDLE_PARTS
        } else {
            IDLE_PARTS
        };
        policy.timescale_us().div_euclid(parts)
    }

    /// Whether a session demands far more than its fair share.
    pub(crate) fn is_greedy(&self, session: SessionId) -> bool {
        self.allowed.contains_key(&session)
    }

    /// What a greedy session may get; none: as much as there is.
    pub(crate) fn allows(&self, session: SessionId) -> Option<u64> {
        self.allowed.get(&session).map(|(units, _)| *units)
    }

    /// In how many microseconds a greedy session that may get nothing now may get
    /// a unit; none: it may get something.
    pub(crate) fn bars(&self, session: SessionId) -> Option<u64> {
        let (units, more_us) = self.allowed.get(&session)?;
        (*units == 0).then_some(*more_us)
    }

    /// Units kept for those who are not greedy.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::book::Holder;

    fn book(demands_milli: &[u64]) -> Book {
        let mut book = Book::default();
        for (session, demand_milli) in (1..).zip(demands_milli) {
            let holder = Holder {
                demand_milli: *demand_milli,
                ..Holder::default()
            };
            book.set(SessionId(session), holder);
        }
        book
    }

    /// One unit a second.
    fn policy() -> Policy {
        Policy::new(Kind::SlidingWindow {
            limit: 60,
            window_us: 60_000_000,
        })
    }

    #[test]
    fn nobody_is_greedy_while_there_is_about_enough() {
        let mut calm = book(&[1_400, 50]);
        let fairness = Fairness::judge(&mut calm, &policy(), 0, 0);
        assert!(!fairness.is_greedy(SessionId(1)));
        assert_eq!(
            (fairness.reserve(), fairness.idle_us(&policy())),
            (0, 60_000_000 / 63)
        );
    }

    #[test]
    fn of_a_small_limit_fewer_units_are_kept() {
        for (limit, kept) in [(10, 0), (49, 0), (50, 1), (100, 2), (1_000_000, 2)] {
            let policy = Policy::new(Kind::SlidingWindow {
                limit,
                window_us: 60_000_000,
            });
            let mut uneven = book(&[limit * 1_000, 1]);
            let fairness = Fairness::judge(&mut uneven, &policy, 0, 0);
            assert_eq!(fairness.reserve(), kept, "{limit}");
        }
    }

    #[test]
    fn a_long_window_that_is_nearly_unused_is_no_overload() {
        // A thousand in ten minutes: demand is 3.6 × the rate at which units come
        // back, but there are enough for minutes.
        let policy = Policy::new(Kind::SlidingWindow {
            limit: 1_000,
            window_us: 600_000_000,
        });
        let mut uneven = book(&[4_500, 500, 500, 500]);
        let greedy =
            |free, book: &mut Book| Fairness::judge(book, &policy, free, 0).is_greedy(SessionId(1));
        assert!(!greedy(900, &mut uneven));
        assert!(greedy(0, &mut uneven));
    }

    #[test]
    fn under_overload_equals_are_not_greedy_and_units_are_recalled_sooner() {
        let mut equals = book(&[1_000; 4]);
        let fairness = Fairness::judge(&mut equals, &policy(), 0, 0);
        assert!(!fairness.is_greedy(SessionId(1)));
        assert_eq!(fairness.idle_us(&policy()), 60_000_000 / 240);
    }

    #[test]
    fn what_a_greedy_session_may_get_grows_at_its_fair_level() {
        // The others demand 0.5 a second together, so that 0.5 a second are left.
        let mut book = book(&[50_000, 250, 250]);
        let fairness = Fairness::judge(&mut book, &policy(), 0, 0);
        assert_eq!(
            fairness.allows(SessionId(1)),
            Some(5),
            "a horizon at that level"
        );
        assert_eq!(fairness.allows(SessionId(2)), None);
        let mut spent = book.holders[&SessionId(1)].clone();
        spent.given(5, 0);
        book.set(SessionId(1), spent);
        let fairness = Fairness::judge(&mut book, &policy(), 0, 0);
        assert_eq!(fairness.bars(SessionId(1)), Some(2_000_000));
        let fairness = Fairness::judge(&mut book, &policy(), 0, 2_000_000);
        assert_eq!(fairness.allows(SessionId(1)), Some(1));
        assert_eq!(fairness.bars(SessionId(1)), None);
    }

    #[test]
    fn the_fair_level_uses_the_supply_up() {
        // 10 + 20 + 35 + 35 = 100.
        assert_eq!(fair_level(&mut [80, 20, 10, 90], 100), 35);
        assert_eq!(fair_level(&mut [50, 50], 100), 50);
        assert_eq!(fair_level(&mut [1, 500], 100), 99);
    }
}
