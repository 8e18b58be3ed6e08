//! One run: virtual time, a bad network, leaders and gateways that come and go.
//! Knows what happens when, not what it means to either side.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use leasehold_checkers::{Admission, Judgement, Promise};
use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    entry::{Command, Rule},
    policy::{Kind, Policy},
    settings::Settings,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    clock::DriftingClock,
    coordinator::Coordinator,
    gateway::Gateway,
    wire::{Down, Stream, Up},
};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const TTL_MS: u64 = 3_000;
pub(crate) const SYNC_INTERVAL_MS: u64 = 500;
const DRIFT_PPM: u32 = 100_000;
const RUN_MS: u64 = 60_000;
const GATEWAYS: usize = 3;

/// What happens at some moment.
enum Event {
    Up(Stream, Up),
    Down(Stream, Down),
    /// A broken connection is noticed.
    Broken(Stream),
    Propose,
    Settle,
    LoseLeader,
    Win,
    Recall,
    Central,
    Edit,
    Snapshot,
    ChangeRate,
    /// And again later, if so said.
    Spend(usize, bool),
    Wake(usize),
    Freeze(usize),
    Close(usize),
    Crash(usize, bool),
}

/// The promises of a run's keys, by name.
pub(crate) struct Budget {
    pub(crate) key: Key,
    pub(crate) promise: Promise,
}

pub(crate) struct World {
    now_ns: u64,
    rng: StdRng,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Event>,
    next_event: u64,
    next_stream: u64,
    /// By live stream: its gateway's place.
    owners: BTreeMap<Stream, usize>,
    coordinator: Coordinator,
    settling: bool,
    gateways: Vec<Gateway>,
    frozen_until: Vec<u64>,
    /// How far apart a gateway's bursts are at most.
    pace_ms: Vec<u64>,
    budgets: Vec<Budget>,
    admissions: BTreeMap<Key, Vec<Admission>>,
    /// How bad this run's network is, in percent.
    loss: u32,
}

/// What a run came to.
pub(crate) struct Report {
    pub(crate) judgements: Vec<(Key, Judgement)>,
    pub(crate) leader_changes: u64,
    pub(crate) expired_sessions: u64,
}

fn policy(kind: Kind) -> Policy {
    Policy::new(kind)
}

fn budgets(rng: &mut StdRng) -> (Vec<Budget>, Vec<Command>) {
    let windows_ms = [200, 1_000, 2_900, 7_000];
    let mut budgets = Vec::new();
    let mut commands = vec![Command::PutSettings(Settings {
        session_ttl_us: TTL_MS * 1_000,
        sync_interval_us: SYNC_INTERVAL_MS * 1_000,
        max_drift_ppm: DRIFT_PPM,
        ..Settings::default()
    })];
    for number in 0..3 {
        let key = Key::parse(&format!("model/key-{number}")).expect("a plain key");
        let window_us = windows_ms[rng.random_range(0..windows_ms.len())] * 1_000;
        let limit = rng.random_range(1..60);
        let (kind, promise) = if number == 2 {
            let refill = rng.random_range(1..20);
            (
                Kind::TokenBucket {
                    capacity: limit,
                    refill,
                    refill_period_us: 1_000_000,
                },
                Promise::Bucket {
                    capacity: limit,
                    refill,
                    refill_period_us: 1_000_000,
                    tick_us: 1,
                },
            )
        } else {
            (
                Kind::SlidingWindow { limit, window_us },
                Promise::Window { limit, window_us },
            )
        };
        let pattern = Pattern::parse(key.as_str()).expect("a plain pattern");
        commands.push(Command::PutBudget {
            pattern,
            rule: Rule::Inline(policy(kind)),
        });
        budgets.push(Budget { key, promise });
    }
    (budgets, commands)
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let (budgets, commands) = budgets(&mut rng);
        let loss = [0, 2, 15][rng.random_range(0..3)];
        let keys: Vec<Key> = budgets.iter().map(|budget| budget.key.clone()).collect();
        let now_ns = 1_000 * MS;
        let gateways = (0..GATEWAYS)
            .map(|_| {
                let clock = DriftingClock::new(now_ns, u64::from(DRIFT_PPM), &mut rng);
                Gateway::new(clock, &keys, now_ns)
            })
            .collect();
        let mut world = Self {
            now_ns,
            rng,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
            next_event: 0,
            next_stream: 1,
            owners: BTreeMap::new(),
            coordinator: Coordinator::new(commands),
            settling: false,
            gateways,
            frozen_until: vec![0; GATEWAYS],
            pace_ms: vec![400; GATEWAYS],
            budgets,
            admissions: BTreeMap::new(),
            loss,
        };
        for event in [
            Event::Win,
            Event::Propose,
            Event::Recall,
            Event::Central,
            Event::Edit,
            Event::Snapshot,
            Event::ChangeRate,
        ] {
            world.within(1, event);
        }
        for place in 0..GATEWAYS {
            world.within(1, Event::Spend(place, true));
            world.within(1, Event::Wake(place));
            world.within(20_000, Event::Freeze(place));
            world.within(40_000, Event::Close(place));
            world.within(40_000, Event::Crash(place, true));
        }
        world
    }

    /// Runs to the end and judges.
    pub(crate) fn run(mut self) -> Report {
        let mut expired_sessions = 0;
        while let Some(Reverse((at_ns, number))) = self.events.pop() {
            if at_ns > RUN_MS * MS {
                break;
            }
            self.now_ns = at_ns;
            if let Some(event) = self.what.remove(&number) {
                self.happen(event);
                self.collect();
            }
        }
        for central in std::mem::take(&mut self.coordinator.central) {
            let at = Admission {
                units: central.units,
                call_ns: central.at_ns,
                return_ns: central.at_ns,
            };
            self.admissions.entry(central.key).or_default().push(at);
        }
        for gateway in &self.gateways {
            expired_sessions += gateway.expired_sessions;
        }
        let judge = |budget: &Budget| {
            let log = self
                .admissions
                .get(&budget.key)
                .map_or(&[][..], Vec::as_slice);
            (budget.key.clone(), budget.promise.judge(log))
        };
        Report {
            judgements: self.budgets.iter().map(judge).collect(),
            leader_changes: self.coordinator.leader_changes,
            expired_sessions,
        }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.events.push(Reverse((at_ns, self.next_event)));
        self.what.insert(self.next_event, event);
        self.next_event += 1;
    }

    /// At some moment within so many milliseconds.
    fn within(&mut self, ms: u64, event: Event) {
        let at_ns = self.now_ns + self.rng.random_range(1..=ms * MS);
        self.at(at_ns, event);
    }

    /// Most messages are quick, some take their time, a few outlive a session.
    fn delay_ns(&mut self) -> u64 {
        match self.rng.random_range(0..100) {
            0 => self.rng.random_range(0..2 * TTL_MS * MS),
            1..=9 => self.rng.random_range(0..TTL_MS / 4 * MS),
            _ => self.rng.random_range(0..5 * MS),
        }
    }

    /// Whether a message is lost; else in how many copies it arrives.
    fn copies(&mut self) -> usize {
        if self.rng.random_range(0..100) < self.loss {
            return 0;
        }
        1 + usize::from(self.rng.random_range(0..100) < self.loss)
    }

    fn wakes_ns(&self, place: usize) -> u64 {
        self.frozen_until[place].max(self.gateways[place].busy_until_ns)
    }

    fn is_frozen(&self, place: usize) -> bool {
        self.wakes_ns(place) > self.now_ns
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Up(stream, message) => {
                self.coordinator.receive(stream, message, &mut self.rng);
            }
            Event::Down(stream, message) => self.deliver(stream, message),
            Event::Broken(stream) => {
                if let Some(&place) = self.owners.get(&stream) {
                    if self.is_frozen(place) {
                        self.at(self.wakes_ns(place), Event::Broken(stream));
                    } else {
                        self.owners.remove(&stream);
                        self.gateways[place].broken(stream, self.now_ns);
                    }
                }
            }
            Event::Propose => {
                if self.coordinator.propose(self.now_ns, &mut self.rng) {
                    self.within(4, Event::Settle);
                    self.settling = true;
                }
                let pause = if self.rng.random_range(0..20) == 0 {
                    1_000
                } else {
                    20
                };
                self.within(pause, Event::Propose);
            }
            Event::Settle => {
                if std::mem::take(&mut self.settling) {
                    self.coordinator.settle_round(&mut self.rng);
                }
            }
            Event::LoseLeader => {
                self.coordinator.lose_leader(&mut self.rng);
                self.settling = false;
                for stream in self.owners.keys().copied().collect::<Vec<_>>() {
                    self.within(1_500, Event::Broken(stream));
                }
                let pause = [50, 1_000, 2 * TTL_MS][self.rng.random_range(0..3)];
                self.within(pause, Event::Win);
            }
            Event::Win => {
                let clock = DriftingClock::new(self.now_ns, u64::from(DRIFT_PPM), &mut self.rng);
                self.coordinator.win(self.now_ns, clock);
                let reign = [1_000, 10_000, 30_000][self.rng.random_range(0..3)];
                self.within(reign, Event::LoseLeader);
            }
            Event::Recall => {
                self.coordinator.recall(&mut self.rng);
                self.within(3_000, Event::Recall);
            }
            Event::Central => {
                let budget = &self.budgets[self.rng.random_range(0..self.budgets.len())];
                let units = self.rng.random_range(1..4);
                self.coordinator.command(Command::Spend {
                    key: budget.key.clone(),
                    units,
                });
                self.within(1_000, Event::Central);
            }
            Event::Edit => {
                self.edit();
                self.within(8_000, Event::Edit);
            }
            Event::Snapshot => {
                self.coordinator.restore_from_snapshot();
                self.within(20_000, Event::Snapshot);
            }
            Event::ChangeRate => {
                for gateway in &mut self.gateways {
                    gateway
                        .clock
                        .change_rate(self.now_ns, u64::from(DRIFT_PPM), &mut self.rng);
                }
                self.within(10_000, Event::ChangeRate);
            }
            Event::Spend(place, again) => {
                if !self.is_frozen(place) {
                    let burst = self.rng.random_range(1..8);
                    for _ in 0..burst {
                        if self.is_frozen(place) {
                            break;
                        }
                        let key = self.rng.random_range(0..self.budgets.len());
                        let units = if self.rng.random_range(0..4) > 0 {
                            1
                        } else {
                            self.rng.random_range(1..6)
                        };
                        self.gateways[place].spend(key, units, self.now_ns, &mut self.rng);
                    }
                }
                // Some flood while others sit on what they were granted.
                if self.rng.random_range(0..20) == 0 {
                    self.pace_ms[place] = [40, 400, 2_500][self.rng.random_range(0..3)];
                }
                let pause = self.pace_ms[place];
                if again {
                    self.within(pause, Event::Spend(place, true));
                }
            }
            Event::Wake(place) => {
                if !self.is_frozen(place) {
                    self.gateways[place].work(self.now_ns, &mut self.rng);
                }
                self.within(50, Event::Wake(place));
            }
            Event::Freeze(place) => {
                // Often it wakes when its session is about to be over.
                let ms = match self.rng.random_range(0..4) {
                    0 | 1 => TTL_MS * 7 / 10..TTL_MS * 13 / 10,
                    2 => 1..TTL_MS / 2,
                    _ => 1..3 * TTL_MS,
                };
                self.frozen_until[place] = self.now_ns + self.rng.random_range(ms) * MS;
                // The first thing it does again is to spend.
                self.at(self.frozen_until[place], Event::Spend(place, false));
                self.within(20_000, Event::Freeze(place));
            }
            Event::Close(place) => {
                if !self.is_frozen(place) {
                    self.gateways[place].close(self.now_ns, &mut self.rng);
                    self.within(3_000, Event::Crash(place, false));
                }
                self.within(40_000, Event::Close(place));
            }
            Event::Crash(place, again) => {
                let streams: Vec<Stream> = self
                    .owners
                    .iter()
                    .filter(|(_, owner)| **owner == place)
                    .map(|(s, _)| *s)
                    .collect();
                for stream in streams {
                    self.owners.remove(&stream);
                    self.coordinator.lose_stream(stream);
                }
                self.take_admissions(place);
                let clock = DriftingClock::new(self.now_ns, u64::from(DRIFT_PPM), &mut self.rng);
                let keys: Vec<Key> = self
                    .budgets
                    .iter()
                    .map(|budget| budget.key.clone())
                    .collect();
                self.gateways[place] = Gateway::new(clock, &keys, self.now_ns);
                if again {
                    self.within(40_000, Event::Crash(place, true));
                }
            }
        }
    }

    /// Lowers or restores a limit: judged by the largest.
    fn edit(&mut self) {
        let budget = &self.budgets[self.rng.random_range(0..self.budgets.len())];
        let share = |limit: u64, rng: &mut StdRng| {
            if rng.random() {
                limit
            } else {
                limit.div_ceil(3)
            }
        };
        let kind = match budget.promise {
            Promise::Window { limit, window_us } => Kind::SlidingWindow {
                limit: share(limit, &mut self.rng),
                window_us,
            },
            Promise::Bucket {
                capacity,
                refill,
                refill_period_us,
                ..
            } => Kind::TokenBucket {
                capacity: share(capacity, &mut self.rng),
                refill,
                refill_period_us,
            },
        };
        let pattern = Pattern::parse(budget.key.as_str()).expect("a plain pattern");
        let command = if self.rng.random_range(0..5) == 0 {
            Command::DeleteBudget { pattern }
        } else {
            Command::PutBudget {
                pattern,
                rule: Rule::Inline(policy(kind)),
            }
        };
        self.coordinator.command(command);
    }

    fn deliver(&mut self, stream: Stream, message: Down) {
        let Some(&place) = self.owners.get(&stream) else {
            return;
        };
        if self.is_frozen(place) {
            // It lies in a socket's buffer.
            self.at(self.wakes_ns(place), Event::Down(stream, message));
            return;
        }
        self.gateways[place].receive(stream, message, self.now_ns, &mut self.rng);
    }

    /// Sends what both sides have to say, and notes what was admitted.
    fn collect(&mut self) {
        for place in 0..self.gateways.len() {
            self.take_admissions(place);
            if self.gateways[place].wants_stream(self.now_ns) && !self.is_frozen(place) {
                let stream = Stream(self.next_stream);
                self.next_stream += 1;
                self.owners.insert(stream, place);
                self.gateways[place].connected(stream, self.now_ns);
                // Most connections end by a leader's death, some by themselves.
                if self.rng.random_range(0..3) == 0 {
                    self.within(10_000, Event::Broken(stream));
                }
            }
            for (leaves_ns, stream, message) in std::mem::take(&mut self.gateways[place].outbox) {
                for _ in 0..self.copies() {
                    let at_ns = leaves_ns.max(self.now_ns) + self.delay_ns();
                    self.at(at_ns, Event::Up(stream, message.clone()));
                }
            }
        }
        for (stream, message) in std::mem::take(&mut self.coordinator.outbox) {
            for _ in 0..self.copies() {
                let at_ns = self.now_ns + self.delay_ns();
                self.at(at_ns, Event::Down(stream, message.clone()));
            }
        }
    }

    fn take_admissions(&mut self, place: usize) {
        for (key, admission) in std::mem::take(&mut self.gateways[place].admissions) {
            self.admissions
                .entry(self.budgets[key].key.clone())
                .or_default()
                .push(admission);
        }
    }
}
