//! When one key asks, what it keeps and what it gives back, message by message,
//! with a clock that is set by hand.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod fixture;

use leasehold_spend::{
    At, Begun, Code, Patience, SECOND, Sample, Verdict,
    message::{Incoming, KeyGrant, Policy, Refusal, Report},
};

use fixture::*;

fn refused(code: Code, retry_after_us: u64) -> KeyGrant {
    let refusal = Some(Refusal {
        code,
        retry_after_us,
        lane: 0,
    });
    KeyGrant {
        refusal,
        policy: Some(policy(100)),
        ..KeyGrant::default()
    }
}

#[test]
fn however_many_requests_find_nothing_there_is_one_ask() {
    let mut client = Client::open();
    for _ in 0..50 {
        assert_eq!(client.spend(1), Verdict::Empty);
    }
    let asked = client.sync();
    assert_eq!(asked.reports.len(), 1);
    assert_eq!(asked.reports[0].key.as_deref(), Some("k"));
    assert!(asked.reports[0].want >= 50 && asked.reports[0].waiting == 1);
    for _ in 0..50 {
        assert_eq!(client.spend(1), Verdict::Empty);
        assert!(client.after(MS).syncs().is_empty(), "asked twice");
    }
}

#[test]
fn requests_wake_the_driver_for_the_first_ask_and_not_while_it_is_under_way() {
    let mut client = Client::open();
    client.wakes();
    assert_eq!(client.spend(1), Verdict::Empty);
    assert_eq!(client.wakes(), 1);
    client.sync();
    for _ in 0..50 {
        assert_eq!(client.spend(1), Verdict::Empty);
    }
    assert_eq!(client.wakes(), 0);
}

#[test]
fn spends_wake_the_driver_only_where_units_run_low() {
    let mut client = Client::open().with(100);
    client.after(MS).outgoing();
    client.wakes();
    for _ in 0..50 {
        assert_eq!(client.spend(1), Verdict::Admitted);
    }
    assert_eq!(client.wakes(), 0, "half of it is left");
    for _ in 0..50 {
        assert_eq!(client.spend(1), Verdict::Admitted);
    }
    assert!(client.wakes() > 0, "nothing is left");
}

#[test]
fn a_recall_of_the_whole_hands_back_all_that_is_left_up_to_its_target() {
    for (target, back) in [(7, 7), (10, 10), (99, 10)] {
        let mut client = Client::open().with(10);
        client.hear(Incoming::Recall {
            key_id: 0,
            generation: 5,
            returned_total_target: target,
            granted_total: 10,
            whole: true,
        });
        let report = client.report(5);
        assert_eq!((report.returned_total, report.left), (back, 10 - back));
    }
}

#[test]
fn a_recall_is_a_target_for_the_returned_total() {
    let mut client = Client::open().with(10);
    let recall = |target, granted_total| Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: target,
        granted_total,
        whole: false,
    };
    client.hear(recall(4, 10));
    client.hear(recall(4, 10));
    client.hear(recall(3, 10));
    let mut sample = Sample::default();
    client.slot.sample(&mut sample);
    let totals = sample.current.unwrap();
    assert_eq!((totals.returned, totals.left), (4, 6));
    let report = client.report(5);
    assert!(report.returned_total >= 4 && report.left <= 6);
    assert_eq!(report.returned_total + report.left, 10);
    // Of another generation: not ours to give.
    let other = Incoming::Recall {
        key_id: 0,
        generation: 4,
        returned_total_target: 9,
        granted_total: 9,
        whole: false,
    };
    let before = report.returned_total;
    client.hear(other);
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.report(5).returned_total, before);
}

#[test]
fn a_refusal_is_told_until_it_ends_and_doubles_its_pause() {
    let mut client = Client::open();
    let _ = client.spend(1);
    let seq = client.sync().seq;
    client.synced(seq, vec![refused(Code::Limit, 2_000_000)]);
    let told = client.spend(1);
    assert!(
        matches!(
            told,
            Verdict::Denied {
                code: Code::Limit,
                ..
            }
        ),
        "{told:?}"
    );
    assert!(
        told.retry_after()
            .is_some_and(|wait| wait.as_secs_f64() >= 2.0)
    );
    client.after(2 * SECOND + MS);
    assert_eq!(client.spend(1), Verdict::Empty);
    assert!(client.sync().reports.iter().any(|report| report.want > 0));
}

#[test]
fn units_that_are_pushed_end_a_refusal() {
    let mut client = Client::open();
    let _ = client.spend(1);
    let seq = client.sync().seq;
    client.synced(seq, vec![refused(Code::Limit, 30_000_000)]);
    assert!(!client.spend(1).is_allowed());
    client.hear(Incoming::Granted(vec![KeyGrant {
        basis_seq: seq,
        ..grant(5, 1)
    }]));
    assert_eq!(client.spend(1), Verdict::Admitted);
}

#[test]
fn a_request_waits_for_what_it_needs_on_top_of_what_is_left() {
    let mut client = Client::open().with(16);
    for _ in 0..3 {
        assert_eq!(client.spend(4), Verdict::Admitted);
    }
    assert_eq!(client.spend(1), Verdict::Admitted);
    // It has spent so much that it wants far more than this request needs.
    let first = client.slot.spend(5, Patience::OneAnswer, &At(client.now));
    let second = client.slot.spend(6, Patience::OneAnswer, &At(client.now));
    let sync = client.sync();
    let report = &sync.reports[0];
    assert_eq!((report.left, report.want > 8), (3, true), "{report:?}");
    assert_eq!((report.waiting, report.waiting_head), (8, 2));
    // That is the answer, though it is less than the requests cost: nothing more is
    // waited for, and the next one asks.
    client.synced(sync.seq, vec![grant(5, 24)]);
    for begun in [first, second] {
        let Begun::Waits(waiter) = begun else {
            panic!("too few are left");
        };
        assert_eq!(waiter.give_up(&At(client.now)), Verdict::Admitted);
    }
    client.after(MS).outgoing();
    let third = client.slot.spend(1, Patience::OneAnswer, &At(client.now));
    let report = client.sync().reports.remove(0);
    assert_eq!((report.waiting, report.waiting_head), (1, 1));
    drop(third);
}

#[test]
fn an_answer_that_is_to_come_is_waited_for() {
    let mut client = Client::open();
    let Begun::Waits(waiter) = client.slot.spend(2, Patience::OneAnswer, &At(client.now)) else {
        panic!("nothing is held");
    };
    let sync = client.sync();
    assert_eq!(
        (sync.reports[0].waiting, sync.reports[0].waiting_head),
        (2, 2)
    );
    client.synced(
        sync.seq,
        vec![KeyGrant {
            basis_seq: sync.seq,
            ..grant(5, 1)
        }],
    );
    client.after(MS);
    assert!(client.syncs().is_empty(), "the ask stands");
    // The time is up and the coordinator has nothing: that is its no.
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
fn an_idle_key_is_handed_back_and_forgotten_once_that_is_acknowledged() {
    let mut client = Client::open().with(3);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let mut finals = 0;
    for _ in 0..260 {
        client.after(SECOND);
        for sync in client.syncs() {
            let is_final = |report: &&Report| report.generation == 5 && report.is_final;
            if let Some(report) = sync.reports.iter().find(is_final) {
                assert_eq!((report.spent_total, report.returned_total), (1, 2));
                finals += 1;
            }
            client.synced(sync.seq, Vec::new());
        }
    }
    assert_eq!(finals, 1);
    assert!(client.core.take_evictable().contains(&0));
    assert!(client.slot.evict());
}

#[test]
fn a_policy_that_is_pushed_moves_the_times_of_a_key_that_holds_units() {
    let mut client = Client::open().with(10);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let pushed = KeyGrant {
        policy: Some(Policy {
            timescale_us: 60_000,
            ..policy(100)
        }),
        ..grant(5, 10)
    };
    client.hear(Incoming::Granted(vec![pushed]));
    // Four timescales without a request: under the old one that is four minutes.
    let mut returned = 0;
    for _ in 0..3 {
        for sync in client.after(SECOND).syncs() {
            let reports = sync.reports.iter().filter(|report| report.generation == 5);
            returned = reports
                .map(|report| report.returned_total)
                .fold(returned, u64::max);
            client.synced(sync.seq, Vec::new());
        }
    }
    assert_eq!(returned, 9);
}

#[test]
fn units_stay_parked_while_the_key_is_quiet() {
    let mut client = Client::open().with(40);
    for _ in 0..30 {
        let sync = client.after(SECOND).sync();
        for report in &sync.reports {
            assert_eq!((report.left, report.returned_total), (40, 0));
        }
        client.synced(sync.seq, Vec::new());
    }
}

#[test]
fn a_recall_takes_half_of_what_is_left_and_the_want_is_stated_anew() {
    let mut client = Client::open().with(5);
    assert_eq!(client.spend(1), Verdict::Admitted);
    // The coordinator believes that there is more than there is.
    client.hear(Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: 3,
        granted_total: 5,
        whole: false,
    });
    let report = client.report(5);
    assert_eq!((report.returned_total, report.left), (2, 2));
    assert!(report.want > 0, "{report:?}");
}

#[test]
fn more_is_asked_for_while_there_is_some_left_and_nobody_waits() {
    let mut client = Client::open().with(3);
    // Five requests a second, each answer takes a second: one unit is too few.
    let mut asked = None;
    for _ in 0..3 {
        assert_eq!(client.spend(1), Verdict::Admitted);
        let syncs = client.after(SECOND / 5).syncs();
        asked = asked.or(syncs
            .into_iter()
            .flat_map(|sync| sync.reports)
            .find(|r| r.want > 0));
    }
    let asked = asked.unwrap();
    assert_eq!((asked.waiting, asked.waiting_head), (0, 0));
    // The next request to find nothing is the first that waits.
    assert_eq!(client.spend(1), Verdict::Empty);
}

#[test]
fn who_runs_out_says_so_though_a_want_is_registered() {
    let mut client = Client::open().with(1);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let sync = client.sync();
    assert!(sync.reports[0].want > 0 && sync.reports[0].left == 0);
    // A part of it comes, and is spent: it is to be known that nothing is left.
    client.synced(sync.seq, vec![grant(5, 2)]);
    client.outgoing();
    client.after(100 * MS);
    assert_eq!(client.spend(1), Verdict::Admitted);
    let report = &client.sync().reports[0];
    assert_eq!((report.left, report.spent_total), (0, 2));
    assert!(report.want > 0 && report.waiting == 0, "{report:?}");
}
