//! The sequencer over a log in memory: what goes into one entry, and what happens
//! when an entry has no outcome or leadership is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::Arc;

use leasehold_allotter::Level;
use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Rule, SessionId},
    outcome::{Applied, CommandOutcome},
    policy::{Kind, Policy},
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};

use super::{
    event::{Answer, Opened},
    item::{Accepted, KeyReport, Link, Message, Open, StreamId, SyncMessage},
    *,
};
use crate::raft::ProposeError;

const WAIT: Duration = Duration::from_secs(20);

/// A log of one node in memory. `gate` says how many entries may be written.
#[derive(Clone)]
struct MemoryLog {
    books: Arc<Mutex<Books>>,
    gate: Arc<Semaphore>,
}

struct Books {
    ledger: Ledger,
    entries: Vec<Entry>,
    fail: Option<ProposeError>,
}

impl Log for MemoryLog {
    async fn propose(&self, _term: u64, entry: Entry) -> Result<Arc<Applied>, ProposeError> {
        self.gate.acquire().await.unwrap().forget();
        let mut books = self.books.lock();
        if let Some(error) = books.fail.take() {
            return Err(error);
        }
        let index = books.entries.len() as u64 + 1;
        let applied = books.ledger.apply(index, &entry);
        books.ledger.check().unwrap();
        books.entries.push(entry);
        Ok(Arc::new(applied))
    }

    fn with_ledger<T>(&self, read: impl FnOnce(&Ledger) -> T) -> T {
        read(&self.books.lock().ledger)
    }
}

/// A sequencer with its queue in the test's hands.
struct Bench {
    log: MemoryLog,
    queue: mpsc::Sender<Item>,
    leadership: watch::Sender<Leadership>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    next_stream: u64,
}

/// One stream as its holder sees it.
struct Holder {
    stream: StreamId,
    events: mpsc::Receiver<Event>,
    end: CancellationToken,
    under_way: Arc<Semaphore>,
    queue: mpsc::Sender<Item>,
}

fn leading(term: u64, anchor_us: u64) -> Leadership {
    Leadership::Leading {
        term,
        anchor_us,
        since: Reading::now(),
    }
}

fn leader() -> Member {
    Member {
        node_id: 2,
        client_url: "http://two".to_owned(),
        ..Member::default()
    }
}

fn key() -> Key {
    Key::parse("acme/orders").unwrap()
}

impl Bench {
    fn start(now: Leadership) -> Self {
        Self::start_with(now, Settings::default())
    }

    fn start_with(now: Leadership, settings: Settings) -> Self {
        let log = MemoryLog {
            books: Arc::new(Mutex::new(Books {
                ledger: Ledger::new(),
                entries: Vec::new(),
                fail: None,
            })),
            gate: Arc::new(Semaphore::new(1_000_000)),
        };
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let (leadership, now) = watch::channel(now);
        let stop = CancellationToken::new();
        let sequencer = Sequencer::new(log.clone(), items, now, stop.clone(), settings);
        Self {
            log,
            queue,
            leadership,
            stop,
            task: tokio::spawn(sequencer.run()),
            next_stream: 1,
        }
    }

    async fn with_budget(limit: u64) -> Self {
        let bench = Self::start(leading(1, 1_000));
        let outcome = bench.command(budget(limit)).await.await.unwrap().unwrap();
        assert_eq!(outcome, CommandOutcome::Done { changed: true });
        bench
    }

    async fn command(
        &self,
        command: Command,
    ) -> oneshot::Receiver<Result<CommandOutcome, SubmitError>> {
        let (reply, outcome) = oneshot::channel();
        let item = Item::Command(CommandItem { command, reply });
        self.queue.send(item).await.unwrap();
        outcome
    }

    async fn connect(
        &mut self,
        instance: u8,
        resume: Option<SessionId>,
        buffer: usize,
    ) -> (Holder, oneshot::Receiver<Accepted>) {
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        let (events, told) = mpsc::channel(buffer);
        let end = CancellationToken::new();
        let (opened, accepted) = oneshot::channel();
        let item = Item::Open {
            stream,
            link: Link {
                events,
                end: end.clone(),
            },
            open: Open {
                holder: "gw".to_owned(),
                identity: String::new(),
                instance: [instance; 16],
                resume,
            },
            opened,
        };
        self.queue.send(item).await.unwrap();
        let holder = Holder {
            stream,
            events: told,
            end,
            under_way: Arc::new(Semaphore::new(1_000)),
            queue: self.queue.clone(),
        };
        (holder, accepted)
    }

    async fn open(&mut self) -> (Holder, Opened) {
        let (mut holder, _) = self.connect(1, None, 64).await;
        match holder.next().await {
            Event::Opened(opened) => (holder, opened),
            other => panic!("{other:?}"),
        }
    }

    fn entries(&self) -> usize {
        self.log.books.lock().entries.len()
    }

    /// No further entry is written until `release`; returns once one is held up.
    async fn hold(&self) {
        self.log
            .gate
            .acquire_many(1_000_000 - 100_000)
            .await
            .unwrap()
            .forget();
        while let Ok(permit) = self.log.gate.try_acquire() {
            permit.forget();
        }
    }

    fn release(&self, entries: usize) {
        self.log.gate.add_permits(entries);
    }
}

fn budget(limit: u64) -> Command {
    Command::PutBudget {
        pattern: Pattern::parse("acme/*").unwrap(),
        rule: Rule::Inline(Policy {
            public_name: "orders".to_owned(),
            ..Policy::new(Kind::SlidingWindow {
                limit,
                window_us: 60_000_000,
            })
        }),
    }
}

impl Holder {
    async fn next(&mut self) -> Event {
        tokio::time::timeout(WAIT, self.events.recv())
            .await
            .unwrap()
            .unwrap()
    }

    async fn ended(&mut self) -> Event {
        let event = self.next().await;
        tokio::time::timeout(WAIT, self.end.cancelled())
            .await
            .unwrap();
        event
    }

    async fn sync(&self, seq: u64, reports: Vec<KeyReport>) {
        let permit = Arc::clone(&self.under_way).acquire_owned().await.unwrap();
        let item = Item::Message {
            stream: self.stream,
            message: Message::Sync(SyncMessage {
                seq,
                close: false,
                reports,
            }),
            permit,
        };
        self.queue.send(item).await.unwrap();
    }
}

fn ask(waiting: u64, want: u64) -> KeyReport {
    KeyReport {
        key_id: 7,
        key: key(),
        report: None,
        level: Level {
            want,
            waiting,
            waiting_head: waiting.min(1),
            ..Level::default()
        },
        refused: 0,
        degraded: 0,
    }
}

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
async fn pushed(holder: &mut Holder) -> Vec<Answer> {
    match holder.next().await {
        Event::Granted(answers) => answers,
        other => panic!("{other:?}"),
    }
}

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

#[tokio::test]
async fn cluster_time_of_an_entry_is_read_after_its_last_item_was_taken() {
    let mut bench = Bench::with_budget(100).await;
    let (mut holder, opened) = bench.open().await;
    let before = Reading::now();
    let anchor = bench.log.with_ledger(Ledger::now_us);
    holder.sync(1, vec![ask(1, 1)]).await;
    holder.next().await;
    let after = bench.log.with_ledger(Ledger::now_us);
    assert!(after >= anchor);
    assert!(after - anchor <= before.elapsed_us() + opened.ttl_us);
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
async fn the_first_entry_of_a_new_cluster_gives_it_its_settings_and_no_later_one_does() {
    let brisk = Settings {
        session_ttl_us: 5_000_000,
        ..Settings::default()
    };
    let mut bench = Bench::start_with(leading(1, 0), brisk.clone());
    let (_holder, opened) = bench.open().await;
    assert_eq!(opened.ttl_us, 5_000_000);
    assert_eq!(
        bench.log.books.lock().entries[0].commands.first(),
        Some(&Command::PutSettings(brisk))
    );

    let mut bench = Bench::start_with(
        leading(2, 1),
        Settings {
            session_ttl_us: 7_000_000,
            ..Settings::default()
        },
    );
    let (_holder, opened) = bench.open().await;
    assert_eq!(opened.ttl_us, 10_000_000);
}
