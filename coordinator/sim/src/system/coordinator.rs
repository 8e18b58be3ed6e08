//! The coordinator's side: the real ledger and the real lease policy behind a
//! leader that writes one entry at a time. Knows gateways by their connections
//! only.

mod answers;

use std::collections::BTreeMap;

use leasehold_allotter::Allotter;
use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Rule, SessionId, SettledLease, Sync},
    outcome::{Applied, Refusal},
};
use leasehold_spend::message::{Incoming, Outgoing, SyncOut};
use rand::Rng as _;

use self::answers::{expired, level, totals};
use super::{
    clock::DriftingClock,
    gateway::{Connection, Said},
    setup::Setup,
};
use crate::{SECOND, traffic::Randomness};

/// Cluster time does not stand still for longer while somebody leads.
const TICK_US: u64 = SECOND;

/// A leader's time: `anchor + elapsed`.
#[derive(Debug)]
struct Reign {
    clock: DriftingClock,
    anchor_us: u64,
    won_us: u64,
}

/// Something that waits for an entry.
#[derive(Debug)]
struct Item {
    connection: Connection,
    said: Said,
}

/// Who waits for which part of an entry.
#[derive(Debug)]
enum Slot {
    Open {
        connection: Connection,
        session: SessionId,
    },
    Resume {
        connection: Connection,
        session: SessionId,
    },
    Sync {
        connection: Connection,
        session: SessionId,
        seq: u64,
        close: bool,
        is_regular: bool,
        keys: Vec<usize>,
    },
    Settle {
        connection: Connection,
        session: SessionId,
    },
}

/// An entry on its way to a majority.
#[derive(Debug)]
struct Round {
    entry: Entry,
    slots: Vec<Slot>,
}

/// A refusal, and the highest lane that it is about.
type LaneRefusal = (Refusal, u32);

/// What a message is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Keyed,
    Regular,
    Acknowledgement,
}

/// A stream that speaks for a session.
#[derive(Debug)]
struct Stream {
    session: SessionId,
    seq: u64,
    /// Keys whose policy it was told.
    told: Vec<bool>,
}

/// What the coordinator has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Entries applied.
    pub entries: u64,
    /// Key reports in them.
    pub reports: u64,
    /// Leaders that began to lead.
    pub leaders: u64,
    /// Sessions that expired.
    pub expired: u64,
}

/// The coordinator.
#[derive(Debug)]
pub(super) struct Coordinator {
    ledger: Ledger,
    allotter: Allotter,
    keys: Vec<Key>,
    places: BTreeMap<Key, usize>,
    index: u64,
    reign: Option<Reign>,
    waiting: Vec<Item>,
    in_flight: Option<Round>,
    entry_us: u64,
    more_due: bool,
    streams: BTreeMap<Connection, Stream>,
    live: BTreeMap<SessionId, Connection>,
    rng: Randomness,
    drift_ppm: u32,
    pub(super) outbox: Vec<(Connection, Incoming, Class)>,
    pub(super) load: Load,
}

impl Coordinator {
    /// A cluster with every key's budget in place. Nobody leads yet.
    pub(super) fn new(setup: &Setup, keys: &[String], rng: Randomness) -> Self {
        let keys: Vec<Key> = keys.iter().filter_map(|key| Key::parse(key).ok()).collect();
        let mut commands = vec![Command::PutSettings(setup.settings.clone())];
        for (key, policy) in keys.iter().zip(&setup.policies) {
            if let Ok(pattern) = Pattern::parse(key.as_str()) {
                commands.push(Command::PutBudget {
                    pattern,
                    rule: Rule::Inline(policy.clone()),
                });
            }
        }
        let mut coordinator = Self {
            ledger: Ledger::new(),
            allotter: Allotter::new(),
            places: keys.iter().cloned().zip(0..).collect(),
            keys,
            index: 0,
            reign: None,
            waiting: Vec::new(),
            in_flight: None,
            entry_us: 0,
            more_due: false,
            streams: BTreeMap::new(),
            live: BTreeMap::new(),
            rng,
            drift_ppm: setup.drift_ppm,
            outbox: Vec::new(),
            load: Load::default(),
        };
        coordinator.commit(&Entry {
            commands,
            ..Entry::default()
        });
        coordinator
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The leader is gone, and with it every stream and all that waited. What was
    /// in flight may or may not have reached a majority; nobody is told.
    pub(super) fn lose_leader(&mut self) {
        self.reign = None;
        self.waiting.clear();
        self.streams.clear();
        self.live.clear();
        if let Some(round) = self.in_flight.take()
            && self.rng.random()
        {
            self.commit(&round.entry);
        }
    }

    /// Somebody leads: its time goes on where the ledger's stands.
    pub(super) fn win(&mut self, now_us: u64) {
        let drift = u64::from(self.drift_ppm);
        let rate_ppm = self
            .rng
            .random_range(1_000_000_u64.saturating_sub(drift)..=1_000_000 + drift);
        self.reign = Some(Reign {
            clock: DriftingClock::new(rate_ppm),
            anchor_us: self.ledger.now_us(),
            won_us: now_us,
        });
        self.allotter = Allotter::new();
        self.entry_us = now_us;
        self.more_due = true;
        self.load.leaders += 1;
    }

    /// Cluster time as the leader would stamp it.
    fn stamp_us(&self, now_us: u64) -> Option<u64> {
        let reign = self.reign.as_ref()?;
        let elapsed_ns = reign.clock.reading_ns(now_us.saturating_sub(reign.won_us));
        Some(reign.anchor_us.saturating_add(elapsed_ns / 1_000).max(1))
    }

    /// A connection is gone.
    pub(super) fn lose_connection(&mut self, connection: Connection) {
        if let Some(stream) = self.streams.remove(&connection)
            && self.live.get(&stream.session) == Some(&connection)
        {
            self.live.remove(&stream.session);
            self.allotter.detach(stream.session);
        }
    }

    pub(super) fn receive(&mut self, connection: Connection, said: Said) {
        let is_open = matches!(said, Said::Open(_));
        if self.reign.is_none() || (!is_open && !self.streams.contains_key(&connection)) {
            self.outbox
                .push((connection, Incoming::Moved { leader: None }, Class::Regular));
            return;
        }
        self.waiting.push(Item { connection, said });
    }

    /// Whether an entry is to be written now.
    pub(super) fn is_due(&self, now_us: u64) -> bool {
        self.due_us(now_us).is_some_and(|due_us| due_us <= now_us)
    }

    /// When an entry is due though nobody says anything more; none while one is in
    /// flight.
    pub(super) fn due_us(&self, now_us: u64) -> Option<u64> {
        if self.in_flight.is_some() {
            return None;
        }
        let stamp_us = self.stamp_us(now_us)?;
        if !self.waiting.is_empty() || self.more_due || self.allotter.is_due(stamp_us) {
            return Some(now_us);
        }
        let tick = self.entry_us.saturating_add(TICK_US);
        let wake = self.allotter.next_wake_us().map_or(u64::MAX, |wake_us| {
            let reading_ns = wake_us.saturating_sub(stamp_us).saturating_mul(1_000);
            let clock = self.reign.as_ref().map(|reign| reign.clock);
            now_us.saturating_add(clock.map_or(0, |clock| clock.moment_us(reading_ns)).max(1))
        });
        Some(tick.min(wake))
    }

    /// Turns everything that waits into the entry in flight.
    pub(super) fn propose(&mut self, now_us: u64) {
        let Some(stamp_us) = self.stamp_us(now_us) else {
            return;
        };
        self.entry_us = now_us;
        let mut round = Round {
            entry: Entry {
                now_us: stamp_us,
                ..Entry::default()
            },
            slots: Vec::new(),
        };
        for Item { connection, said } in std::mem::take(&mut self.waiting) {
            self.plan(&mut round, connection, said, stamp_us);
        }
        round.entry.grants = self.allotter.propose(&self.ledger, stamp_us);
        self.in_flight = Some(round);
    }

    fn plan(&mut self, round: &mut Round, connection: Connection, said: Said, stamp_us: u64) {
        match said {
            Said::Open(open) => {
                let resume = open
                    .resume
                    .map(|session| SessionId(u128::from_be_bytes(session.0)));
                match resume {
                    Some(session)
                        if self.ledger.session(session).is_some_and(|view| !view.ended) =>
                    {
                        round.entry.syncs.push(Sync {
                            session,
                            seq: 0,
                            renew: true,
                            close: false,
                            reports: Vec::new(),
                        });
                        round.slots.push(Slot::Resume {
                            connection,
                            session,
                        });
                    }
                    Some(_) => self.outbox.push((connection, expired(), Class::Regular)),
                    None => {
                        let session = SessionId(self.rng.random());
                        round.entry.commands.push(Command::Open {
                            session,
                            holder: format!("gateway-{}", connection.0),
                            identity: String::new(),
                        });
                        round.slots.push(Slot::Open {
                            connection,
                            session,
                        });
                    }
                }
            }
            Said::Message(Outgoing::Sync(sync)) => {
                self.plan_sync(round, connection, sync, false, stamp_us);
            }
            Said::Message(Outgoing::Close(sync)) => {
                self.plan_sync(round, connection, sync, true, stamp_us);
            }
            Said::Message(Outgoing::Settle(settle)) => {
                let session = SessionId(u128::from_be_bytes(settle.session.0));
                let leases = settle
                    .leases
                    .iter()
                    .filter_map(|(key, generation, spent_total)| {
                        Some(SettledLease {
                            key: Key::parse(key).ok()?,
                            generation: *generation,
                            spent_total: *spent_total,
                        })
                    });
                round.entry.commands.push(Command::Settle {
                    session,
                    identity: String::new(),
                    leases: leases.collect(),
                });
                round.slots.push(Slot::Settle {
                    connection,
                    session,
                });
            }
            Said::Message(Outgoing::Leave) => {}
        }
    }

    fn plan_sync(
        &mut self,
        round: &mut Round,
        connection: Connection,
        message: SyncOut,
        close: bool,
        stamp_us: u64,
    ) {
        let Some(stream) = self.streams.get(&connection) else {
            return;
        };
        let session = stream.session;
        let mut reports = Vec::with_capacity(message.reports.len());
        let mut keys: Vec<usize> = Vec::with_capacity(message.reports.len());
        for report in &message.reports {
            let Ok(place) = usize::try_from(report.key_id) else {
                continue;
            };
            let Some(key) = self.keys.get(place) else {
                continue;
            };
            let mut level = level(report);
            if close {
                level.last = true;
                level.want = 0;
                level.waiting = 0;
            }
            self.allotter
                .hear(&self.ledger, stamp_us, session, key, &level);
            if report.generation > 0 {
                reports.push(totals(key, report));
            }
            if !keys.contains(&place) {
                keys.push(place);
            }
        }
        self.load.reports += u64::try_from(message.reports.len()).unwrap_or(0);
        round.slots.push(Slot::Sync {
            connection,
            session,
            seq: message.seq,
            close,
            is_regular: message.is_regular,
            keys,
        });
        round.entry.syncs.push(Sync {
            session,
            seq: message.seq,
            renew: !close,
            close,
            reports,
        });
    }

    /// The entry in flight reached a majority.
    pub(super) fn settle(&mut self) {
        let Some(round) = self.in_flight.take() else {
            return;
        };
        let applied = self.commit(&round.entry);
        let conclusion = self.allotter.conclude(
            &self.ledger,
            applied.now_us,
            &round.entry.grants,
            &applied.grants,
        );
        // Keys that sessions are to hear of, with a refusal or without.
        let mut news: BTreeMap<(SessionId, usize), Option<LaneRefusal>> = BTreeMap::new();
        for (grant, outcome) in round.entry.grants.iter().zip(&applied.grants) {
            if outcome.units > 0
                && let Some(place) = self.places.get(&grant.key)
            {
                news.insert((grant.session, *place), None);
            }
        }
        for refused in conclusion.refusals {
            if let Some(place) = self.places.get(&refused.key) {
                news.insert(
                    (refused.session, *place),
                    Some((refused.refusal, refused.lane)),
                );
            }
        }
        self.answer(&round.slots, &applied, &mut news);
        let mut pushes: BTreeMap<SessionId, Vec<(usize, Option<LaneRefusal>)>> = BTreeMap::new();
        for ((session, place), refusal) in news {
            pushes.entry(session).or_default().push((place, refusal));
        }
        for (session, keys) in pushes {
            let Some(&connection) = self.live.get(&session) else {
                continue;
            };
            let seq = self.streams.get(&connection).map_or(0, |stream| stream.seq);
            let grants = keys
                .into_iter()
                .map(|(place, refusal)| self.grant(connection, session, place, seq, refusal))
                .collect();
            self.outbox
                .push((connection, Incoming::Granted(grants), Class::Keyed));
        }
        for recall in conclusion.recalls {
            let (Some(&connection), Some(&place)) =
                (self.live.get(&recall.session), self.places.get(&recall.key))
            else {
                continue;
            };
            self.outbox.push((
                connection,
                Incoming::Recall {
                    key_id: u32::try_from(place).unwrap_or(u32::MAX),
                    generation: recall.generation,
                    returned_total_target: recall.returned_total_target,
                    granted_total: recall.granted_total,
                    whole: recall.whole,
                },
                Class::Keyed,
            ));
        }
        for session in &applied.expired {
            self.load.expired += 1;
            if let Some(connection) = self.live.remove(session) {
                self.streams.remove(&connection);
                self.allotter.detach(*session);
                self.outbox.push((connection, expired(), Class::Regular));
            }
        }
        self.more_due = applied.more_due;
    }

    fn commit(&mut self, entry: &Entry) -> Applied {
        self.index += 1;
        self.load.entries += 1;
        let applied = self.ledger.apply(self.index, entry);
        debug_assert!(self.ledger.check().is_ok(), "the books are in order");
        applied
    }
}
