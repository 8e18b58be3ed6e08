//! Keys that each gateway counts by itself: estimates, and budgets without a limit.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use fixture::{Client, MS, VALIDITY, grant, policy};
use leasehold_spend::{
    At, Begun, BudgetKind, Code, FailureMode, Patience, SECOND, Sample, Verdict,
    message::{Incoming, KeyGrant, Policy},
};
use proptest::prelude::*;

fn of(kind: BudgetKind) -> Policy {
    Policy {
        kind,
        ..policy(100)
    }
}

/// What the coordinator says of a lease that it grants nothing to.
fn answer(kind: BudgetKind, free: u64, holders: u64) -> KeyGrant {
    KeyGrant {
        policy: Some(of(kind)),
        free: Some(free),
        holders,
        ..grant(5, 0)
    }
}

/// A client that has asked for the first time, and was told so.
fn client(kind: BudgetKind, free: u64, holders: u64) -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    client.synced(seq, vec![answer(kind, free, holders)]);
    // It begins with a few, and asks once more.
    if let Some(sync) = client.syncs().pop() {
        client.synced(sync.seq, vec![answer(kind, free, holders)]);
    }
    client
}

fn spent(client: &mut Client, requests: u64) -> u64 {
    let told = (0..requests).map(|_| client.spend(1));
    told.filter(Verdict::is_allowed).count() as u64
}

#[test]
fn an_estimate_lets_through_its_part_of_what_was_free_and_says_that_it_is_one() {
    let mut client = client(BudgetKind::Estimate, 90, 4);
    assert_eq!(client.spend(1), Verdict::Estimated);
    assert!(Verdict::Estimated.is_allowed());
    assert_eq!(spent(&mut client, 100), 21);
    assert!(matches!(
        client.spend(1),
        Verdict::Denied {
            code: Code::Limit,
            retry_after: Some(_)
        }
    ));
    let report = client.sync().reports.remove(0);
    // The coordinator granted nothing: it hears what was spent, and nothing comes back.
    assert_eq!(
        (
            report.spent_total,
            report.returned_total,
            report.granted_seen
        ),
        (22, 0, 0)
    );
}

#[test]
fn no_request_waits_for_an_estimate_whose_policy_is_known() {
    let mut client = client(BudgetKind::Estimate, 2, 1);
    assert_eq!(spent(&mut client, 3), 2);
    for patience in [Patience::OneAnswer, Patience::Until(client.now + SECOND)] {
        let begun = client.slot.spend(1, patience, &At(client.now));
        assert!(
            matches!(begun, Begun::Answered(Verdict::Denied { .. })),
            "{begun:?}"
        );
    }
}

#[test]
fn the_first_requests_wait_for_the_policy_and_are_served_by_it() {
    let mut client = Client::open();
    let begun = client.slot.spend(1, Patience::OneAnswer, &At(client.now));
    let Begun::Waits(waiter) = begun else {
        panic!("{begun:?}")
    };
    let seq = client.sync().seq;
    client.synced(seq, vec![answer(BudgetKind::Estimate, 5, 1)]);
    assert_eq!(waiter.give_up(&At(client.now)), Verdict::Estimated);
}

#[test]
fn what_was_spent_since_the_report_is_not_free_once_more() {
    let mut client = client(BudgetKind::Estimate, 20, 1);
    assert_eq!(spent(&mut client, 20), 20);
    let sync = client.sync();
    assert_eq!(sync.reports[0].spent_total, 20);
    // Of the answer's 10, nothing was spent since: they are there.
    client.synced(sync.seq, vec![answer(BudgetKind::Estimate, 10, 1)]);
    assert_eq!(spent(&mut client, 4), 4);
    // An answer that knows 20 of the 24.
    client.hear(Incoming::Granted(vec![answer(BudgetKind::Estimate, 10, 1)]));
    assert_eq!(spent(&mut client, 100), 6);
}

#[test]
fn when_nothing_is_free_the_flood_costs_no_message_until_it_is_worth_asking() {
    let mut client = client(BudgetKind::Estimate, 1, 1);
    assert_eq!(spent(&mut client, 1), 1);
    let seq = client.sync().seq;
    client.synced(seq, vec![answer(BudgetKind::Estimate, 0, 1)]);
    assert_eq!(spent(&mut client, 1_000), 0);
    assert!(client.syncs().is_empty());
    client.after(SECOND);
    assert_eq!(spent(&mut client, 1), 0);
    let seq = client.sync().seq;
    client.synced(seq, vec![answer(BudgetKind::Estimate, 3, 1)]);
    assert_eq!(spent(&mut client, 10), 3);
}

#[test]
fn an_estimate_without_a_coordinator_goes_on_with_what_is_left_and_then_fails_as_it_says() {
    let mut client = client(BudgetKind::Estimate, 3, 1);
    client.outgoing();
    client.core.on_lost(client.stream, client.now);
    assert_eq!(client.spend(1), Verdict::Estimated);
    assert_eq!(spent(&mut client, 5), 2);
    let code = Code::Disconnected;
    assert_eq!(client.spend(1), Verdict::Unavailable { code });
}

#[test]
fn a_budget_without_a_limit_refuses_nobody_whatever_happens() {
    let mut client = client(BudgetKind::Unlimited, 0, 0);
    assert_eq!(client.spend(1_000_000), Verdict::Admitted);
    assert_eq!(client.report(5).spent_total, 1_000_000);
    client.core.on_lost(client.stream, client.now);
    client.after(2 * VALIDITY);
    client.outgoing();
    assert_eq!(client.spend(1), Verdict::Degraded);
    assert_eq!(client.slot.counts().degraded, 1);
}

#[test]
fn a_recall_says_nothing_about_what_is_free() {
    let mut client = client(BudgetKind::Estimate, 10, 1);
    client.hear(Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: 4,
        granted_total: 0,
        whole: false,
    });
    let report = client.report(5);
    assert_eq!((report.returned_total, report.spent_total), (0, 0));
    assert!(spent(&mut client, 20) >= 5);
}

#[test]
fn units_of_an_estimate_are_not_spent_under_an_exact_rule() {
    let mut client = client(BudgetKind::Estimate, 50, 1);
    assert_eq!(client.spend(1), Verdict::Estimated);
    client.hear(Incoming::Granted(vec![KeyGrant {
        policy: Some(of(BudgetKind::Window)),
        ..answer(BudgetKind::Window, 50, 1)
    }]));
    assert!(!client.spend(1).is_allowed());
    let report = client.report(5);
    assert_eq!((report.is_final, report.spent_total), (true, 1));
    assert_eq!(report.returned_total, 0);
}

#[test]
fn an_idle_estimate_ends_its_lease_and_says_what_it_spent() {
    let mut client = client(BudgetKind::Estimate, 50, 1);
    assert_eq!(spent(&mut client, 7), 7);
    let mut last = client.report(5);
    for _ in 0..300 {
        for sync in client.after(SECOND).syncs() {
            for report in sync.reports {
                if report.generation == 5 {
                    last = report;
                }
            }
            client.synced(sync.seq, Vec::new());
        }
    }
    assert_eq!(
        (last.is_final, last.spent_total, last.returned_total),
        (true, 7, 0)
    );
}

#[test]
fn an_estimate_fails_by_its_own_mode_when_its_lease_has_ended() {
    let mut client = client(BudgetKind::Estimate, 50, 1);
    let open = Policy {
        failure: FailureMode::Open,
        ..of(BudgetKind::Estimate)
    };
    client.hear(Incoming::Granted(vec![KeyGrant {
        policy: Some(open),
        ..answer(BudgetKind::Estimate, 50, 1)
    }]));
    client.core.on_lost(client.stream, client.now);
    client.after(2 * VALIDITY);
    client.outgoing();
    assert_eq!(client.spend(1), Verdict::Degraded);
}

proptest! {
    #[test]
    fn what_was_granted_is_spent_returned_left_or_held_and_spends_never_shrink(
        steps in prop::collection::vec((0..4_u8, 0..60_u64, 1..5_u64), 1..60),
    ) {
        let mut client = client(BudgetKind::Estimate, 30, 1);
        let mut known = 0;
        let mut holds = Vec::new();
        let mut admitted = 0;
        for (step, number, holders) in steps {
            match step {
                0 => admitted += spent(&mut client, number % 7),
                1 => holds.extend(client.slot.hold(number % 5 + 1).map(|hold| (hold, number % 5 + 1))),
                2 => {
                    if let Some((hold, units)) = holds.pop()
                        && number % 2 == 0
                    {
                        admitted += if hold.commit(&At(client.now)) { units } else { 0 };
                    }
                }
                _ => {
                    let _left = client.slot.grant_own(number, holders, u64::MAX, known);
                    known = admitted;
                }
            }
            client.now += MS;
            let mut sample = Sample::default();
            client.slot.sample(&mut sample);
            let totals = sample.current.unwrap();
            prop_assert_eq!(totals.spent, admitted);
            prop_assert_eq!(totals.returned, 0);
            prop_assert_eq!(totals.granted, totals.spent + totals.left + totals.held);
        }
    }
}
