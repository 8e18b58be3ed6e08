//! What a session does when things go wrong at the worst moment: each of these
//! once lost units, a wake-up or the connection.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use leasehold_spend::{
    At, Begun, ClientCore, Code, CoreSettings, Line, MILLISECOND, Patience, SECOND, Slot, Verdict,
    Waiter,
    message::{
        Incoming, KeyGrant, Next, Opened, Outgoing, Policy, Refusal, Report, SessionId, StreamId,
        SyncOut,
    },
};

const VALIDITY: u64 = 10 * SECOND;

struct Client {
    core: ClientCore,
    slots: Vec<Arc<Slot>>,
    stream: StreamId,
    now: u64,
}

impl Client {
    /// With a session that was opened at 1 s and may have this many keys.
    fn open(keys: &[&str], keys_max: u32) -> Self {
        let line = Arc::new(Line::new(8, || ()));
        let mut core = ClientCore::new(CoreSettings::default(), line);
        let now = SECOND;
        let slots = keys
            .iter()
            .map(|key| core.slot(key, now).unwrap())
            .collect();
        let stream = core.start_stream(now).stream;
        let mut client = Self {
            core,
            slots,
            stream,
            now,
        };
        client.hear(opened(1, keys_max));
        client
    }

    fn hear(&mut self, message: Incoming) -> Next {
        self.core.on_message(self.stream, message, &At(self.now))
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

    /// All that is said now, acknowledged.
    fn reports(&mut self) -> Vec<Report> {
        let syncs = self.syncs();
        let mut reports = Vec::new();
        for sync in syncs {
            self.synced(sync.seq, Vec::new());
            reports.extend(sync.reports);
        }
        reports
    }

    fn synced(&mut self, seq: u64, grants: Vec<KeyGrant>) {
        self.hear(Incoming::Synced {
            seq,
            renewed: true,
            grants,
        });
    }

    fn spend(&self, key: usize, units: u64) -> Verdict {
        self.slots[key].try_spend(units, &At(self.now))
    }

    /// Asks by a `try_spend` of the first key, and is given this many.
    fn given(&mut self, generation: u64, units: u64) {
        assert_eq!(self.spend(0, 1), Verdict::Empty);
        let seq = self.syncs().pop().unwrap().seq;
        self.synced(seq, vec![grant(generation, units)]);
        self.outgoing();
    }

    fn reconnect(&mut self) -> Option<SessionId> {
        self.core.on_lost(self.stream, self.now);
        let open = self.core.start_stream(self.now);
        self.stream = open.stream;
        open.resume
    }
}

fn opened(session: u8, keys_max: u32) -> Incoming {
    Incoming::Opened(Opened {
        session: SessionId([session; 16]),
        validity_us: VALIDITY / 1000,
        sync_interval_us: 1_000_000,
        session_ttl_us: VALIDITY / 1000,
        reports_per_sync_max: 100,
        keys_per_session_max: keys_max,
        leases: Vec::new(),
    })
}

fn grant(generation: u64, granted_total: u64) -> KeyGrant {
    KeyGrant {
        generation,
        granted_total,
        policy: Some(Policy {
            limit: 100,
            timescale_us: 60_000_000,
            max_wait_us: 250_000,
            slice_factor_milli: 1500,
            ..Policy::default()
        }),
        ..KeyGrant::default()
    }
}

fn ended(code: &str) -> Incoming {
    Incoming::Refused {
        code: code.to_owned(),
        detail: String::new(),
    }
}

#[test]
fn units_are_put_aside_at_the_deadline_also_while_disconnected() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 10);
    client.core.on_lost(client.stream, client.now);
    client.now = client.core.next_wake().unwrap().max(SECOND + VALIDITY);
    client.outgoing();
    for _ in 0..50 {
        assert!(!client.spend(0, 1).is_allowed());
    }
    // The coordinator had no leader either, so the session is alive.
    client.now += SECOND;
    client.reconnect();
    client.hear(opened(1, 10));
    let reports = client.reports();
    assert_eq!(reports[0].spent_total, 0, "forfeited: {reports:?}");
    assert_eq!(client.spend(0, 1), Verdict::Admitted, "renewed");
}

#[test]
fn a_coordinator_that_began_anew_counts_its_generations_anew() {
    let mut client = Client::open(&["k"], 10);
    client.given(5_000, 3);
    client.hear(ended("session_expired"));
    assert_eq!(client.reconnect(), None);
    client.hear(opened(2, 10));
    client.outgoing();
    client.given(7, 3);
    assert_eq!(client.spend(0, 3), Verdict::Admitted);
}

#[test]
fn a_close_that_was_lost_is_said_again_on_the_next_stream() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 10);
    client.core.close();
    let is_close = |out: &Outgoing| matches!(out, Outgoing::Close(_));
    assert!(client.outgoing().iter().any(is_close));
    assert_eq!(client.reconnect(), Some(SessionId([1; 16])));
    client.hear(opened(1, 10));
    let said = client.outgoing();
    let Some(Outgoing::Close(close)) = said.into_iter().find(is_close) else {
        panic!("the close is not said again");
    };
    assert_eq!(close.reports[0].returned_total, 10);
    assert_eq!(client.hear(Incoming::Closed), Next::Finished);
}

#[test]
fn a_key_beyond_the_session_s_bound_is_refused_here_and_never_reported() {
    let mut client = Client::open(&["k", "too many"], 1);
    for _ in 0..20 {
        let _ = client.spend(1, 1);
        let reports = client.reports();
        assert!(
            reports.iter().all(|report| report.key_id < 1),
            "the coordinator would end the stream: {reports:?}"
        );
        client.now += 300 * MILLISECOND;
    }
    let told = client.spend(1, 1);
    assert!(
        matches!(
            told,
            Verdict::Denied {
                code: Code::TooManyKeys,
                ..
            } | Verdict::Empty
        ),
        "{told:?}"
    );
}

#[test]
fn empty_means_that_an_ask_is_on_its_way_also_when_a_few_units_are_left() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 3);
    assert_eq!(client.spend(0, 5), Verdict::Empty);
    let asked: Vec<Report> = client.syncs().into_iter().flat_map(|s| s.reports).collect();
    let report = asked.first().unwrap_or_else(|| panic!("nothing is asked"));
    assert!(report.want >= 2, "3 are left and 5 needed: {report:?}");
}

#[test]
fn a_lease_of_which_units_are_held_is_not_ended_when_the_key_is_idle() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 10);
    let hold = client.slots[0].hold(2).unwrap();
    let mut last = Report::default();
    for _ in 0..300 {
        client.now += SECOND;
        for report in client.reports() {
            last = report;
        }
    }
    // The coordinator sees a lease that is present, and adds to it.
    assert_eq!((last.returned_total, last.held), (8, 2), "{last:?}");
    client.given(5, 14);
    assert_eq!(client.spend(0, 4), Verdict::Admitted);
    assert!(hold.commit(&At(client.now)));
}

#[test]
fn an_ask_that_an_earlier_push_has_met_is_over() {
    let mut client = Client::open(&["k"], 10);
    let wait =
        |client: &Client| match client.slots[0].spend(1, Patience::OneAnswer, &At(client.now)) {
            Begun::Waits(waiter) => waiter,
            Begun::Answered(verdict) => panic!("{verdict:?}"),
        };
    let first = wait(&client);
    let seq = client.syncs().pop().unwrap().seq;
    // Pushed on the strength of an earlier sync, just before the answer.
    client.hear(Incoming::Granted(vec![grant(5, 1)]));
    client.synced(seq, vec![grant(5, 1)]);
    client.outgoing();
    assert_eq!(first.give_up(&At(client.now)), Verdict::Admitted);
    // The next request does not wait for an answer that was given already.
    let _second = wait(&client);
    client.now += MILLISECOND;
    let asked: Vec<Report> = client.syncs().into_iter().flat_map(|s| s.reports).collect();
    assert!(asked.iter().any(|report| report.want > 0), "{asked:?}");
}

#[test]
fn a_key_that_never_had_a_lease_says_when_it_is_done_with() {
    let mut client = Client::open(&["k"], 10);
    let _ = client.spend(0, 1);
    let seq = client.syncs().pop().unwrap().seq;
    let refusal = Some(Refusal {
        code: Code::NoBudget,
        retry_after_us: 0,
        lane: 0,
    });
    let refused = KeyGrant {
        refusal,
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    let mut last = Report::default();
    for _ in 0..300 {
        client.now += SECOND;
        for report in client.reports() {
            last = report;
        }
    }
    // Only then may the number stand for another key.
    assert!(last.is_final && last.want == 0, "{last:?}");
    assert!(client.core.take_evictable().contains(&0));
}

#[test]
fn a_key_that_was_done_with_states_its_name_when_it_comes_back() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 3);
    for _ in 0..300 {
        client.now += SECOND;
        client.reports();
    }
    assert_eq!(client.spend(0, 1), Verdict::Empty);
    let asked = client.reports();
    assert_eq!(asked[0].key.as_deref(), Some("k"), "forgotten by then");
}

#[test]
fn absurd_terms_of_a_session_break_nothing() {
    let mut client = Client::open(&["k"], 10);
    client.reconnect();
    client.hear(ended("session_expired"));
    client.reconnect();
    client.hear(Incoming::Opened(Opened {
        session: SessionId([2; 16]),
        validity_us: u64::MAX,
        sync_interval_us: u64::MAX,
        session_ttl_us: u64::MAX,
        reports_per_sync_max: 1,
        keys_per_session_max: 1,
        leases: Vec::new(),
    }));
    client.given(5, 3);
    client.now += SECOND;
    client.outgoing();
    assert_eq!(client.spend(0, 1), Verdict::Admitted);
    assert!(client.core.next_wake().is_some());
}

#[test]
fn a_cost_above_the_limit_is_told_so_also_while_units_are_left() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 100);
    client.now += 3 * SECOND;
    let denied = Verdict::Denied {
        code: Code::CostAboveLimit,
        retry_after: None,
    };
    // The limit was heard of so long ago that it may have been raised.
    assert_eq!(client.spend(0, 101), Verdict::Empty);
    let seq = client.syncs().pop().unwrap().seq;
    client.synced(seq, vec![grant(5, 100)]);
    assert_eq!(client.spend(0, 101), denied);

    client.now += 3 * SECOND;
    let begun = client.slots[0].spend(101, Patience::OneAnswer, &At(client.now));
    let Begun::Waits(waiter) = begun else {
        panic!("{begun:?}");
    };
    let seq = client.syncs().pop().unwrap().seq;
    client.synced(seq, vec![grant(5, 100)]);
    assert_eq!(waiter.give_up(&At(client.now)), denied);
}

fn wait(client: &Client, units: u64) -> Waiter {
    match client.slots[0].spend(units, Patience::OneAnswer, &At(client.now)) {
        Begun::Waits(waiter) => waiter,
        Begun::Answered(verdict) => panic!("{verdict:?}"),
    }
}

/// The reports of what is said now, not acknowledged.
fn said(client: &mut Client) -> Vec<Report> {
    client.syncs().into_iter().flat_map(|s| s.reports).collect()
}

#[test]
fn an_ask_for_what_is_missing_of_a_cost_is_over_when_that_has_come() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 40);
    assert_eq!(client.spend(0, 37), Verdict::Admitted);
    client.reports();
    let first = wait(&client, 80);
    let sync = client.syncs().pop().unwrap();
    assert!(sync.reports[0].want >= 77, "three are left: {sync:?}");
    client.synced(sync.seq, vec![grant(5, 40 + sync.reports[0].want)]);
    client.outgoing();
    assert_eq!(first.give_up(&At(client.now)), Verdict::Admitted);
    client.reports();
    client.now += MILLISECOND;
    let _second = wait(&client, 50);
    let asked = said(&mut client);
    assert!(asked.iter().any(|report| report.waiting > 0), "{asked:?}");
}

#[test]
fn who_still_waits_when_the_whole_limit_has_come_is_asked_for() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 1);
    assert_eq!(client.spend(0, 1), Verdict::Admitted);
    client.reports();
    let _waiters: Vec<Waiter> = (0..150).map(|_| wait(&client, 1)).collect();
    let sync = client.syncs().pop().unwrap();
    let report = &sync.reports[0];
    assert_eq!((report.want, report.waiting), (100, 150));
    client.synced(sync.seq, vec![grant(5, 101)]);
    let asked = said(&mut client);
    assert!(
        asked
            .iter()
            .any(|report| report.want >= 50 && report.waiting == 50),
        "{asked:?}"
    );
}

#[test]
fn a_cost_that_a_new_limit_allows_is_asked_for_at_once() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 100);
    client.now += 3 * SECOND;
    client.reports();
    let _waiter = wait(&client, 150);
    let seq = client.syncs().pop().unwrap().seq;
    let mut raised = grant(5, 100);
    raised.policy = raised.policy.map(|policy| Policy {
        limit: 200,
        ..policy
    });
    client.synced(seq, vec![raised]);
    let asked = said(&mut client);
    assert!(asked.iter().any(|report| report.want >= 50), "{asked:?}");
}

/// Idles until a report says that nothing is wanted, and hands out its sync.
fn done_with(client: &mut Client) -> u64 {
    for _ in 0..400 {
        client.now += SECOND;
        for sync in client.syncs() {
            let is_done = |report: &Report| report.is_final && report.want == 0;
            if sync.reports.iter().any(is_done) {
                return sync.seq;
            }
            client.synced(sync.seq, Vec::new());
        }
    }
    panic!("the key is never done with");
}

/// A key that was refused, so that a want of it is registered and no lease is.
fn with_a_want() -> Client {
    let mut client = Client::open(&["k"], 10);
    let _ = client.spend(0, 1);
    let seq = client.syncs().pop().unwrap().seq;
    let refusal = Some(Refusal {
        code: Code::Limit,
        retry_after_us: 1_000_000,
        lane: 0,
    });
    let refused = KeyGrant {
        refusal,
        policy: grant(0, 0).policy,
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    client
}

#[test]
fn a_key_is_not_forgotten_while_the_coordinator_may_think_it_wants_something() {
    let mut client = with_a_want();
    done_with(&mut client);
    // That sync is lost: a later one is answered.
    client.now += SECOND;
    let later = client.syncs().pop().unwrap().seq;
    client.synced(later, Vec::new());
    client.now += SECOND;
    let seq = client.syncs().pop().unwrap();
    assert!(
        client.core.take_evictable().is_empty(),
        "units may be pushed to nobody"
    );
    assert!(seq.reports.iter().any(|report| report.want == 0), "{seq:?}");
    client.synced(seq.seq, Vec::new());
    client.now += SECOND;
    client.outgoing();
    assert_eq!(client.core.take_evictable(), [0]);
}

#[test]
fn a_new_session_s_numbers_are_not_taken_for_acknowledged() {
    let mut client = with_a_want();
    for _ in 0..300 {
        let _ = client.spend(0, 1);
        client.now += SECOND;
        client.reports();
    }
    client.hear(ended("session_expired"));
    assert_eq!(client.reconnect(), None);
    client.hear(opened(2, 10));
    let _ = client.spend(0, 1);
    client.reports();
    done_with(&mut client);
    client.now += SECOND;
    client.outgoing();
    assert!(client.core.take_evictable().is_empty(), "not acknowledged");
}

#[test]
fn a_hold_is_dated_when_it_is_decided() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 50);
    let hold = client.slots[0].hold(2).unwrap();
    client.now += 300 * MILLISECOND;
    client.reports();
    assert!(hold.commit(&At(client.now)));
    client.outgoing();
    client.now += 800 * MILLISECOND;
    let reports = client.reports();
    let age = reports[0].spent_ages.last().unwrap();
    assert_eq!((age.units, age.age_us), (2, 800_000), "{reports:?}");
}

#[test]
fn a_recall_that_crossed_the_return_of_everything_registers_no_want() {
    let mut client = Client::open(&["k"], 10);
    client.given(5, 3);
    done_with(&mut client);
    client.hear(Incoming::Recall {
        key_id: 0,
        generation: 5,
        returned_total_target: 2,
        granted_total: 3,
        whole: false,
    });
    let reports = client.reports();
    assert!(reports.iter().all(|report| report.want == 0), "{reports:?}");
}

/// How many seconds after its refusal a key is forgotten, at most.
fn forgotten_after(code: Code, keys: &[&str], keys_max: u32) -> u64 {
    let mut client = Client::open(keys, keys_max);
    let _ = client.spend(0, 1);
    let seq = client.syncs().pop().unwrap().seq;
    let refusal = Some(Refusal {
        code,
        retry_after_us: 0,
        lane: 0,
    });
    let refused = KeyGrant {
        refusal,
        ..KeyGrant::default()
    };
    client.synced(seq, vec![refused]);
    for second in 1..1_000 {
        client.now += SECOND;
        for sync in client.syncs() {
            client.synced(sync.seq, Vec::new());
        }
        if client.core.take_evictable().contains(&0) {
            return second;
        }
    }
    panic!("it is never forgotten");
}

#[test]
fn keys_that_no_budget_is_for_are_forgotten_within_seconds() {
    assert!(forgotten_after(Code::NoBudget, &["k"], 8) <= 6);
    assert!(
        forgotten_after(Code::Limit, &["k"], 8) > 10,
        "there is room"
    );
}

#[test]
fn keys_without_units_make_room_for_others_and_those_with_units_stay() {
    assert!(forgotten_after(Code::Limit, &["k", "l"], 2) <= 6);
    let mut client = Client::open(&["k", "l"], 2);
    client.given(5, 10);
    assert_eq!(client.spend(0, 1), Verdict::Admitted);
    for _ in 0..6 {
        client.now += SECOND;
        for sync in client.syncs() {
            let mut reports = sync.reports.iter().filter(|report| report.key_id == 0);
            assert!(reports.all(|report| !report.is_final), "{sync:?}");
            client.synced(sync.seq, Vec::new());
        }
        assert!(!client.core.take_evictable().contains(&0));
    }
    assert_eq!(client.spend(0, 9), Verdict::Admitted);
}
