//! Requests of different costs: that one was refused says nothing of those that need less
//! than is free.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::task::{Context, Poll, Waker};

use leasehold_spend::{
    At, Begun, Code, Patience, SECOND, Verdict, Waiter,
    message::{KeyGrant, Refusal},
};

use fixture::*;

const RETRY_US: u64 = 10_000_000;

fn waiter(client: &Client, units: u64) -> Waiter {
    match client
        .slot
        .spend(units, Patience::OneAnswer, &At(client.now))
    {
        Begun::Waits(waiter) => waiter,
        Begun::Answered(verdict) => panic!("{units}: {verdict:?}"),
    }
}

fn polled(waiter: &mut Waiter, client: &Client) -> Option<Verdict> {
    let mut context = Context::from_waker(Waker::noop());
    match waiter.poll(&mut context, &At(client.now)) {
        Poll::Ready(verdict) => Some(verdict),
        Poll::Pending => None,
    }
}

fn is_refused(verdict: Option<Verdict>) -> bool {
    matches!(
        verdict,
        Some(Verdict::Denied {
            code: Code::Limit,
            ..
        })
    )
}

/// Says no for ten seconds, with so many units free.
fn refuse(client: &mut Client, seq: u64, free: u64) {
    let refusal = Some(Refusal {
        code: Code::Limit,
        retry_after_us: RETRY_US,
        lane: 0,
    });
    let refused = KeyGrant {
        refusal,
        free: Some(free),
        policy: Some(policy(100)),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
}

/// A client whose request for four units was refused, with three free.
fn refused_four() -> Client {
    let mut client = Client::open();
    let mut four = waiter(&client, 4);
    let sync = client.sync();
    assert_eq!(sync.reports[0].waiting_head, 4);
    refuse(&mut client, sync.seq, 3);
    assert!(is_refused(polled(&mut four, &client)));
    client
}

#[test]
fn what_needs_no_more_than_is_free_is_asked_for_while_a_dearer_one_is_refused() {
    let mut client = refused_four();
    assert!(
        client
            .syncs()
            .iter()
            .all(|sync| sync.reports[0].waiting == 0)
    );
    let again = client.slot.spend(4, Patience::OneAnswer, &At(client.now));
    assert!(matches!(again, Begun::Answered(verdict) if is_refused(Some(verdict))));
    let mut three = waiter(&client, 3);
    let sync = client.sync();
    assert_eq!(sync.reports[0].waiting_head, 3);
    client.synced(sync.seq, vec![grant(5, 3)]);
    assert_eq!(polled(&mut three, &client), Some(Verdict::Admitted));
}

#[test]
fn one_that_does_not_wait_is_asked_for_too() {
    let mut client = refused_four();
    assert!(is_refused(Some(client.spend(4))));
    assert_eq!(client.spend(1), Verdict::Empty);
    let sync = client.sync();
    assert_eq!(sync.reports[0].waiting, 1);
    client.synced(sync.seq, vec![grant(5, 3)]);
    assert_eq!(client.spend(3), Verdict::Admitted);
}

#[test]
fn a_cheaper_one_that_waits_behind_it_stays_and_is_asked_for() {
    let mut client = Client::open();
    let mut four = waiter(&client, 4);
    let mut three = waiter(&client, 3);
    let mut nine = waiter(&client, 9);
    let seq = client.sync().seq;
    refuse(&mut client, seq, 3);
    assert!(is_refused(polled(&mut four, &client)));
    assert!(is_refused(polled(&mut nine, &client)));
    assert_eq!(polled(&mut three, &client), None);
    let sync = client.sync();
    assert_eq!(sync.reports[0].waiting_head, 3);
    client.synced(sync.seq, vec![grant(5, 3)]);
    assert_eq!(polled(&mut three, &client), Some(Verdict::Admitted));
}

#[test]
fn each_cost_is_asked_for_once_however_many_come() {
    let mut client = refused_four();
    let mut asks = 0;
    for _ in 0..100 {
        for units in 1..=4 {
            let begun = client
                .slot
                .spend(units, Patience::OneAnswer, &At(client.now));
            let Begun::Waits(_waiter) = begun else {
                continue;
            };
            for sync in client.syncs() {
                asks += usize::from(sync.reports[0].waiting > 0);
                // Others have taken them by then.
                refuse(&mut client, sync.seq, 3);
            }
        }
    }
    assert!((1..=3).contains(&asks), "{asks}");
}

#[test]
fn what_is_known_to_be_taken_is_refused_at_any_cost() {
    let mut client = Client::open();
    let mut four = waiter(&client, 4);
    let seq = client.sync().seq;
    refuse(&mut client, seq, 0);
    assert!(is_refused(polled(&mut four, &client)));
    assert!(is_refused(Some(client.spend(1))));
    client.after(11 * SECOND);
    assert_eq!(client.spend(1), Verdict::Empty);
}
