//! Lanes of one key: who is served first, and who is refused.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use fixture::{Client, MS, grant, policy};
use leasehold_spend::{
    At, Begun, Code, Joint, Lane, LaneRule, Patience, SECOND, Slot, Together, Verdict, Waiter,
    message::{Incoming, KeyGrant, LaneWaiting, Policy, Refusal},
};

/// Units that were spent before a test begins.
const SPENT: u64 = 10;
const PAYMENT: Lane = Lane(0);
const READS: Lane = Lane(1);

fn lanes() -> Vec<LaneRule> {
    ["payment", "reads", "anonymous"]
        .map(|name| LaneRule {
            name: name.to_owned(),
            max_wait_ns: 250 * MS,
        })
        .to_vec()
}

fn with_lanes(generation: u64, granted_total: u64) -> KeyGrant {
    KeyGrant {
        policy: Some(Policy {
            lanes: lanes(),
            ..policy(100)
        }),
        ..grant(generation, granted_total)
    }
}

/// A client that knows the lanes and has so many units.
fn client(units: u64) -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    client.synced(seq, vec![with_lanes(5, SPENT + units)]);
    assert_eq!(client.spend(SPENT), Verdict::Admitted);
    // It asks for more, and is told nothing.
    for sync in client.syncs() {
        client.synced(sync.seq, vec![with_lanes(5, SPENT + units)]);
    }
    client
}

fn waits(client: &Client, lane: Lane, units: u64, patience: Patience) -> Waiter {
    match client.slot.spend_in(lane, units, patience, &At(client.now)) {
        Begun::Waits(waiter) => waiter,
        Begun::Answered(verdict) => panic!("answered {verdict:?}"),
    }
}

fn spend(client: &Client, lane: Lane, units: u64) -> Verdict {
    match client
        .slot
        .spend_in(lane, units, Patience::OneAnswer, &At(client.now))
    {
        Begun::Waits(mut waiter) => told(&mut waiter, client).unwrap(),
        Begun::Answered(verdict) => verdict,
    }
}

fn told(waiter: &mut Waiter, client: &Client) -> Option<Verdict> {
    match waiter.poll(&mut Context::from_waker(Waker::noop()), &At(client.now)) {
        Poll::Ready(verdict) => Some(verdict),
        Poll::Pending => None,
    }
}

fn refusal(lane: u32, retry_after_us: u64) -> KeyGrant {
    KeyGrant {
        refusal: Some(Refusal {
            code: Code::Limit,
            retry_after_us,
            lane,
        }),
        ..with_lanes(0, 0)
    }
}

#[test]
fn a_name_stands_for_its_place_and_an_unknown_one_for_the_lowest() {
    let client = client(1);
    let slot: &Arc<Slot> = &client.slot;
    assert_eq!(slot.lane("payment"), (PAYMENT, true));
    assert_eq!(slot.lane("reads"), (READS, true));
    assert_eq!(slot.lane("anonymous"), (Lane::LOWEST, true));
    assert_eq!(slot.lane("audit"), (Lane::LOWEST, false));
    let unknown = Client::open();
    assert_eq!(unknown.slot.lanes_version(), 0);
    assert_eq!(unknown.slot.lane("payment"), (Lane::LOWEST, false));
}

#[test]
fn what_waits_in_a_higher_lane_is_served_first_and_in_a_lane_the_first_to_come() {
    let mut client = client(0);
    let mut low = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    let mut reads = waits(&client, READS, 1, Patience::OneAnswer);
    let mut first = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let mut second = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    client.hear(Incoming::Granted(vec![with_lanes(5, SPENT + 1)]));
    assert_eq!(told(&mut first, &client), Some(Verdict::Admitted));
    assert_eq!(told(&mut second, &client), None);
    client.hear(Incoming::Granted(vec![with_lanes(5, SPENT + 3)]));
    assert_eq!(told(&mut second, &client), Some(Verdict::Admitted));
    assert_eq!(told(&mut reads, &client), Some(Verdict::Admitted));
    assert_eq!(told(&mut low, &client), None);
}

#[test]
fn a_costly_request_of_a_lower_lane_does_not_hold_up_a_higher_one() {
    let client = client(3);
    let mut low = waits(&client, Lane::LOWEST, 5, Patience::OneAnswer);
    assert_eq!(spend(&client, PAYMENT, 1), Verdict::Admitted);
    let at = At(client.now);
    assert_eq!(client.slot.try_spend_in(READS, 1, &at), Verdict::Admitted);
    // One of its own lane does not overtake it.
    assert_eq!(client.slot.try_spend(1, &at), Verdict::Empty);
    assert_eq!(told(&mut low, &client), None);
}

#[test]
fn who_overtakes_after_the_deadline_is_not_admitted() {
    let client = client(3);
    let low = waits(&client, Lane::LOWEST, 5, Patience::OneAnswer);
    let late = At(client.now + fixture::VALIDITY);
    assert_eq!(client.slot.try_spend_in(PAYMENT, 1, &late), Verdict::Empty);
    drop(low);
    assert_eq!(
        client.slot.try_spend_in(PAYMENT, 3, &At(client.now)),
        Verdict::Admitted
    );
}

#[test]
fn a_report_says_what_waits_in_each_lane() {
    let mut client = client(0);
    let until = Patience::Until(client.now + 3 * SECOND);
    let waiting = [
        waits(&client, Lane::LOWEST, 4, Patience::OneAnswer),
        waits(&client, PAYMENT, 2, until),
        waits(&client, PAYMENT, 1, Patience::OneAnswer),
    ];
    let report = client.sync().reports.remove(0);
    assert_eq!((report.waiting, report.waiting_head), (7, 2));
    assert_eq!(report.wait_us, 3_000_000);
    let lane = |lane, waiting, head, wait_us| LaneWaiting {
        lane,
        waiting,
        head,
        wait_us,
    };
    assert_eq!(report.lanes, [lane(0, 3, 2, 3_000_000), lane(2, 4, 4, 0)]);
    drop(waiting);
}

#[test]
fn what_is_left_is_of_the_highest_lane_that_waits() {
    let mut client = client(2);
    let waiting = [
        waits(&client, Lane::LOWEST, 4, Patience::OneAnswer),
        waits(&client, PAYMENT, 3, Patience::OneAnswer),
        waits(&client, PAYMENT, 1, Patience::OneAnswer),
    ];
    let report = client.sync().reports.remove(0);
    assert_eq!(
        (report.left, report.waiting, report.waiting_head),
        (2, 6, 1)
    );
    let told = report.lanes.iter().map(|l| (l.lane, l.waiting, l.head));
    assert_eq!(told.collect::<Vec<_>>(), [(0, 2, 1), (2, 4, 4)]);
    drop(waiting);
}

#[test]
fn a_policy_without_lanes_says_nothing_of_them() {
    let mut client = Client::open();
    let waiting = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let report = client.sync().reports.remove(0);
    assert_eq!((report.waiting, report.lanes.len()), (1, 0));
    drop(waiting);
}

#[test]
fn a_refusal_of_a_low_lane_leaves_the_higher_ones_to_ask() {
    let mut client = client(0);
    let mut low = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    let seq = client.sync().seq;
    client.synced(seq, vec![refusal(1, 60_000_000)]);
    assert!(matches!(
        told(&mut low, &client),
        Some(Verdict::Denied { .. })
    ));
    let at = At(client.now);
    for refused in [READS, Lane::LOWEST] {
        let verdict = client.slot.try_spend_in(refused, 1, &at);
        assert!(
            matches!(verdict, Verdict::Denied { .. }),
            "{refused:?}: {verdict:?}"
        );
    }
    assert!(
        client.syncs().is_empty(),
        "the refused lanes cost no message"
    );
    let mut high = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let sync = client.sync();
    assert_eq!(
        (sync.reports[0].lanes[0].lane, sync.reports[0].lanes.len()),
        (0, 1)
    );
    client.synced(sync.seq, vec![with_lanes(5, SPENT + 1)]);
    assert_eq!(told(&mut high, &client), Some(Verdict::Admitted));
    // What went to the higher lane says nothing to the lower ones.
    let verdict = client.slot.try_spend(1, &At(client.now));
    assert!(matches!(verdict, Verdict::Denied { .. }), "{verdict:?}");
    assert_eq!(
        client.slot.try_spend_in(PAYMENT, 1, &At(client.now)),
        Verdict::Empty
    );
}

#[test]
fn a_refusal_of_a_high_lane_refuses_those_below_it() {
    let mut client = client(0);
    let mut high = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let seq = client.sync().seq;
    client.synced(seq, vec![refusal(0, 60_000_000)]);
    assert!(matches!(
        told(&mut high, &client),
        Some(Verdict::Denied { .. })
    ));
    for refused in [PAYMENT, READS, Lane::LOWEST] {
        let verdict = client.slot.try_spend_in(refused, 1, &At(client.now));
        assert!(
            matches!(verdict, Verdict::Denied { .. }),
            "{refused:?}: {verdict:?}"
        );
    }
}

#[test]
fn who_waits_above_a_refused_lane_goes_on_waiting_for_the_same_ask() {
    let mut client = client(0);
    let mut low = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    let mut high = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let seq = client.sync().seq;
    client.synced(seq, vec![refusal(1, 60_000_000)]);
    assert!(matches!(
        told(&mut low, &client),
        Some(Verdict::Denied { .. })
    ));
    assert_eq!(told(&mut high, &client), None);
    assert!(client.syncs().is_empty(), "its ask is under way already");
    client.hear(Incoming::Granted(vec![with_lanes(5, SPENT + 1)]));
    assert_eq!(told(&mut high, &client), Some(Verdict::Admitted));
}

#[test]
fn a_request_of_a_higher_lane_is_told_of_at_once_though_an_ask_is_under_way() {
    let mut client = client(0);
    let low = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    client.sync();
    let more = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    assert!(client.syncs().is_empty());
    let high = waits(&client, PAYMENT, 1, Patience::OneAnswer);
    let report = client.sync().reports.remove(0);
    assert_eq!(report.lanes.first().map(|lane| lane.lane), Some(0));
    drop((low, more, high));
}

#[test]
fn an_empty_answer_to_a_higher_lane_asks_as_that_lane() {
    let mut client = client(0);
    let at = At(client.now);
    assert_eq!(client.slot.try_spend_in(READS, 1, &at), Verdict::Empty);
    let report = client.sync().reports.remove(0);
    let lane = report.lanes.first().copied().unwrap();
    assert_eq!((lane.lane, lane.waiting, report.waiting), (1, 1, 1));
}

#[test]
fn a_full_low_lane_leaves_room_for_a_higher_one() {
    let line = Arc::new(leasehold_spend::Line::new(1, || ()));
    let slot = Arc::new(Slot::new(0, line, 2, SECOND));
    slot.set_lanes(&lanes());
    let at = At(1);
    let join = |lane| slot.spend_in(lane, 1, Patience::Until(SECOND), &at);
    let low = [join(Lane::LOWEST), join(Lane::LOWEST)];
    assert!(matches!(
        join(Lane::LOWEST),
        Begun::Answered(Verdict::Denied {
            code: Code::TooManyWaiters,
            ..
        })
    ));
    assert!(matches!(join(PAYMENT), Begun::Waits(_)));
    drop(low);
}

#[test]
fn each_lane_waits_as_long_as_it_says() {
    let slot = client(0).slot;
    let mut rules = lanes();
    rules[0].max_wait_ns = 7;
    rules[2].max_wait_ns = 9;
    slot.set_lanes(&rules);
    let waits = [PAYMENT, READS, Lane::LOWEST].map(|lane| slot.max_wait_ns_in(lane));
    assert_eq!(waits, [7, 250 * MS, 9]);
}

/// A request for units of this one key, made as one for several keys is.
fn joint(client: &Client, lane: Lane, units: u64) -> Together {
    let parts = vec![(Arc::clone(&client.slot), units)];
    Together::new(parts, Patience::OneAnswer).in_lanes([lane])
}

fn joint_told(request: &mut Together, client: &Client) -> Option<Joint> {
    match request.poll(&mut Context::from_waker(Waker::noop()), &At(client.now)) {
        Poll::Ready(joint) => Some(joint),
        Poll::Pending => None,
    }
}

#[test]
fn a_request_for_several_keys_waits_in_its_lane() {
    let mut client = client(0);
    let mut low = waits(&client, Lane::LOWEST, 1, Patience::OneAnswer);
    let (mut payment, mut reads) = (joint(&client, PAYMENT, 2), joint(&client, READS, 1));
    assert_eq!(joint_told(&mut reads, &client), None);
    assert_eq!(joint_told(&mut payment, &client), None);
    client.hear(Incoming::Granted(vec![with_lanes(5, SPENT + 2)]));
    let admitted = Some(Joint::Allowed(Verdict::Admitted));
    assert_eq!(joint_told(&mut reads, &client), None);
    assert_eq!(joint_told(&mut payment, &client), admitted);
    client.hear(Incoming::Granted(vec![with_lanes(5, SPENT + 3)]));
    assert_eq!(joint_told(&mut reads, &client), admitted);
    assert_eq!(told(&mut low, &client), None);
}

#[test]
fn a_request_for_several_keys_overtakes_lower_lanes_where_units_are_left() {
    let client = client(2);
    // More than there is, so that what is left stays.
    let mut low = waits(&client, Lane::LOWEST, 9, Patience::OneAnswer);
    let mut lowest = joint(&client, Lane::LOWEST, 1);
    assert_eq!(joint_told(&mut lowest, &client), None);
    let mut payment = joint(&client, PAYMENT, 1);
    assert_eq!(
        joint_told(&mut payment, &client),
        Some(Joint::Allowed(Verdict::Admitted))
    );
    assert_eq!(told(&mut low, &client), None);
}

#[test]
fn a_request_for_several_keys_is_refused_with_its_lane() {
    let mut client = client(0);
    let (mut payment, mut low) = (joint(&client, PAYMENT, 1), joint(&client, Lane::LOWEST, 1));
    assert_eq!(joint_told(&mut payment, &client), None);
    assert_eq!(joint_told(&mut low, &client), None);
    let seq = client.sync().seq;
    client.synced(seq, vec![refusal(1, 60_000_000)]);
    assert_eq!(joint_told(&mut payment, &client), None);
    assert!(matches!(
        joint_told(&mut low, &client),
        Some(Joint::Refused {
            verdict: Verdict::Denied {
                code: Code::Limit,
                ..
            },
            ..
        })
    ));
}
