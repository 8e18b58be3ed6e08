//! Keys that cool down and keys that are paced: units that are there do not go out
//! before their time.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};

use fixture::{Client, MS, grant, policy};
use leasehold_spend::{
    At, Begun, BudgetKind, Code, Patience, SECOND, Verdict, Waiter,
    message::{Incoming, KeyGrant, Policy, Refusal},
};

fn refusal(code: Code, retry_after_us: u64) -> Option<Refusal> {
    Some(Refusal {
        code,
        retry_after_us,
        lane: 0,
    })
}

fn waits(client: &Client, patience: Patience) -> Waiter {
    match client.slot.spend(1, patience, &At(client.now)) {
        Begun::Waits(waiter) => waiter,
        Begun::Answered(verdict) => panic!("answered {verdict:?}"),
    }
}

fn told(waiter: &mut Waiter, client: &Client) -> Option<Verdict> {
    match waiter.poll(&mut Context::from_waker(Waker::noop()), &At(client.now)) {
        Poll::Ready(verdict) => Some(verdict),
        Poll::Pending => None,
    }
}

/// What the key is told now: its code, and after how long to try again.
fn denial(client: &Client) -> Option<(Code, Duration)> {
    match client.spend(1) {
        Verdict::Denied { code, retry_after } => Some((code, retry_after.unwrap())),
        _ => None,
    }
}

#[test]
fn a_key_that_cools_down_admits_nothing_of_what_is_left_or_comes() {
    let mut client = Client::open().with(10);
    let cooling = KeyGrant {
        refusal: refusal(Code::Cooldown, 5_000_000),
        ..grant(5, 10)
    };
    client.hear(Incoming::Granted(vec![cooling]));
    assert_eq!(
        denial(&client),
        Some((Code::Cooldown, Duration::from_secs(5)))
    );
    client.hear(Incoming::Granted(vec![grant(5, 20)]));
    client.after(4 * SECOND);
    let (code, retry_after) = denial(&client).unwrap();
    assert_eq!((code, retry_after.as_millis()), (Code::Cooldown, 1_000));
    assert!(client.slot.hold(1).is_none());
    let report = client.report(5);
    // All of it is somebody else's meanwhile.
    assert_eq!(
        (report.returned_total, report.spent_total, report.left),
        (20, 0, 0)
    );
}

#[test]
fn after_a_cool_down_what_is_granted_is_spent_as_before() {
    let mut client = Client::open().with(10);
    let cooling = KeyGrant {
        refusal: refusal(Code::Cooldown, 5_000_000),
        ..grant(5, 10)
    };
    client.hear(Incoming::Granted(vec![cooling]));
    let until = Patience::Until(client.now + 60 * SECOND);
    let mut patient = waits(&client, until);
    client.after(5 * SECOND);
    client.outgoing();
    client.hear(Incoming::Granted(vec![grant(5, 13)]));
    assert_eq!(told(&mut patient, &client), Some(Verdict::Admitted));
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.spend(1), Verdict::Empty);
}

#[test]
fn units_that_are_held_while_the_key_cools_down_go_back() {
    let mut client = Client::open().with(10);
    let hold = client.slot.hold(3).unwrap();
    client.slot.cool(client.now + 5 * SECOND);
    drop(hold);
    let report = client.report(5);
    assert_eq!(
        (report.returned_total, report.left, report.held),
        (10, 0, 0)
    );
}

#[test]
fn a_refusal_of_a_policy_with_a_cool_down_is_one_whoever_says_so() {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let cooling = Policy {
        cooldown_us: 3_000_000,
        ..policy(100)
    };
    let refused = KeyGrant {
        refusal: refusal(Code::Limit, 10_000),
        policy: Some(cooling),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    assert_eq!(
        denial(&client),
        Some((Code::Cooldown, Duration::from_secs(3)))
    );
}

const EVERY: u64 = 10 * MS;

/// A client of a budget that lets one unit out each 10 ms, with so many units.
fn paced(units: u64) -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let policy = Policy {
        kind: BudgetKind::Paced,
        release_every_ns: EVERY,
        ..policy(100)
    };
    let granted = KeyGrant {
        policy: Some(policy),
        ..grant(5, units)
    };
    client.synced(seq, vec![granted]);
    client.outgoing();
    client
}

#[test]
fn a_paced_key_lets_one_out_in_its_turn_and_says_when_the_next_ones_is() {
    let mut client = paced(10);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let (code, retry_after) = denial(&client).unwrap();
    assert_eq!(code, Code::Limit);
    assert!(retry_after <= Duration::from_millis(10) && retry_after > Duration::from_millis(4));
    client.after(EVERY);
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.report(5).spent_total, 2);
}

#[test]
fn who_waits_at_a_paced_key_goes_in_order_by_the_drivers_timers_alone() {
    let mut client = paced(10);
    let until = Patience::Until(client.now + 60 * SECOND);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let mut queue: Vec<_> = (0..5).map(|_| waits(&client, until)).collect();
    let mut moments = Vec::new();
    let began = client.now;
    while moments.len() < 5 {
        client.outgoing();
        let ready = queue.iter_mut().filter_map(|waiter| told(waiter, &client));
        let ready: Vec<_> = ready.collect();
        for verdict in &ready {
            assert_eq!(*verdict, Verdict::Admitted);
            moments.push((client.now - began) / MS);
        }
        queue.drain(..ready.len());
        client.now = client.core.next_wake().unwrap().max(client.now + 1);
        assert!(client.now < began + SECOND, "{moments:?}");
    }
    assert!(
        moments.is_sorted_by(|one, next| next - one == 10),
        "{moments:?}"
    );
}

#[test]
fn nobody_overtakes_the_queue_of_a_paced_key() {
    let mut client = paced(10);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let mut first = waits(&client, Patience::Until(client.now + SECOND));
    client.after(EVERY);
    assert_eq!(denial(&client).map(|(code, _)| code), Some(Code::Limit));
    client.outgoing();
    assert_eq!(told(&mut first, &client), Some(Verdict::Admitted));
}

#[test]
fn who_only_waits_for_its_turn_asks_for_nothing() {
    let mut client = paced(50);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let until = Patience::Until(client.now + 60 * SECOND);
    let waiting: Vec<_> = (0..5).map(|_| waits(&client, until)).collect();
    for sync in client.syncs() {
        assert!(
            sync.reports.iter().all(|report| report.waiting == 0),
            "{sync:?}"
        );
    }
    drop(waiting);
}

#[test]
fn a_spend_at_a_paced_key_waits_no_longer_than_for_an_answer() {
    let mut client = paced(50);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let waiter = waits(&client, Patience::OneAnswer);
    // It is not the answer to an ask that ends its wait.
    let refused = KeyGrant {
        refusal: refusal(Code::Limit, 1_000),
        policy: None,
        ..grant(5, 50)
    };
    client.hear(Incoming::Granted(vec![refused]));
    client.after(250 * MS);
    let verdict = waiter.give_up(&At(client.now));
    assert!(
        matches!(
            verdict,
            Verdict::Denied {
                code: Code::Limit,
                ..
            }
        ),
        "{verdict:?}"
    );
}

#[test]
fn a_policy_that_is_no_longer_paced_frees_what_is_left() {
    let mut client = paced(10);
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.hear(Incoming::Granted(vec![grant(5, 10)]));
    for _ in 0..9 {
        assert_eq!(client.spend(1), Verdict::Admitted);
    }
}

#[test]
fn a_shadow_cools_nothing_down() {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let shadow = Policy {
        cooldown_us: 3_000_000,
        shadow: true,
        ..policy(100)
    };
    let seq = client.sync().seq;
    let refused = KeyGrant {
        refusal: refusal(Code::Limit, 10_000),
        policy: Some(shadow),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    let code = Code::Limit;
    assert_eq!(client.spend(1), Verdict::Shadowed { code });
    // What is granted then is spent at once.
    client.hear(Incoming::Granted(vec![grant(5, 1)]));
    assert_eq!(client.spend(1), Verdict::Admitted);
}

#[test]
fn nobody_is_told_to_come_back_for_units_that_only_a_hand_frees_and_who_waits_gets_them() {
    let mut client = Client::open();
    let prepaid = Policy {
        kind: BudgetKind::Total,
        ..policy(100)
    };
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let refused = KeyGrant {
        refusal: refusal(Code::Limit, 0),
        policy: Some(prepaid),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    let denied = Verdict::Denied {
        code: Code::Limit,
        retry_after: None,
    };
    assert_eq!(client.spend(1), denied);
    let mut patient = waits(&client, Patience::Until(client.now + 60 * SECOND));
    assert_eq!(told(&mut patient, &client), None);
    client.hear(Incoming::Granted(vec![grant(5, 1)]));
    assert_eq!(told(&mut patient, &client), Some(Verdict::Admitted));
}

/// A client whose key was refused and cools down for 30 s, by what it knows of its policy.
fn refused_and_cooling() -> Client {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let refused = KeyGrant {
        refusal: refusal(Code::Limit, 10_000),
        policy: Some(with_cool_down(30)),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    client.after(SECOND);
    assert_eq!(
        denial(&client),
        Some((Code::Cooldown, Duration::from_secs(29)))
    );
    client
}

fn with_cool_down(seconds: u64) -> Policy {
    Policy {
        cooldown_us: seconds * 1_000_000,
        timescale_us: 1_000_000,
        ..policy(100)
    }
}

/// The next request is asked for, and spends what is granted then.
fn asks_and_spends(client: &mut Client) {
    assert_eq!(client.spend(1), Verdict::Empty);
    let sync = client.sync();
    assert!(sync.reports.iter().any(|report| report.waiting == 1));
    client.synced(sync.seq, vec![grant(5, 2)]);
    assert_eq!(client.spend(1), Verdict::Admitted);
}

#[test]
fn a_cool_down_ends_when_things_changed_and_who_waited_is_asked_for() {
    let mut client = refused_and_cooling();
    let mut patient = waits(&client, Patience::Until(client.now + 60 * SECOND));
    client.outgoing();
    let anew = KeyGrant {
        ask_anew: true,
        ..KeyGrant::default()
    };
    client.hear(Incoming::Granted(vec![anew]));
    let sync = client.sync();
    client.synced(sync.seq, vec![grant(5, 2)]);
    assert_eq!(told(&mut patient, &client), Some(Verdict::Admitted));
    assert_eq!(client.spend(1), Verdict::Admitted);
}

#[test]
fn a_cool_down_ends_with_the_edit_that_removes_it() {
    let mut client = refused_and_cooling();
    let edited = KeyGrant {
        policy: Some(policy(100)),
        ..KeyGrant::default()
    };
    client.hear(Incoming::Granted(vec![edited]));
    asks_and_spends(&mut client);
}

#[test]
fn a_cool_down_that_still_runs_is_stated_again_after_an_edit() {
    let mut client = refused_and_cooling();
    let edited = KeyGrant {
        policy: Some(with_cool_down(40)),
        refusal: refusal(Code::Cooldown, 20_000_000),
        ..KeyGrant::default()
    };
    client.hear(Incoming::Granted(vec![edited]));
    assert_eq!(
        denial(&client),
        Some((Code::Cooldown, Duration::from_secs(20)))
    );
}

#[test]
fn a_cool_down_that_nobody_states_on_a_new_stream_is_over() {
    let mut client = refused_and_cooling();
    client.reconnect();
    client.hear(fixture::opened(1, Vec::new()));
    assert_eq!(denial(&client).map(|(code, _)| code), Some(Code::Cooldown));
    let seq = client.sync().seq;
    let first = KeyGrant {
        policy: Some(with_cool_down(30)),
        ..KeyGrant::default()
    };
    client.synced(seq, vec![first]);
    asks_and_spends(&mut client);
}

/// What is said of a key until it is done with, and for how long that took.
fn until_done(client: &mut Client, busy: bool) -> Option<u64> {
    let began = client.now;
    while client.now < began + 20 * SECOND {
        if busy {
            assert_eq!(denial(client).map(|(code, _)| code), Some(Code::Cooldown));
        }
        for sync in client.syncs() {
            if sync.reports.iter().any(|report| report.is_final) {
                return Some(client.now - began);
            }
            client.synced(sync.seq, Vec::new());
        }
        client.after(SECOND / 4);
    }
    None
}

#[test]
fn a_key_that_cools_down_goes_on_to_hear_of_it_while_somebody_asks() {
    let mut client = refused_and_cooling();
    assert_eq!(until_done(&mut client, true), None);
}

#[test]
fn a_cool_down_is_not_remembered_of_a_key_that_is_done_with() {
    let mut client = refused_and_cooling();
    let done = until_done(&mut client, false).unwrap();
    // Four of its windows after the last request.
    assert!((3 * SECOND..=5 * SECOND).contains(&done), "{done}");
    // Nobody would say that it has ended: the next request asks.
    assert_eq!(client.spend(1), Verdict::Empty);
}
