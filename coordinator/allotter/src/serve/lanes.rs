//! Claims about who is served first when a policy has lanes.

use leasehold_ledger::policy::{Kind, Policy};
use proptest::prelude::*;

use super::*;
use crate::book::Holder;

/// `(session, [(lane, waiting, head, since)])`; each wants what it waits for.
type Said<'a> = (u128, &'a [(u32, u64, u64, u64)]);

fn book(said: &[Said<'_>]) -> Book {
    let mut book = Book::default();
    for (session, queues) in said {
        let queues: Vec<Queue> = queues
            .iter()
            .map(|(lane, waiting, head, since)| Queue {
                lane: *lane,
                waiting: *waiting,
                head: *head,
                since: *since,
                ..Queue::default()
            })
            .collect();
        let holder = Holder {
            want: queues.iter().map(|queue| queue.waiting).sum(),
            queues,
            ..Holder::default()
        };
        book.set(SessionId(*session), holder);
    }
    book
}

fn supply(free: u64, lanes: &[u64]) -> Supply<'_> {
    Supply {
        lanes,
        free,
        outstanding: 0,
        reserve: 0,
        idle_us: 0,
        now_us: 0,
    }
}

fn units(book: &Book, free: u64, lanes: &[u64]) -> Vec<(u128, u64)> {
    let mut shares: Vec<_> = divide(book, supply(free, lanes), &Fairness::default())
        .into_iter()
        .map(|share| (share.session.0, share.units))
        .collect();
    shares.sort_unstable();
    shares
}

#[test]
fn the_highest_lane_is_served_first_however_long_the_others_wait() {
    let book = book(&[
        (1, &[(2, 9, 1, 1)]),
        (2, &[(0, 3, 1, 8)]),
        (3, &[(1, 2, 1, 5)]),
    ]);
    let lanes = [0, 0, 0];
    assert_eq!(units(&book, 3, &lanes), [(2, 3)]);
    assert_eq!(units(&book, 4, &lanes), [(2, 3), (3, 1)]);
    assert_eq!(units(&book, 6, &lanes), [(1, 1), (2, 3), (3, 2)]);
}

#[test]
fn all_of_a_lane_comes_before_any_of_the_next_one() {
    let book = book(&[(1, &[(0, 5, 1, 1), (1, 5, 1, 1)]), (2, &[(1, 1, 1, 0)])]);
    assert_eq!(units(&book, 5, &[0, 0]), [(1, 5)]);
    assert_eq!(units(&book, 7, &[0, 0]), [(1, 6), (2, 1)]);
}

#[test]
fn a_lower_lane_takes_nothing_of_what_is_kept_for_those_above() {
    let book = book(&[(1, &[(2, 100, 1, 1)]), (2, &[(1, 100, 1, 1)])]);
    let lanes = [20, 10, 0];
    assert_eq!(units(&book, 20, &lanes), []);
    assert_eq!(units(&book, 25, &lanes), [(2, 5)]);
    let only_low = self::book(&[(1, &[(2, 100, 1, 1)])]);
    assert_eq!(units(&only_low, 30, &lanes), []);
    assert_eq!(units(&only_low, 31, &lanes), [(1, 1)]);
}

#[test]
fn the_highest_lane_takes_what_is_kept_for_it() {
    let book = book(&[(1, &[(0, 25, 1, 1)])]);
    assert_eq!(units(&book, 20, &[20, 0]), [(1, 20)]);
}

#[test]
fn nothing_is_parked_out_of_what_is_kept() {
    let mut book = book(&[(1, &[])]);
    let mut wants = book.holders[&SessionId(1)].clone();
    (wants.want, wants.peak) = (50, 50);
    book.set(SessionId(1), wants);
    assert_eq!(units(&book, 20, &[20, 0]), []);
    assert_eq!(units(&book, 24, &[20, 0]), [(1, 4)]);
}

#[test]
fn who_names_no_lane_or_one_that_there_is_not_is_in_the_lowest() {
    let book = book(&[
        (1, &[(u32::MAX, 1, 1, 1)]),
        (2, &[(7, 1, 1, 2)]),
        (3, &[(1, 1, 1, 3)]),
    ]);
    assert_eq!(units(&book, 1, &[0, 0]), [(1, 1)]);
    assert_eq!(units(&book, 2, &[0, 0]), [(1, 1), (2, 1)]);
}

#[test]
fn units_that_are_saved_up_for_a_high_lane_are_not_given_to_a_lower_one() {
    let book = book(&[(1, &[(0, 5, 5, 9)]), (2, &[(1, 1, 1, 1)])]);
    assert_eq!(units(&book, 4, &[0, 0]), []);
}

#[test]
fn who_is_greedy_for_its_low_lane_is_served_in_a_high_one() {
    let mut book = book(&[(1, &[(0, 5, 1, 1), (1, 50, 1, 1)]), (2, &[(1, 1, 1, 2)])]);
    for (session, demand_milli) in [(1, 100_000), (2, 100)] {
        let mut changed = book.holders[&SessionId(session)].clone();
        changed.demand_milli = demand_milli;
        changed.allowance = Some((0, 0));
        book.set(SessionId(session), changed);
    }
    let policy = Policy::new(Kind::SlidingWindow {
        limit: 120,
        window_us: 120_000_000,
    });
    let fairness = Fairness::judge(&mut book, &policy, 0, 0);
    assert_eq!(
        fairness.allows(SessionId(1)),
        Some(0),
        "it is greedy, and has had it"
    );
    let shares: Vec<_> = divide(&book, supply(60, &[0, 0]), &fairness)
        .into_iter()
        .map(|share| (share.session.0, share.units))
        .collect();
    assert_eq!(shares, [(1, 5), (2, 1)]);
}

proptest! {
    #[test]
    fn lower_lanes_get_nothing_while_a_higher_one_lacks_anything_nor_what_is_kept(
        said in prop::collection::vec((0..4_u32, 1..20_u64, 1..5_u64, 0..50_u64), 1..12),
        free in 0..80_u64,
        reserves in prop::array::uniform3(0..12_u64),
    ) {
        let queues: Vec<[(u32, u64, u64, u64); 1]> = said
            .iter()
            .map(|(lane, waiting, head, since)| [(*lane, *waiting, (*head).min(*waiting), *since)])
            .collect();
        let said: Vec<Said<'_>> = (0..).zip(queues.iter().map(<[_; 1]>::as_slice)).collect();
        let book = book(&said);
        let supply = supply(free, &reserves);
        let shares = divide(&book, supply, &Fairness::default());
        let got = |session: u128| {
            shares.iter().find(|share| share.session.0 == session).map_or(0, |share| share.units)
        };
        let lanes = (0..3_usize).map(|lane| {
            let of = said.iter().filter(|(_, queues)| supply.lane(queues[0].0) == lane);
            of.fold((0_u64, 0_u64), |(wanted, given), (session, queues)| {
                (wanted + queues[0].1, given + got(*session))
            })
        });
        let mut left = free;
        let mut is_short = false;
        for (lane, (wanted, given)) in lanes.enumerate() {
            prop_assert!(!is_short || given == 0, "lane {lane} got {given}");
            prop_assert!(given == 0 || left - given >= supply.kept_from(lane));
            is_short |= given < wanted;
            left -= given;
        }
    }
}
