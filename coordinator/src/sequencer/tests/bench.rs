//! A sequencer with its log, its queue and its streams in the test's hands.

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

use super::super::{
    event::{Answer, Opened},
    item::{Accepted, KeyReport, Link, Message, Open, StreamId, SyncMessage},
    *,
};
use crate::raft::ProposeError;

pub(super) const WAIT: Duration = Duration::from_secs(20);

/// A log of one node in memory. `gate` says how many entries may be written.
#[derive(Clone)]
pub(super) struct MemoryLog {
    pub(super) books: Arc<Mutex<Books>>,
    pub(super) gate: Arc<Semaphore>,
}

pub(super) struct Books {
    pub(super) ledger: Ledger,
    pub(super) entries: Vec<Entry>,
    pub(super) fail: Option<ProposeError>,
    pub(super) wall_unix_us: Option<u64>,
    pub(super) members_format: Option<u32>,
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

    fn majority_wall_unix_us(&self) -> Option<u64> {
        self.books.lock().wall_unix_us
    }

    fn members_format_version(&self) -> Option<u32> {
        self.books.lock().members_format
    }
}

/// A sequencer with its queue in the test's hands.
pub(super) struct Bench {
    pub(super) log: MemoryLog,
    pub(super) queue: mpsc::Sender<Item>,
    pub(super) leadership: watch::Sender<Leadership>,
    pub(super) stop: CancellationToken,
    pub(super) task: tokio::task::JoinHandle<()>,
    pub(super) next_stream: u64,
}

/// One stream as its holder sees it.
pub(super) struct Holder {
    pub(super) stream: StreamId,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) end: CancellationToken,
    pub(super) under_way: Arc<Semaphore>,
    pub(super) queue: mpsc::Sender<Item>,
}

pub(super) fn leading(term: u64, anchor_us: u64) -> Leadership {
    Leadership::Leading {
        term,
        anchor_us,
        since: Reading::now(),
    }
}

pub(super) fn leader() -> Member {
    Member {
        node_id: 2,
        client_url: "http://two".to_owned(),
        ..Member::default()
    }
}

pub(super) fn key() -> Key {
    Key::parse("acme/orders").unwrap()
}

impl Bench {
    pub(super) fn start(now: Leadership) -> Self {
        Self::start_with(now, Settings::default())
    }

    pub(super) fn start_with(now: Leadership, settings: Settings) -> Self {
        let log = MemoryLog {
            books: Arc::new(Mutex::new(Books {
                ledger: Ledger::new(),
                entries: Vec::new(),
                fail: None,
                wall_unix_us: Some(1_000_000_000_000_000),
                members_format: None,
            })),
            gate: Arc::new(Semaphore::new(1_000_000)),
        };
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let (leadership, now) = watch::channel(now);
        let stop = CancellationToken::new();
        let sequencer = Sequencer::new(
            log.clone(),
            items,
            now,
            stop.clone(),
            settings,
            Shadowed::default(),
        );
        Self {
            log,
            queue,
            leadership,
            stop,
            task: tokio::spawn(sequencer.run()),
            next_stream: 1,
        }
    }

    pub(super) async fn with_budget(limit: u64) -> Self {
        let bench = Self::start(leading(1, 1_000));
        let outcome = bench.command(budget(limit)).await.await.unwrap().unwrap();
        assert_eq!(outcome, CommandOutcome::Done { changed: true });
        bench
    }

    pub(super) async fn command(
        &self,
        command: Command,
    ) -> oneshot::Receiver<Result<CommandOutcome, SubmitError>> {
        let (reply, outcome) = oneshot::channel();
        let item = Item::Command(CommandItem {
            command,
            is_unseen: false,
            spender: None,
            reply,
        });
        self.queue.send(item).await.unwrap();
        outcome
    }

    pub(super) async fn connect(
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
                sight: crate::access::Sight::default(),
                spender: None,
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

    pub(super) async fn open(&mut self) -> (Holder, Opened) {
        let (mut holder, _) = self.connect(1, None, 64).await;
        match holder.next().await {
            Event::Opened(opened) => (holder, opened),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn entries(&self) -> usize {
        self.log.books.lock().entries.len()
    }

    /// No further entry is written until `release`; returns once one is held up.
    pub(super) async fn hold(&self) {
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

    pub(super) fn release(&self, entries: usize) {
        self.log.gate.add_permits(entries);
    }
}

pub(super) fn budget(limit: u64) -> Command {
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
    pub(super) async fn next(&mut self) -> Event {
        tokio::time::timeout(WAIT, self.events.recv())
            .await
            .unwrap()
            .unwrap()
    }

    pub(super) async fn ended(&mut self) -> Event {
        let event = self.next().await;
        tokio::time::timeout(WAIT, self.end.cancelled())
            .await
            .unwrap();
        event
    }

    pub(super) async fn sync(&self, seq: u64, reports: Vec<KeyReport>) {
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

pub(super) fn ask(waiting: u64, want: u64) -> KeyReport {
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
        shadowed: 0,
    }
}

pub(super) async fn pushed(holder: &mut Holder) -> Vec<Answer> {
    match holder.next().await {
        Event::Granted(answers) => answers,
        other => panic!("{other:?}"),
    }
}
