//! The sequencer over a log in memory: what goes into one entry, and what happens
//! when an entry has no outcome or leadership is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod bench;
mod formats;

use std::{
    sync::Arc,
    task::{Context, Wake, Waker},
};

use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    entry::{Command, Rule, SessionId},
    policy::{Kind, Policy},
};
use parking_lot::Mutex;

use self::bench::*;
use super::{item::KeyReport, *};
use crate::raft::ProposeError;

#[tokio::test]
async fn everything_that_waits_goes_into_one_entry() {
    let mut bench = Bench::with_budget(100).await;
    let mut holders = Vec::new();
    for _ in 0..20 {
        holders.push(bench.open().await.0);
    }
    bench.hold().await;
    // One entry is under way, whatever it carries; the rest has to wait for it.
    holders[0].sync(1, vec![ask(1, 1)]).await;
    while bench.queue.capacity() < QUEUE_MAX {
        tokio::task::yield_now().await;
    }
    let before = bench.entries();
    for holder in &holders[1..] {
        holder.sync(1, vec![ask(1, 1)]).await;
    }
    bench.release(1_000);
    for holder in &mut holders {
        let Event::Synced {
            answers, renewed, ..
        } = holder.next().await
        else {
            panic!("synced");
        };
        assert!(renewed);
        assert_eq!(answers[0].granted_total, 1);
    }
    let entries = bench.log.books.lock().entries[before..].to_vec();
    let syncs: Vec<usize> = entries
        .iter()
        .map(|entry| entry.syncs.len())
        .filter(|syncs| *syncs > 0)
        .collect();
    assert_eq!(syncs, [1, 19]);
}

/// The answer of the next event, which is pushed.
#[tokio::test]
async fn an_edit_of_lease_settings_alone_reaches_a_holder_that_says_nothing() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, _) = bench.open().await;
    holder.sync(1, vec![ask(2, 2)]).await;
    holder.next().await;
    let Command::PutBudget {
        pattern,
        rule: Rule::Inline(old),
    } = budget(100)
    else {
        panic!("an inline rule");
    };
    let edits = [
        Policy {
            reserve: 1,
            ..old.clone()
        },
        Policy {
            horizon_us: Some(50_000),
            ..old.clone()
        },
        Policy {
            slice_factor_milli: 2_000,
            ..old.clone()
        },
        old,
    ];
    for policy in edits {
        let put = Command::PutBudget {
            pattern: pattern.clone(),
            rule: Rule::Inline(policy.clone()),
        };
        bench.command(put).await.await.unwrap().unwrap();
        let [answer] = &pushed(&mut holder).await[..] else {
            panic!("one key");
        };
        assert_eq!(answer.policy.as_deref(), Some(&policy));
        assert_eq!((answer.granted_total, answer.refusal), (2, None));
    }
}

#[tokio::test]
async fn an_edit_that_changes_nothing_or_other_keys_is_told_to_nobody() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, _) = bench.open().await;
    holder.sync(1, vec![ask(2, 2)]).await;
    holder.next().await;
    let elsewhere = Command::PutBudget {
        pattern: Pattern::parse("other/*").unwrap(),
        rule: Rule::Inline(Policy::new(Kind::SlidingWindow {
            limit: 1,
            window_us: 1_000_000,
        })),
    };
    for command in [budget(100), elsewhere] {
        bench.command(command).await.await.unwrap().unwrap();
    }
    // What was pushed before would come first.
    holder.sync(2, vec![ask(0, 0)]).await;
    assert!(matches!(holder.next().await, Event::Synced { seq: 2, .. }));
}

#[tokio::test]
async fn an_edit_of_very_many_keys_is_told_in_parts_and_of_each_key_once() {
    const KEYS: u32 = 5_000;
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, _) = bench.open().await;
    let reports = (0..KEYS).map(|key_id| KeyReport {
        key_id,
        key: Key::parse(&format!("acme/{key_id}")).unwrap(),
        ..ask(1, 1)
    });
    holder.sync(1, reports.collect()).await;
    holder.next().await;
    bench.command(budget(99)).await.await.unwrap().unwrap();
    let mut told = Vec::new();
    while told.len() < KEYS as usize {
        let answers = pushed(&mut holder).await;
        // Grants of the asks may come among the edits.
        let edits = answers.iter().filter_map(|answer| {
            let policy = answer.policy.as_ref()?;
            assert_eq!(policy.kind.limit(), 99);
            Some(answer.key_id)
        });
        let edits: Vec<u32> = edits.collect();
        assert!(edits.len() <= 2_048);
        told.extend(edits);
    }
    told.sort_unstable();
    assert_eq!(told, (0..KEYS).collect::<Vec<_>>());
}

/// Does something once, in the thread that wakes it.
struct WhenWoken(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for WhenWoken {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().take();
        if let Some(act) = act {
            act();
        }
    }
}

/// While the queue is drained, time passes and another item comes: a stream that is
/// taken away wakes its reader, which sends it from within.
#[tokio::test]
async fn cluster_time_of_an_entry_is_read_after_its_last_item_was_taken() {
    let mut bench = Bench::with_budget(100).await;
    let Leadership::Leading {
        anchor_us, since, ..
    } = bench.leadership.borrow().clone()
    else {
        panic!("it leads");
    };
    let (mut holder, _) = bench.open().await;
    let spend = |units| {
        let (reply, outcome) = oneshot::channel();
        let command = Command::Spend { key: key(), units };
        (
            Item::Command(CommandItem {
                command,
                is_unseen: false,
                spender: None,
                reply,
            }),
            outcome,
        )
    };
    let (first, first_outcome) = spend(1);
    let (last, last_outcome) = spend(2);
    let asked = Arc::new(Mutex::new(None));
    let (noted, queue) = (Arc::clone(&asked), bench.queue.clone());
    let act = move || {
        std::thread::sleep(Duration::from_millis(2));
        *noted.lock() = Some(Reading::now());
        queue.try_send(last).ok().unwrap();
    };
    let waker = Waker::from(Arc::new(WhenWoken(Mutex::new(Some(Box::new(act))))));
    let reads = holder.events.poll_recv(&mut Context::from_waker(&waker));
    assert!(reads.is_pending());
    // The first one begins an entry; the second is taken while it is filled.
    bench.queue.try_send(first).ok().unwrap();
    let stream = holder.stream;
    bench.queue.try_send(Item::Gone { stream }).ok().unwrap();
    for outcome in [first_outcome, last_outcome] {
        outcome.await.unwrap().unwrap();
    }
    let asked = asked.lock().expect("the stream was taken away");
    let asked_us = anchor_us + since.elapsed_us_until(asked);
    let entries = &bench.log.books.lock().entries;
    let spends = entries.iter().filter(|entry| {
        let spends = |command: &Command| matches!(command, Command::Spend { .. });
        entry.commands.iter().any(spends)
    });
    let spends: Vec<_> = spends.collect();
    let [entry] = spends[..] else {
        panic!("one entry has both: {spends:?}");
    };
    assert_eq!(entry.commands.len(), 2);
    assert!(
        entry.now_us >= asked_us,
        "dated {} µs before it was asked for",
        asked_us - entry.now_us
    );
}

#[tokio::test]
async fn a_follower_sends_everybody_to_the_leader() {
    let mut bench = Bench::start(Leadership::Following {
        leader: Some(leader()),
    });
    let (mut holder, accepted) = bench.connect(1, None, 8).await;
    assert_eq!(holder.ended().await, Event::Moved("http://two".to_owned()));
    assert!(accepted.await.is_err());
    let outcome = bench.command(budget(1)).await.await.unwrap();
    assert_eq!(
        outcome,
        Err(SubmitError::NotLeader {
            leader: Some(leader())
        })
    );
}

#[tokio::test]
async fn when_leadership_is_lost_every_stream_is_told_who_leads() {
    let mut bench = Bench::with_budget(100).await;
    let (mut one, _) = bench.open().await;
    let (mut two, _) = bench.open().await;
    bench.leadership.send_replace(Leadership::Following {
        leader: Some(leader()),
    });
    for holder in [&mut one, &mut two] {
        assert_eq!(holder.ended().await, Event::Moved("http://two".to_owned()));
    }
}

#[tokio::test]
async fn an_entry_without_an_outcome_leaves_commands_unknown_and_streams_to_say_it_again() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, opened) = bench.open().await;
    bench.log.books.lock().fail = Some(ProposeError::Unknown);
    let outcome = bench.command(budget(5)).await.await.unwrap();
    assert_eq!(outcome, Err(SubmitError::OutcomeUnknown));
    assert_eq!(holder.ended().await, Event::Moved(String::new()));

    // The same node goes on leading: the session resumes there.
    let (mut holder, _) = bench.connect(1, Some(opened.session), 8).await;
    let Event::Opened(resumed) = holder.next().await else {
        panic!("resumed");
    };
    assert_eq!(resumed.session, opened.session);
}

#[tokio::test]
async fn an_entry_that_was_not_written_is_not_unknown() {
    let bench = Bench::with_budget(100).await;
    bench.log.books.lock().fail = Some(ProposeError::NotLeader {
        leader: Some(leader()),
    });
    let outcome = bench.command(budget(5)).await.await.unwrap();
    assert_eq!(
        outcome,
        Err(SubmitError::NotLeader {
            leader: Some(leader())
        })
    );
}

#[tokio::test]
async fn a_stream_that_does_not_read_is_dropped_and_holds_up_nobody() {
    let mut bench = Bench::with_budget(100).await;
    let (deaf, accepted) = bench.connect(1, None, 2).await;
    accepted.await.unwrap();
    let (mut other, _) = bench.open().await;
    for seq in 1..=4 {
        deaf.sync(seq, vec![ask(0, 0)]).await;
    }
    tokio::time::timeout(WAIT, deaf.end.cancelled())
        .await
        .unwrap();
    other.sync(1, vec![ask(1, 1)]).await;
    assert!(matches!(other.next().await, Event::Synced { .. }));
}

#[tokio::test]
async fn a_resume_takes_over_restates_all_leases_and_ends_the_old_stream() {
    let mut bench = Bench::with_budget(100).await;
    let (mut old, opened) = bench.open().await;
    old.sync(1, vec![ask(1, 5)]).await;
    old.next().await;
    let (mut new, _) = bench.connect(1, Some(opened.session), 8).await;
    let Event::Refused(refusal) = old.ended().await else {
        panic!("superseded");
    };
    assert_eq!(refusal.code, StreamCode::Superseded);
    let Event::Opened(resumed) = new.next().await else {
        panic!("resumed");
    };
    assert_eq!(resumed.session, opened.session);
    let leases: Vec<_> = resumed
        .leases
        .iter()
        .map(|lease| (lease.key.clone(), lease.granted_total))
        .collect();
    assert_eq!(leases, [(key(), 5)]);

    // Another process that presents the session's id gets nothing.
    let (mut thief, _) = bench.connect(2, Some(opened.session), 8).await;
    let Event::Refused(refusal) = thief.ended().await else {
        panic!("superseded");
    };
    assert_eq!(refusal.code, StreamCode::Superseded);
    let mut more = ask(1, 1);
    more.level.generation = resumed.leases[0].generation;
    more.level.granted_seen = resumed.leases[0].granted_total;
    new.sync(2, vec![more]).await;
    let Event::Synced {
        renewed, answers, ..
    } = new.next().await
    else {
        panic!("synced");
    };
    assert!(renewed);
    assert_eq!(answers[0].granted_total, 6);
}

#[tokio::test]
async fn a_resume_renews_through_the_log() {
    let mut bench = Bench::with_budget(100).await;
    let (holder, opened) = bench.open().await;
    let before = bench
        .log
        .with_ledger(|ledger| ledger.session(opened.session).unwrap().deadline_us);
    drop(holder);
    let (mut holder, _) = bench.connect(1, Some(opened.session), 8).await;
    holder.next().await;
    let after = bench
        .log
        .with_ledger(|ledger| ledger.session(opened.session).unwrap().deadline_us);
    assert!(after > before);
}

#[tokio::test]
async fn a_session_that_nobody_knows_cannot_be_resumed() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, _) = bench.connect(1, Some(SessionId(99)), 8).await;
    let Event::Refused(refusal) = holder.ended().await else {
        panic!("refused");
    };
    assert_eq!(refusal.code, StreamCode::SessionExpired);
}

#[tokio::test]
async fn stopping_tells_every_stream_and_answers_every_command() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, _) = bench.open().await;
    bench.stop.cancel();
    let Event::Refused(refusal) = holder.ended().await else {
        panic!("refused");
    };
    assert_eq!(refusal.code, StreamCode::ShuttingDown);
    tokio::time::timeout(WAIT, bench.task)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn time_moves_while_anything_depends_on_it_though_nobody_says_anything() {
    let mut bench = Bench::with_budget(100).await;
    let (_holder, _) = bench.open().await;
    let before = bench.entries();
    let start = tokio::time::Instant::now();
    while bench.entries() < before + 3 {
        assert!(start.elapsed() < WAIT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_first_entry_of_a_new_cluster_gives_it_its_name_and_settings_and_no_later_one_does() {
    let brisk = Settings {
        session_ttl_us: 5_000_000,
        ..Settings::default()
    };
    let mut bench = Bench::start_with(leading(1, 0), brisk.clone());
    let (_holder, opened) = bench.open().await;
    assert_eq!(opened.ttl_us, 5_000_000);
    let first = bench.log.books.lock().entries[0].commands.clone();
    assert!(
        matches!(first.first(), Some(Command::NameCluster { cluster_id }) if *cluster_id > 0),
        "{first:?}"
    );
    assert_eq!(first.get(1), Some(&Command::PutSettings(brisk)));

    let mut bench = Bench::start_with(
        leading(2, 1),
        Settings {
            session_ttl_us: 7_000_000,
            ..Settings::default()
        },
    );
    let (_holder, opened) = bench.open().await;
    assert_eq!(opened.ttl_us, 10_000_000);
    let entries = bench.log.books.lock().entries.clone();
    let named = |command: &Command| matches!(command, Command::NameCluster { .. });
    assert!(!entries.iter().flat_map(|entry| &entry.commands).any(named));
}
