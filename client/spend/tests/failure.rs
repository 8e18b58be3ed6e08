//! What a client lets through when nobody can be asked, or when the policy only
//! pretends, and that the coordinator hears of it.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fixture::{Client, VALIDITY, grant, opened, policy};
use leasehold_spend::{
    At, Begun, Code, FailureMode, Line, Patience, SECOND, Slot, Verdict,
    message::{Incoming, KeyGrant, Policy, Refusal, Report},
};

fn with_policy(policy: Policy, generation: u64, granted_total: u64) -> KeyGrant {
    KeyGrant {
        policy: Some(policy),
        ..grant(generation, granted_total)
    }
}

fn emergency(units: u64) -> Policy {
    Policy {
        failure: FailureMode::Emergency { units },
        window_us: 10_000_000,
        ..policy(100)
    }
}

fn shadow() -> Policy {
    Policy {
        shadow: true,
        ..policy(100)
    }
}

/// A client that knows the policy and has spent what it was given.
fn client(policy: Policy) -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    client.synced(seq, vec![with_policy(policy, 5, 10)]);
    assert_eq!(client.spend(10), Verdict::Admitted);
    // Not now, so that nothing more is said.
    for sync in client.syncs() {
        client.synced(sync.seq, Vec::new());
    }
    client
}

fn lose(client: &mut Client) {
    client.core.on_lost(client.stream, client.now);
    // Longer than any request waits.
    client.after(VALIDITY);
    client.outgoing();
}

fn comes_back(client: &mut Client) -> Vec<Report> {
    client.stream = client.core.start_stream(client.now).stream;
    client.hear(opened(1, Vec::new()));
    client.sync().reports
}

#[test]
fn an_emergency_lets_a_few_through_marked_and_the_others_are_told_to_come_back_soon() {
    let mut client = client(emergency(50));
    lose(&mut client);
    let told: Vec<_> = (0..8).map(|_| client.spend(1)).collect();
    let degraded = told.iter().filter(|told| **told == Verdict::Degraded);
    assert_eq!(degraded.count(), 5, "a tenth of the window's");
    let unavailable = told.last().unwrap();
    let code = Code::Disconnected;
    assert_eq!(*unavailable, Verdict::Unavailable { code });
    assert_eq!(unavailable.retry_after(), Some(Duration::from_secs(1)));
    client.after(SECOND);
    assert_eq!(client.spend(1), Verdict::Degraded);
}

#[test]
fn an_emergency_is_shared_among_the_gateways_last_known() {
    let mut client = client(emergency(0));
    let told = KeyGrant {
        holders: 4,
        ..grant(5, 10)
    };
    client.hear(Incoming::Granted(vec![KeyGrant {
        policy: None,
        ..told
    }]));
    lose(&mut client);
    let mut degraded = 0;
    for _ in 0..10 {
        degraded += (0..20).filter(|_| client.spend(1).is_allowed()).count();
        client.after(SECOND);
    }
    assert_eq!(degraded, 25, "100 units, four gateways");
}

#[test]
fn what_was_let_through_in_an_emergency_is_reported_when_the_coordinator_is_back() {
    let mut client = client(emergency(50));
    lose(&mut client);
    assert_eq!((0..8).filter(|_| client.spend(1).is_allowed()).count(), 5);
    assert_eq!(comes_back(&mut client)[0].degraded, 5);
    // That report is lost, with its stream.
    client.reconnect();
    client.hear(opened(1, Vec::new()));
    let sync = client.sync();
    assert_eq!(sync.reports[0].degraded, 5, "told again");
    client.synced(sync.seq, Vec::new());
    lose(&mut client);
    assert_eq!(client.spend(1), Verdict::Degraded);
    assert_eq!(
        comes_back(&mut client)[0].degraded,
        1,
        "and once it arrived, no more"
    );
}

#[test]
fn a_report_that_was_passed_over_is_counted_again() {
    let mut client = client(emergency(50));
    lose(&mut client);
    assert_eq!(client.spend(1), Verdict::Degraded);
    let lost = comes_back(&mut client)[0].degraded;
    client.after(SECOND);
    let later = client.syncs().pop();
    let seq = later.map_or_else(|| panic!("nothing is said"), |sync| sync.seq);
    // The answer to the later one says that the earlier one never arrived.
    client.synced(seq, Vec::new());
    let again = client.report(5).degraded;
    assert_eq!((lost, again), (1, 1));
}

#[test]
fn a_key_of_which_no_policy_is_known_is_closed_unless_said_otherwise() {
    let slot = |failure| {
        let slot = Slot::new(0, Arc::new(Line::new(1, || ())), 4, 1);
        slot.set_before_contact(failure);
        slot.try_spend(1, &At(SECOND))
    };
    let code = Code::Disconnected;
    assert_eq!(slot(FailureMode::Closed), Verdict::Unavailable { code });
    assert_eq!(slot(FailureMode::Open), Verdict::Degraded);
    assert_eq!(slot(FailureMode::Emergency { units: 1 }), Verdict::Degraded);
}

#[test]
fn the_policy_has_the_last_word_over_what_was_said_before_it_was_known() {
    let mut client = Client::open();
    client.slot.set_before_contact(FailureMode::Open);
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    client.synced(seq, vec![grant(5, 1)]);
    client.slot.set_before_contact(FailureMode::Open);
    assert_eq!(client.spend(1), Verdict::Admitted);
    lose(&mut client);
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn in_shadow_mode_a_refusal_lets_through_and_is_counted_as_one() {
    let mut client = client(shadow());
    let at = At(client.now);
    let Begun::Waits(mut waiter) = client.slot.spend(1, Patience::OneAnswer, &at) else {
        panic!("it waits as it would otherwise");
    };
    let seq = client.sync().seq;
    let refusal = Refusal {
        code: Code::Limit,
        retry_after_us: 60_000_000,
        lane: 0,
    };
    let refused = KeyGrant {
        refusal: Some(refusal),
        ..with_policy(shadow(), 5, 10)
    };
    client.synced(seq, vec![refused]);
    let code = Code::Limit;
    let told = waiter.poll(&mut Context::from_waker(Waker::noop()), &at);
    assert_eq!(told, Poll::Ready(Verdict::Shadowed { code }));
    let verdict = client.spend(3);
    assert_eq!(verdict, Verdict::Shadowed { code });
    assert!(verdict.is_allowed());
    let report = client.report(5);
    assert_eq!(
        (report.shadowed, report.refused, report.spent_total),
        (2, 0, 10)
    );
}

#[test]
fn in_shadow_mode_an_empty_slot_lets_through_and_that_is_no_refusal() {
    let client = client(shadow());
    let code = Code::Empty;
    assert_eq!(client.spend(1), Verdict::Shadowed { code });
    let counts = client.slot.counts();
    assert_eq!((counts.let_through, counts.shadowed), (1, 0));
}

#[test]
fn in_shadow_mode_nobody_is_unavailable_and_what_is_held_is_still_spent() {
    let mut client = client(shadow());
    client.hear(Incoming::Granted(vec![with_policy(shadow(), 5, 11)]));
    assert_eq!(client.spend(1), Verdict::Admitted);
    lose(&mut client);
    let code = Code::Disconnected;
    assert_eq!(client.spend(1), Verdict::Shadowed { code });
}
