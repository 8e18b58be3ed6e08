//! The coordinator's side: two replicas of the real ledger, leaders that come
//! and go, one entry in flight, and a careless allotter. Knows no gateway but
//! through its streams.

use std::collections::BTreeMap;

use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Grant, Report, SessionId, Sync},
    outcome::{Applied, CommandOutcome, GrantOutcome},
};
use leasehold_spend::message::Policy;
use rand::{Rng, rngs::StdRng};

use crate::{
    clock::DriftingClock,
    wire::{Down, DownGrant, Stream, Up, UpReport},
};

/// A leader's time: `anchor + elapsed`.
struct Reign {
    clock: DriftingClock,
    anchor_us: u64,
    won_ns: u64,
}

/// Something that waits for an entry.
enum Item {
    Sync {
        stream: Stream,
        sync: Sync,
        resume: bool,
    },
    Command {
        stream: Option<Stream>,
        command: Command,
    },
}

/// An entry on its way to a majority.
struct Round {
    entry: Entry,
    items: Vec<Item>,
    asks: Vec<(SessionId, Key)>,
    /// Real time at which it was stamped: the instant of its central spends.
    stamped_ns: u64,
}

/// A unit of a key admitted by the log itself.
pub(crate) struct Central {
    pub(crate) key: Key,
    pub(crate) units: u64,
    pub(crate) at_ns: u64,
}

/// Cluster time does not stand still for longer while somebody leads.
const TICK_NS: u64 = 300_000_000;

pub(crate) struct Coordinator {
    replicas: [Ledger; 2],
    index: u64,
    reign: Option<Reign>,
    waiting: Vec<Item>,
    in_flight: Option<Round>,
    ticked_ns: u64,
    streams: BTreeMap<Stream, SessionId>,
    /// By session: its newest stream.
    newest: BTreeMap<SessionId, Stream>,
    asks: BTreeMap<(SessionId, Key), u64>,
    pub(crate) outbox: Vec<(Stream, Down)>,
    pub(crate) central: Vec<Central>,
    pub(crate) leader_changes: u64,
}

impl Coordinator {
    /// A cluster whose first entry is `commands`.
    pub(crate) fn new(commands: Vec<Command>) -> Self {
        let mut coordinator = Self {
            replicas: [Ledger::new(), Ledger::new()],
            index: 0,
            reign: None,
            waiting: Vec::new(),
            in_flight: None,
            ticked_ns: 0,
            streams: BTreeMap::new(),
            newest: BTreeMap::new(),
            asks: BTreeMap::new(),
            outbox: Vec::new(),
            central: Vec::new(),
            leader_changes: 0,
        };
        let applied = coordinator.commit(&Entry {
            commands,
            ..Entry::default()
        });
        for outcome in &applied.commands {
            assert!(
                matches!(outcome, CommandOutcome::Done { .. }),
                "{outcome:?}"
            );
        }
        coordinator
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.replicas[0]
    }

    /// The leader is gone, and with it every stream and everything that waited.
    /// What was in flight may or may not have reached a majority; nobody is told.
    pub(crate) fn lose_leader(&mut self, rng: &mut StdRng) {
        self.reign = None;
        self.waiting.clear();
        self.asks.clear();
        self.newest.clear();
        self.streams.clear();
        if let Some(round) = self.in_flight.take()
            && rng.random()
        {
            let applied = self.commit(&round.entry);
            self.note_central(&round, &applied);
        }
    }

    /// A new leader: the anchor is what its ledger says, the elapsed time begins
    /// after it won.
    pub(crate) fn win(&mut self, now_ns: u64, clock: DriftingClock) {
        let won_ns = clock.reading_ns(now_ns);
        self.reign = Some(Reign {
            clock,
            anchor_us: self.ledger().now_us(),
            won_ns,
        });
        self.leader_changes += 1;
    }

    /// Cluster time as the leader would stamp it.
    fn stamp_us(&self, now_ns: u64) -> Option<u64> {
        let reign = self.reign.as_ref()?;
        Some(reign.anchor_us + (reign.clock.reading_ns(now_ns) - reign.won_ns) / 1_000)
    }

    pub(crate) fn lose_stream(&mut self, stream: Stream) {
        if let Some(session) = self.streams.remove(&stream)
            && self.newest.get(&session) == Some(&stream)
        {
            self.newest.remove(&session);
            self.asks.retain(|(asker, _), _| *asker != session);
        }
    }

    pub(crate) fn receive(&mut self, stream: Stream, message: Up, rng: &mut StdRng) {
        if self.reign.is_none() {
            self.outbox.push((stream, Down::Moved));
            return;
        }
        match message {
            Up::Open { resume: None } => {
                let session = SessionId(rng.random());
                let holder = format!("gw-{}", stream.0);
                let command = Command::Open {
                    session,
                    holder,
                    identity: String::new(),
                };
                self.waiting.push(Item::Command {
                    stream: Some(stream),
                    command,
                });
            }
            Up::Open {
                resume: Some(session),
            } => {
                let sync = Sync {
                    session,
                    seq: 0,
                    renew: true,
                    close: false,
                    reports: Vec::new(),
                };
                self.waiting.push(Item::Sync {
                    stream,
                    sync,
                    resume: true,
                });
            }
            Up::Sync { seq, reports } => self.sync(stream, seq, reports, false),
            Up::Close { seq, reports } => self.sync(stream, seq, reports, true),
            Up::Settle { session, leases } => {
                let command = Command::Settle {
                    session,
                    identity: String::new(),
                    leases,
                };
                self.waiting.push(Item::Command {
                    stream: Some(stream),
                    command,
                });
            }
        }
    }

    fn sync(&mut self, stream: Stream, seq: u64, reports: Vec<UpReport>, close: bool) {
        // A message of a stream that nobody opened: the coordinator ends it.
        let Some(&session) = self.streams.get(&stream) else {
            self.outbox.push((stream, Down::Moved));
            return;
        };
        for report in &reports {
            let ask = (session, report.key.clone());
            if report.want > 0 {
                self.asks.insert(ask, report.want);
            } else {
                self.asks.remove(&ask);
            }
        }
        let reports = reports
            .into_iter()
            .filter(|report| report.generation > 0)
            .map(|report| Report {
                key: report.key,
                generation: report.generation,
                last: report.last,
                spent_total: report.spent_total,
                returned_total: report.returned_total,
                held: report.held,
                overrun_total: 0,
                ages: report.ages,
            })
            .collect();
        let sync = Sync {
            session,
            seq,
            renew: !close,
            close,
            reports,
        };
        self.waiting.push(Item::Sync {
            stream,
            sync,
            resume: false,
        });
    }

    /// An operator's or a caller's command.
    pub(crate) fn command(&mut self, command: Command) {
        if self.reign.is_some() {
            self.waiting.push(Item::Command {
                stream: None,
                command,
            });
        }
    }

    /// Turns everything that waits into the one entry in flight. Whether it did.
    pub(crate) fn propose(&mut self, now_ns: u64, rng: &mut StdRng) -> bool {
        if self.reign.is_none() || self.in_flight.is_some() {
            return false;
        }
        let is_due = now_ns >= self.ticked_ns + TICK_NS;
        if self.waiting.is_empty() && self.asks.is_empty() && !is_due {
            return false;
        }
        self.ticked_ns = now_ns;
        let mut items = std::mem::take(&mut self.waiting);
        // Some stay behind, so that orders mix.
        if rng.random_range(0..4) == 0 {
            self.waiting = items.split_off(items.len() / 2);
        }
        let mut entry = Entry::default();
        for item in &items {
            match item {
                Item::Sync { sync, .. } => entry.syncs.push(sync.clone()),
                Item::Command { command, .. } => entry.commands.push(command.clone()),
            }
        }
        let mut asks = Vec::new();
        for ((session, key), want) in &self.asks {
            if rng.random_range(0..3) > 0 {
                // Too little, what was asked for, or so much that some is left when
                // its holder freezes.
                let units = match rng.random_range(0..5) {
                    0 => 1,
                    1 | 2 => want.saturating_mul(3).saturating_add(8),
                    _ => *want,
                };
                asks.push((*session, key.clone()));
                entry.grants.push(Grant {
                    session: *session,
                    key: key.clone(),
                    units,
                });
            }
        }
        let Some(stamp) = self.stamp_us(now_ns) else {
            return false;
        };
        entry.now_us = stamp;
        self.in_flight = Some(Round {
            entry,
            items,
            asks,
            stamped_ns: now_ns,
        });
        true
    }

    /// The entry in flight reached a majority.
    pub(crate) fn settle_round(&mut self, rng: &mut StdRng) {
        let Some(round) = self.in_flight.take() else {
            return;
        };
        let applied = self.commit(&round.entry);
        self.note_central(&round, &applied);
        // Grants by session, for those who still listen.
        let mut grants: BTreeMap<SessionId, Vec<DownGrant>> = BTreeMap::new();
        for ((session, key), outcome) in round.asks.into_iter().zip(&applied.grants) {
            if outcome.units > 0 || outcome.refusal.is_some_and(|_| rng.random()) {
                self.asks.remove(&(session, key.clone()));
            }
            grants
                .entry(session)
                .or_default()
                .push(self.grant(session, key, outcome));
        }
        let (mut syncs, mut commands) = (applied.syncs.iter(), applied.commands.iter());
        for item in round.items {
            match item {
                Item::Sync {
                    stream,
                    sync,
                    resume,
                } => {
                    let Some(outcome) = syncs.next() else {
                        continue;
                    };
                    let down = if outcome.expired || outcome.ended && resume {
                        Down::Expired
                    } else if sync.close {
                        Down::Closed
                    } else if resume {
                        if !outcome.renewed {
                            continue;
                        }
                        self.attach(stream, sync.session);
                        self.opened(sync.session)
                    } else {
                        let grants = grants.remove(&sync.session).unwrap_or_default();
                        Down::Synced {
                            seq: sync.seq,
                            renewed: outcome.renewed,
                            grants,
                        }
                    };
                    self.outbox.push((stream, down));
                }
                Item::Command { stream, command } => {
                    let Some(outcome) = commands.next() else {
                        continue;
                    };
                    let down = match (command, outcome) {
                        (Command::Open { session, .. }, CommandOutcome::Opened { .. }) => {
                            if let Some(stream) = stream {
                                self.attach(stream, session);
                            }
                            self.opened(session)
                        }
                        (Command::Settle { session, .. }, CommandOutcome::Settled) => {
                            Down::Settled { session }
                        }
                        _ => continue,
                    };
                    if let Some(stream) = stream {
                        self.outbox.push((stream, down));
                    }
                }
            }
        }
        for (session, grants) in grants {
            if let Some(&stream) = self.newest.get(&session) {
                self.outbox.push((stream, Down::Granted { grants }));
            }
        }
    }

    /// Takes units back from somebody.
    pub(crate) fn recall(&mut self, rng: &mut StdRng) {
        let Some((&session, &stream)) = self.newest.iter().nth(rng.random_range(0..4)) else {
            return;
        };
        for lease in self.ledger().leases(session) {
            let rest = lease.granted_total - lease.spent_total - lease.returned_total;
            if rest > 0 && rng.random() {
                let target = lease.returned_total + rng.random_range(1..=rest);
                self.outbox.push((
                    stream,
                    Down::Recall {
                        key: lease.key,
                        generation: lease.generation,
                        returned_total_target: target,
                        granted_total: lease.granted_total,
                        whole: rng.random(),
                    },
                ));
            }
        }
    }

    /// One replica is replaced by the other's snapshot.
    pub(crate) fn restore_from_snapshot(&mut self) {
        let bytes: Vec<u8> = self.replicas[0].freeze().chunks().flatten().collect();
        self.replicas[1] = Ledger::decode(&mut bytes.as_slice()).expect("a fresh snapshot");
        self.agree();
    }

    fn grant(&self, session: SessionId, key: Key, outcome: &GrantOutcome) -> DownGrant {
        let policy = self.ledger().resolve(&key).map(|(_, _, policy)| Policy {
            limit: policy.kind.limit(),
            timescale_us: policy.timescale_us(),
            max_wait_us: policy.max_wait_us,
            slice_factor_milli: policy.slice_factor_milli,
            ..Policy::default()
        });
        DownGrant {
            key,
            generation: outcome.generation,
            granted_total: outcome.granted_total,
            basis_seq: self.ledger().session(session).map_or(0, |view| view.seq),
            refusal: outcome.refusal,
            policy,
        }
    }

    fn attach(&mut self, stream: Stream, session: SessionId) {
        self.streams.insert(stream, session);
        self.newest.insert(session, stream);
        self.asks.retain(|(asker, _), _| *asker != session);
    }

    fn opened(&self, session: SessionId) -> Down {
        let leases = self.ledger().leases(session);
        let validity_us = self
            .ledger()
            .session(session)
            .map_or(0, |view| view.validity_us);
        Down::Opened {
            session,
            validity_us,
            leases,
        }
    }

    /// Applies an entry everywhere and checks the books.
    fn commit(&mut self, entry: &Entry) -> Applied {
        self.index += 1;
        // What the second replica applies has been on disk.
        let decoded = Entry::decode(&entry.encode()).expect("an entry of our own");
        let applied = self.replicas[0].apply(self.index, entry);
        let again = self.replicas[1].apply(self.index, &decoded);
        assert_eq!(applied, again, "replicas answer alike");
        self.agree();
        applied
    }

    fn agree(&self) {
        let [first, second] = &self.replicas;
        if let Err(violation) = first.check() {
            panic!("entry {}: {violation}", self.index);
        }
        assert_eq!(first.digest(), second.digest(), "entry {}", self.index);
        // Equal digests say that they are equal, unless one of them is wrong.
        if self.index.is_multiple_of(64)
            && let Err(violation) = second.check()
        {
            panic!("entry {}, second replica: {violation}", self.index);
        }
    }

    fn note_central(&mut self, round: &Round, applied: &Applied) {
        for (command, outcome) in round.entry.commands.iter().zip(&applied.commands) {
            if let (Command::Spend { key, units }, CommandOutcome::Spent(outcome)) =
                (command, outcome)
                && outcome.refusal.is_none()
            {
                let central = Central {
                    key: key.clone(),
                    units: *units,
                    at_ns: round.stamped_ns,
                };
                self.central.push(central);
            }
        }
    }
}
