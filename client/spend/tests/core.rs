//! The session state machine, message by message, with a clock that is set by
//! hand. One key `k`, and nobody else.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use leasehold_spend::{
    At, Begun, ClientCore, Code, CoreSettings, Line, MILLISECOND, Patience, SECOND, Slot, Verdict,
    message::{
        Incoming, KeyGrant, LeaseState, Next, Opened, Outgoing, Policy, Refusal, Report, SessionId,
        SettleOut, SpentAge, StreamId, SyncOut,
    },
};

const MS: u64 = MILLISECOND;
const VALIDITY: u64 = 10 * SECOND;

struct Client {
    core: ClientCore,
    slot: Arc<Slot>,
    stream: StreamId,
    now: u64,
}

impl Client {
    /// With a session that was opened at 1 s.
    fn open() -> Self {
        let line = Arc::new(Line::new(4, || ()));
        let mut core = ClientCore::new(CoreSettings::default(), line);
        let now = SECOND;
        let slot = core.slot("k", now).unwrap();
        let stream = core.start_stream(now).stream;
        let mut client = Self {
            core,
            slot,
            stream,
            now,
        };
        client.hear(opened(1, Vec::new()));
        client
    }

    fn hear(&mut self, message: Incoming) -> Next {
        self.core.on_message(self.stream, message, &At(self.now))
    }

    fn after(&mut self, passed: u64) -> &mut Self {
        self.now += passed;
        self
    }

    fn outgoing(&mut self) -> Vec<Outgoing> {
        std::iter::from_fn(|| self.core.poll(&At(self.now))).collect()
    }

    fn syncs(&mut self) -> Vec<SyncOut> {
        let sync = |out| match out {
            Outgoing::Sync(sync) => Some(sync),
            _ => None,
        };
        self.outgoing().into_iter().filter_map(sync).collect()
    }

    fn sync(&mut self) -> SyncOut {
        self.syncs()
            .pop()
            .unwrap_or_else(|| panic!("nothing is said"))
    }

    fn settles(&mut self) -> Vec<SettleOut> {
        let settle = |out| match out {
            Outgoing::Settle(settle) => Some(settle),
            _ => None,
        };
        self.outgoing().into_iter().filter_map(settle).collect()
    }

    fn synced(&mut self, seq: u64, grants: Vec<KeyGrant>) {
        self.hear(Incoming::Synced {
            seq,
            renewed: true,
            grants,
        });
    }

    fn spend(&self, units: u64) -> Verdict {
        self.slot.try_spend(units, &At(self.now))
    }

    /// Asks for units by a `try_spend`, and is given this many in generation 5.
    fn with(mut self, units: u64) -> Self {
        assert_eq!(self.spend(1), Verdict::Empty);
        let seq = self.sync().seq;
        self.synced(seq, vec![grant(5, units)]);
        self.outgoing();
        self
    }

    fn reconnect(&mut self) -> Option<SessionId> {
        self.core.on_lost(self.stream, self.now);
        let open = self.core.start_stream(self.now);
        self.stream = open.stream;
        open.resume
    }

    /// The next report of a lease, whatever else is said before.
    fn report(&mut self, generation: u64) -> Report {
        for _ in 0..10 {
            for sync in self.syncs() {
                let found = sync
                    .reports
                    .iter()
                    .find(|report| report.generation == generation);
                if let Some(report) = found.cloned() {
                    return report;
                }
                self.synced(sync.seq, Vec::new());
            }
            self.after(SECOND);
        }
        panic!("generation {generation} is never reported")
    }
}

fn opened(session: u8, leases: Vec<LeaseState>) -> Incoming {
    Incoming::Opened(Opened {
        session: SessionId([session; 16]),
        validity_us: VALIDITY / 1000,
        sync_interval_us: 1_000_000,
        session_ttl_us: VALIDITY / 1000,
        reports_per_sync_max: 100,
        keys_per_session_max: 100,
        leases,
    })
}

fn grant(generation: u64, granted_total: u64) -> KeyGrant {
    KeyGrant {
        generation,
        granted_total,
        policy: Some(policy(100)),
        ..KeyGrant::default()
    }
}

fn policy(limit: u64) -> Policy {
    Policy {
        limit,
        timescale_us: 60_000_000,
        max_wait_us: 250_000,
        fails_open: false,
        slice_factor_milli: 1500,
    }
}

fn refused(code: Code, retry_after_us: u64) -> KeyGrant {
    let refusal = Some(Refusal {
        code,
        retry_after_us,
    });
    KeyGrant {
        refusal,
        policy: Some(policy(100)),
        ..KeyGrant::default()
    }
}

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
fn a_recall_is_a_target_for_the_returned_total() {
    let mut client = Client::open().with(10);
    let recall = |target, granted_total| Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: target,
        granted_total,
    };
    client.hear(recall(4, 10));
    client.hear(recall(4, 10));
    client.hear(recall(3, 10));
    let report = client.report(5);
    assert!(report.returned_total >= 4 && report.left <= 6);
    assert_eq!(report.returned_total + report.left, 10);
    // Of another generation: not ours to give.
    let other = Incoming::Recall {
        key_id: 0,
        generation: 4,
        returned_total_target: 9,
        granted_total: 9,
    };
    let before = report.returned_total;
    client.hear(other);
    assert_eq!(client.spend(1), Verdict::Admitted);
    assert_eq!(client.report(5).returned_total, before);
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
