//! The session state machine, message by message, with a clock that is set by
//! hand. One key `k`, and nobody else.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use leasehold_spend::{
    At, Clock, Code, SECOND, Verdict,
    message::{
        Incoming, KeyGrant, LeaseState, Next, Outgoing, SessionId, SettleOut, SpentAge, SyncOut,
    },
};

use fixture::*;

fn lease(generation: u64, granted_total: u64) -> LeaseState {
    LeaseState {
        key: "k".into(),
        generation,
        granted_total,
        spent_total: 0,
        returned_total: 0,
    }
}

fn refusal(code: &str) -> Incoming {
    Incoming::Refused {
        code: code.to_owned(),
        detail: String::new(),
    }
}

#[test]
fn the_session_ends_when_its_last_renewal_was_sent_plus_its_validity() {
    let mut client = Client::open().with(10);
    // A sync is sent now; its answer arrives three seconds later.
    client.after(SECOND);
    let sent = client.now;
    let seq = client.sync().seq;
    client.after(2 * SECOND);
    client.synced(seq, Vec::new());
    client.now = sent + VALIDITY - 1;
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.now = sent + VALIDITY;
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn a_sync_that_did_not_renew_moves_no_deadline() {
    let mut client = Client::open().with(10);
    let opened = SECOND;
    client.after(5 * SECOND);
    let seq = client.sync().seq;
    client.hear(Incoming::Synced {
        seq,
        renewed: false,
        grants: Vec::new(),
    });
    client.now = opened + VALIDITY + SECOND / 10;
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn a_resume_moves_no_deadline_until_a_sync_renewed() {
    let mut client = Client::open().with(10);
    client.now = 6 * SECOND;
    assert_eq!(client.reconnect(), Some(SessionId([1; 16])));
    client.hear(opened(1, vec![lease(5, 10)]));
    let seq = client.sync().seq;
    client.now = SECOND + VALIDITY + SECOND / 10;
    assert!(!client.spend(1).is_allowed());
    client.synced(seq, Vec::new());
    assert_eq!(
        client.spend(1),
        Verdict::Admitted,
        "six seconds plus validity"
    );
}

#[test]
fn what_is_left_at_the_deadline_is_put_aside_and_comes_back() {
    let mut client = Client::open().with(10);
    let seq = client.after(9 * SECOND).sync().seq;
    client.after(2 * SECOND);
    client.outgoing();
    for _ in 0..20 {
        assert!(!client.spend(1).is_allowed());
    }
    client.synced(seq, Vec::new());
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.report(5).spent_total, 1, "none was forfeited");
}

#[test]
fn messages_of_an_older_stream_are_ignored() {
    let mut client = Client::open();
    let old = client.stream;
    client.reconnect();
    client.hear(opened(1, Vec::new()));
    let _ = client.spend(1);
    client.outgoing();
    let late = Incoming::Granted(vec![grant(5, 10)]);
    client.core.on_message(old, late, &At(client.now));
    assert_eq!(client.spend(1), Verdict::Empty);
}

#[test]
fn a_repeated_or_reordered_grant_changes_nothing() {
    let mut client = Client::open().with(3);
    for total in [3, 2, 1, 3] {
        client.hear(Incoming::Granted(vec![grant(5, total)]));
    }
    let admitted = (0..10)
        .filter(|_| client.spend(1) == Verdict::Admitted)
        .count();
    assert_eq!(admitted, 3);
}

#[test]
fn a_grant_that_was_lost_with_its_stream_is_healed_by_the_resume() {
    let mut client = Client::open().with(2);
    client.reconnect();
    client.hear(opened(1, vec![lease(5, 6)]));
    let admitted = (0..10)
        .filter(|_| client.spend(1) == Verdict::Admitted)
        .count();
    assert_eq!(admitted, 6);
    let report = client.report(5);
    assert_eq!((report.granted_seen, report.spent_total), (6, 6));
}

#[test]
fn a_lease_that_was_never_seen_and_is_too_old_is_handed_back() {
    let mut client = Client::open().with(2);
    client.reconnect();
    client.hear(opened(1, vec![lease(5, 2), lease(3, 7)]));
    let report = client.report(3);
    assert!(report.is_final);
    assert_eq!((report.spent_total, report.returned_total), (0, 7));
}

#[test]
fn a_newer_generation_ends_the_older_one_with_a_final_report() {
    let mut client = Client::open().with(5);
    assert_eq!(client.spend(2), Verdict::Admitted);
    client.hear(Incoming::Granted(vec![grant(8, 1)]));
    client.hear(Incoming::Granted(vec![grant(5, 50)]));
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(
        client.spend(1),
        Verdict::Empty,
        "only the newer lease is spent"
    );
    let old = client.report(5);
    assert!(old.is_final);
    assert_eq!((old.spent_total, old.returned_total), (2, 3));
    // Repeated until it is acknowledged.
    client.after(SECOND);
    assert!(client.report(5).is_final);
}

#[test]
fn a_lease_of_its_own_limit_ends_before_the_session() {
    let mut client = Client::open();
    let _ = client.spend(1);
    let sync = client.sync();
    let sent = client.now;
    client.after(SECOND);
    let short = KeyGrant {
        valid_for_us: 2_000_000,
        basis_seq: sync.seq,
        ..grant(5, 10)
    };
    client.synced(sync.seq, vec![short]);
    client.now = sent + 2 * SECOND - 1;
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.now = sent + 2 * SECOND;
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn an_expired_session_is_void_and_settled_until_that_is_acknowledged() {
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(3), Verdict::Admitted);
    let hold = client.slot.hold(2).unwrap();
    let next = client.hear(refusal("session_expired"));
    assert_eq!(
        next,
        Next::Reconnect {
            leader: None,
            at_once: true
        }
    );
    assert!(!client.spend(1).is_allowed());
    assert!(!hold.commit(&At(client.now)), "settled as unspent");
    assert_eq!(client.reconnect(), None, "a new session");
    client.hear(opened(2, Vec::new()));
    let settle = SettleOut {
        session: SessionId([1; 16]),
        leases: vec![("k".into(), 5, 3)],
    };
    assert_eq!(client.settles(), std::slice::from_ref(&settle));
    assert_eq!(client.settles(), [], "once in a while is enough");
    client.after(SECOND);
    assert_eq!(client.settles(), [settle]);
    client.hear(Incoming::Settled(SessionId([1; 16])));
    client.after(5 * SECOND);
    assert_eq!(client.settles(), []);
}

#[test]
fn a_superseded_session_is_void_and_not_ours_to_settle() {
    let mut client = Client::open().with(10);
    let _ = client.spend(3);
    client.hear(refusal("superseded"));
    assert!(!client.spend(1).is_allowed());
    assert_eq!(client.reconnect(), None);
    client.hear(opened(2, Vec::new()));
    assert_eq!(client.settles(), []);
}

#[test]
fn a_session_that_was_opened_as_somebody_else_is_void_and_a_new_one_is_opened() {
    let mut client = Client::open().with(10);
    // Nobody is known for a while: what is held is good for as long as it was.
    let next = client.hear(refusal("unauthenticated"));
    let later = Next::Reconnect {
        leader: None,
        at_once: false,
    };
    assert_eq!(next, later);
    assert_eq!(client.spend(3), Verdict::Admitted);
    assert_eq!(
        client.reconnect(),
        Some(SessionId([1; 16])),
        "the same session"
    );
    let next = client.hear(refusal("identity_mismatch"));
    let at_once = Next::Reconnect {
        leader: None,
        at_once: true,
    };
    assert_eq!(next, at_once);
    assert!(!client.spend(1).is_allowed());
    assert_eq!(client.reconnect(), None, "a new session");
}

#[test]
fn a_settle_of_somebody_elses_session_is_given_up_and_nothing_else() {
    let mut client = Client::open().with(10);
    let _ = client.spend(1);
    client.hear(refusal("session_expired"));
    client.reconnect();
    client.hear(opened(2, Vec::new()));
    assert_eq!(client.settles().len(), 1);
    client.hear(refusal("identity_mismatch"));
    assert_eq!(
        client.reconnect(),
        Some(SessionId([2; 16])),
        "the same session"
    );
    client.hear(opened(2, Vec::new()));
    client.after(5 * SECOND);
    assert_eq!(client.settles(), []);
}

#[test]
fn an_age_says_at_least_so_long_ago() {
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(2), Verdict::Admitted);
    // Seen by a sample now, and the next report is half a second later.
    client.after(10 * MS).outgoing();
    client.after(490 * MS);
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.after(500 * MS);
    let report = client.report(5);
    assert_eq!(report.spent_total, 3);
    let covered: u64 = report.spent_ages.iter().map(|age| age.units).sum();
    assert_eq!(covered, 3);
    for SpentAge { units, age_us } in report.spent_ages {
        let really_us = if units == 2 { 1_000_000 } else { 500_000 };
        assert!(
            age_us <= really_us,
            "{units} units were not spent {age_us} µs ago"
        );
    }
}

#[test]
fn an_age_leaves_out_the_time_for_which_the_machine_was_suspended() {
    /// Deadlines go on while the machine sleeps, ages do not.
    struct Slept {
        now: u64,
        slept: u64,
    }
    impl Clock for Slept {
        fn now_ns(&self) -> u64 {
            self.now
        }
        fn floor_ns(&self) -> u64 {
            self.now - self.slept
        }
    }
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(2), Verdict::Admitted);
    client.after(10 * MS).outgoing();
    // Awake for a second, and asleep for five.
    let clock = Slept {
        now: client.now + 6 * SECOND,
        slept: 5 * SECOND,
    };
    let said = std::iter::from_fn(|| client.core.poll(&clock));
    let reports = said.flat_map(|out| match out {
        Outgoing::Sync(sync) => sync.reports,
        _ => Vec::new(),
    });
    let ages: Vec<SpentAge> = reports.flat_map(|report| report.spent_ages).collect();
    assert_eq!(ages.iter().map(|age| age.units).sum::<u64>(), 2);
    assert!(ages.iter().all(|age| age.age_us <= 1_010_000), "{ages:?}");
}

#[test]
fn an_acknowledged_report_leaves_only_newer_spends_to_be_dated() {
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(2), Verdict::Admitted);
    let dated = |sync: &SyncOut| -> u64 {
        let ages = sync.reports.iter().flat_map(|report| &report.spent_ages);
        ages.map(|age| age.units).sum()
    };
    let first = client.after(SECOND).sync();
    assert_eq!(dated(&first), 2);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let second = client.after(SECOND).sync();
    assert_eq!(dated(&second), 3, "the first may be lost");
    client.synced(second.seq, Vec::new());
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(dated(&client.after(SECOND).sync()), 1);
}

#[test]
fn a_lease_s_report_dates_no_spends_of_the_one_before() {
    let mut client = Client::open().with(5);
    assert_eq!(client.spend(2), Verdict::Admitted);
    // Dated, and not acknowledged yet.
    client.after(SECOND).sync();
    client.hear(Incoming::Granted(vec![grant(8, 3)]));
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.after(SECOND);
    let report = client.report(8);
    let dated: u64 = report.spent_ages.iter().map(|age| age.units).sum();
    assert_eq!((report.spent_total, dated), (1, 1));
}

#[test]
fn a_session_s_time_runs_from_when_its_open_was_sent() {
    let mut client = Client::open();
    client.hear(refusal("session_expired"));
    assert_eq!(client.reconnect(), None);
    let sent = client.now;
    client.after(2 * SECOND).hear(opened(2, Vec::new()));
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    client.hear(Incoming::Synced {
        seq,
        renewed: false,
        grants: vec![grant(5, 10)],
    });
    client.now = sent + VALIDITY - 1;
    assert_eq!(client.spend(1), Verdict::Admitted);
    client.now = sent + VALIDITY;
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn a_lease_with_a_limit_of_its_own_and_no_known_beginning_has_ended() {
    let mut client = Client::open();
    assert_eq!(client.spend(1), Verdict::Empty);
    let seq = client.sync().seq;
    let pushed = KeyGrant {
        valid_for_us: 2_000_000,
        basis_seq: seq + 100,
        ..grant(5, 10)
    };
    client.hear(Incoming::Granted(vec![pushed]));
    assert!(!client.spend(1).is_allowed());
}

#[test]
fn a_close_reports_every_lease_as_final() {
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(4), Verdict::Admitted);
    client.core.close();
    assert_eq!(client.spend(1), Verdict::Unavailable { code: Code::Closed });
    let Some(Outgoing::Close(close)) = client.outgoing().pop() else {
        panic!("the close is not said");
    };
    assert!(close.reports.iter().all(|report| report.is_final));
    assert_eq!(
        (
            close.reports[0].spent_total,
            close.reports[0].returned_total
        ),
        (4, 6)
    );
    assert_eq!(client.hear(Incoming::Closed), Next::Finished);
    assert!(client.core.is_finished());
}

#[test]
fn a_silent_coordinator_is_left() {
    let mut client = Client::open().with(1);
    client.after(SECOND).sync();
    client.after(2400 * MS);
    assert!(!client.outgoing().contains(&Outgoing::Leave));
    client.after(200 * MS);
    assert_eq!(client.outgoing(), [Outgoing::Leave], "a quarter of the ttl");
    assert!(!client.core.is_open());
}

#[test]
fn seq_never_restarts_within_a_session() {
    let mut client = Client::open().with(1);
    let before = client.after(SECOND).sync().seq;
    client.reconnect();
    client.hear(opened(1, vec![lease(5, 1)]));
    assert!(client.sync().seq > before);
}
