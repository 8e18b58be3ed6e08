//! The promise itself: admission instants in real time, judged over every
//! interval. Holders and leaders have clocks that drift, messages are lost,
//! repeated, delayed and reordered, leaders change and stand still, sessions
//! expire, limits are edited. The checker knows nothing of the ledger. One world,
//! one file: its actors mean nothing apart.

use std::collections::BTreeMap;

use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{Applied, CommandOutcome},
    policy::{Kind, Policy},
    settings::Settings,
};
use proptest::prelude::*;

mod charges;

use crate::log::{Dice, Log, key, pattern, policy, report, window};

const DRIFT_PPM: i64 = 100_000;
const TTL_US: u64 = 1_000_000;

fn drift(dice: &mut Dice) -> i64 {
    [-DRIFT_PPM, 0, DRIFT_PPM][usize::try_from(dice.roll(3)).unwrap()]
}

/// What a clock that drifts shows after a real duration.
fn elapsed(real_us: u64, drift_ppm: i64) -> u64 {
    let rate = u128::try_from(1_000_000 + drift_ppm).unwrap();
    u64::try_from(u128::from(real_us) * rate / 1_000_000).unwrap()
}

/// A client's lease: S = G − R − left.
#[derive(Clone, Debug, Default)]
struct Lease {
    generation: u64,
    granted: u64,
    returned: u64,
    left: u64,
    /// Permits that somebody has.
    in_use: u64,
    /// Local times of the latest spends, with units.
    spends: Vec<(u64, u64)>,
}

impl Lease {
    fn spent(&self) -> u64 {
        self.granted - self.returned - self.left - self.in_use
    }
}

struct Holder {
    drift_ppm: i64,
    session: Option<SessionId>,
    opening: Option<(SessionId, u64)>,
    deadline_us: u64,
    seq: u64,
    sent: BTreeMap<u64, u64>,
    lease: Lease,
    /// Leases of older generations, to be reported final.
    old: Vec<Lease>,
}

#[derive(Clone, Debug)]
enum Up {
    Open(SessionId),
    Sync(Sync),
    Settle(SessionId, Vec<SettledLease>),
}

#[derive(Clone, Debug)]
enum Down {
    Opened {
        session: SessionId,
        validity_us: u64,
    },
    Synced {
        session: SessionId,
        seq: u64,
        renewed: bool,
        expired: bool,
    },
    Granted {
        session: SessionId,
        generation: u64,
        granted: u64,
    },
}

struct World {
    log: Log,
    dice: Dice,
    real_us: u64,
    anchor_us: u64,
    leader_from_us: u64,
    leader_drift_ppm: i64,
    holders: Vec<Holder>,
    up: Vec<Up>,
    down: Vec<Down>,
    next_session: u128,
    /// Real instants and units.
    admitted: Vec<(u64, u64)>,
    limit_max: u64,
    backup: Option<Ledger>,
    restores: Restores,
    restored: u128,
    /// Of the budget's kind, which is not edited to another.
    kind: Kind,
    /// How much had been admitted when each period began.
    begun: Vec<usize>,
    /// What was added by hand, by id.
    added: BTreeMap<u64, u64>,
    /// The most permits that were valid at one moment.
    valid_max: u64,
}

/// Whether the cluster is lost now and then, and another one begins from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Restores {
    Never,
    /// Only from backups that have every edit.
    WithEveryEdit,
    FromAnyBackup,
}

impl World {
    fn new(seed: u64, start: &Policy, restores: Restores) -> Self {
        let mut log = Log::new();
        log.command(Command::PutSettings(Settings {
            session_ttl_us: TTL_US,
            sync_interval_us: 200_000,
            max_drift_ppm: u32::try_from(DRIFT_PPM).unwrap(),
            ..Settings::default()
        }));
        log.command(Command::PutBudget {
            pattern: pattern("a"),
            rule: Rule::Inline(start.clone()),
        });
        let mut dice = Dice(seed);
        let holders = (0..3).map(|_| Holder {
            drift_ppm: drift(&mut dice),
            session: None,
            opening: None,
            deadline_us: 0,
            seq: 0,
            sent: BTreeMap::new(),
            lease: Lease::default(),
            old: Vec::new(),
        });
        let holders = holders.collect();
        Self {
            log,
            holders,
            real_us: 1_000,
            anchor_us: 0,
            leader_from_us: 1_000,
            leader_drift_ppm: drift(&mut dice),
            dice,
            up: Vec::new(),
            down: Vec::new(),
            next_session: 1,
            admitted: Vec::new(),
            limit_max: start.kind.limit(),
            backup: None,
            restores,
            restored: 0,
            kind: start.kind.clone(),
            begun: Vec::new(),
            added: BTreeMap::new(),
            valid_max: 0,
        }
    }

    /// The cluster is lost with everything since the backup, and after a while
    /// another one begins. Holders know nothing of it: they spend what they have until
    /// their deadlines, and what was said to the old cluster reaches the new one.
    fn lose_cluster(&mut self) {
        let Some(backup) = self.backup.take() else {
            return;
        };
        self.real_us += self.dice.roll(2) * self.dice.roll(300_000);
        self.restored += 1;
        self.log.begin_from(&backup, self.restored, 0);
        self.anchor_us = self.log.ledger.now_us();
        self.leader_from_us = self.real_us;
        self.leader_drift_ppm = drift(&mut self.dice);
    }

    /// The channel loses, repeats and reorders.
    fn send(&mut self, message: Up) {
        for _ in 0..[0, 1, 1, 1, 1, 2][usize::try_from(self.dice.roll(6)).unwrap()] {
            self.up.push(message.clone());
        }
    }

    fn answer(&mut self, message: Down) {
        for _ in 0..[0, 1, 1, 1, 1, 2][usize::try_from(self.dice.roll(6)).unwrap()] {
            self.down.push(message.clone());
        }
    }

    fn local_us(&self, place: usize) -> u64 {
        elapsed(self.real_us, self.holders[place].drift_ppm)
    }

    fn admit(&mut self, place: usize) {
        let units = 1 + self.dice.roll(3);
        let local_us = self.local_us(place);
        let permits = matches!(self.kind, Kind::Concurrency { .. });
        let releases = permits && self.dice.roll(2) == 0;
        let holder = &mut self.holders[place];
        if releases {
            holder.lease.left += std::mem::take(&mut holder.lease.in_use);
        }
        if holder.session.is_some() && local_us < holder.deadline_us && holder.lease.left >= units {
            holder.lease.left -= units;
            if permits {
                holder.lease.in_use += units;
            } else {
                holder.lease.spends.push((local_us, units));
            }
            self.admitted.push((self.real_us, units));
        }
        self.look_at_permits();
    }

    fn sync(&mut self, place: usize) {
        let local_us = self.local_us(place);
        let states_ages = self.dice.roll(4) > 0;
        let returns = self.dice.roll(4);
        let holder = &mut self.holders[place];
        let Some(session) = holder.session else {
            let id = match holder.opening {
                Some((id, _)) => id,
                None => {
                    let id = SessionId(self.next_session);
                    self.next_session += 1;
                    holder.opening = Some((id, local_us));
                    id
                }
            };
            self.send(Up::Open(id));
            return;
        };
        if returns == 0 {
            let lease = &mut holder.lease;
            let units = lease.left / 2;
            lease.left -= units;
            lease.returned += units;
        }
        let key = key("a");
        let state = |lease: &Lease, last| Report {
            last,
            spent_total: lease.spent(),
            returned_total: lease.returned,
            ages: if states_ages {
                let ages = lease.spends.iter().map(|(at_us, units)| SpentAge {
                    units: *units,
                    age_us: local_us - at_us,
                });
                ages.collect()
            } else {
                Vec::new()
            },
            ..report(&key, lease.generation)
        };
        let mut reports = vec![Report {
            held: holder.lease.in_use,
            ..state(&holder.lease, false)
        }];
        reports.extend(holder.old.iter().map(|lease| state(lease, true)));
        let keep = holder.lease.spends.len().saturating_sub(8);
        holder.lease.spends.drain(..keep);
        holder.seq += 1;
        holder.sent.insert(holder.seq, local_us);
        let seq = holder.seq;
        self.send(Up::Sync(Sync {
            session,
            seq,
            renew: true,
            close: false,
            reports,
        }));
    }

    /// A holder that learns or fears that its session is over voids its leases,
    /// settles, and opens another.
    fn void(&mut self, place: usize) {
        let key = key("a");
        let holder = &mut self.holders[place];
        let Some(session) = holder.session.take() else {
            return;
        };
        let mut leases: Vec<Lease> = std::mem::take(&mut holder.old);
        leases.push(std::mem::take(&mut holder.lease));
        holder.sent.clear();
        holder.seq = 0;
        let settled = leases.iter().map(|lease| SettledLease {
            key: key.clone(),
            generation: lease.generation,
            spent_total: lease.spent(),
        });
        let settled = settled.collect();
        self.send(Up::Settle(session, settled));
    }

    fn lead(&mut self) {
        let now_us =
            self.anchor_us + elapsed(self.real_us - self.leader_from_us, self.leader_drift_ppm);
        let mut entry = Entry {
            now_us,
            ..Entry::default()
        };
        let mut opens = Vec::new();
        for _ in 0..self.dice.roll(6) {
            if self.up.is_empty() {
                break;
            }
            let place = usize::try_from(self.dice.roll(self.up.len() as u64)).unwrap();
            match self.up.swap_remove(place) {
                Up::Sync(sync) => entry.syncs.push(sync),
                Up::Open(session) => {
                    opens.push((entry.commands.len(), session));
                    entry.commands.push(crate::log::open(session));
                }
                Up::Settle(session, leases) => entry.commands.push(Command::Settle {
                    session,
                    identity: String::new(),
                    leases,
                }),
            }
        }
        let mut spends = Vec::new();
        for _ in 0..self.dice.roll(4) {
            let units = 1 + self.dice.roll(4);
            spends.push((entry.commands.len(), units));
            entry.commands.push(Command::Spend {
                key: key("a"),
                units,
            });
        }
        for place in 0..self.holders.len() {
            if let Some(session) = self.holders[place].session
                && self.dice.roll(2) == 0
            {
                entry.grants.push(Grant {
                    session,
                    key: key("a"),
                    units: self.dice.roll(9),
                });
            }
        }
        self.put_charges(&mut entry);
        let applied = self.log.stamped(&entry);
        if applied.rolled {
            self.begun.push(self.admitted.len());
        }
        self.deliver(&entry, &applied, &opens, &spends);
    }

    /// Goes to the very microsecond at which the ledger frees more, and spends.
    fn press(&mut self) {
        let next_us = self
            .log
            .ledger
            .account(&key("a"))
            .and_then(|view| view.next_free_us);
        let Some(next_us) = next_us.filter(|next_us| *next_us < 4_000_000) else {
            return;
        };
        let led_us = (self.log.ledger.now_us() + next_us).saturating_sub(self.anchor_us);
        let rate = u128::try_from(1_000_000 + self.leader_drift_ppm).unwrap();
        let real_us = (u128::from(led_us) * 1_000_000).div_ceil(rate);
        let real_us = self.leader_from_us + u64::try_from(real_us).unwrap();
        self.real_us = self.real_us.max(real_us);
        self.lead();
    }

    fn deliver(
        &mut self,
        entry: &Entry,
        applied: &Applied,
        opens: &[(usize, SessionId)],
        spends: &[(usize, u64)],
    ) {
        for (sync, outcome) in entry.syncs.iter().zip(&applied.syncs) {
            assert!(
                outcome.refused.is_empty(),
                "an honest client is never refused: {outcome:?}"
            );
            self.answer(Down::Synced {
                session: sync.session,
                seq: sync.seq,
                renewed: outcome.renewed,
                expired: outcome.expired,
            });
        }
        for (place, session) in opens {
            if let CommandOutcome::Opened { validity_us, .. } = applied.commands[*place] {
                self.answer(Down::Opened {
                    session: *session,
                    validity_us,
                });
            }
        }
        for (place, units) in spends {
            if let CommandOutcome::Spent(spent) = &applied.commands[*place]
                && spent.refusal.is_none()
            {
                self.admitted.push((self.real_us, *units));
            }
        }
        // Every answer carries G, so a lost one is healed by the next.
        for holder in 0..self.holders.len() {
            if let Some(session) = self.holders[holder].session
                && let Some(lease) = self.log.ledger.lease(session, &key("a"))
            {
                self.answer(Down::Granted {
                    session,
                    generation: lease.generation,
                    granted: lease.granted_total,
                });
            }
        }
    }

    fn receive(&mut self) {
        if self.down.is_empty() {
            return;
        }
        let place = usize::try_from(self.dice.roll(self.down.len() as u64)).unwrap();
        match self.down.swap_remove(place) {
            Down::Opened {
                session,
                validity_us,
            } => {
                for holder in &mut self.holders {
                    if let Some((id, sent_us)) = holder.opening
                        && id == session
                    {
                        holder.opening = None;
                        holder.session = Some(session);
                        holder.deadline_us = sent_us + validity_us;
                    }
                }
            }
            Down::Synced {
                session,
                seq,
                renewed,
                expired,
            } => {
                let Some(place) = self.of(session) else {
                    return;
                };
                if expired {
                    self.void(place);
                    return;
                }
                let validity_us = TTL_US * (1_000_000 - 2 * DRIFT_PPM.unsigned_abs()) / 1_000_000;
                let holder = &mut self.holders[place];
                if renewed && let Some(sent_us) = holder.sent.remove(&seq) {
                    holder.deadline_us = holder.deadline_us.max(sent_us + validity_us);
                }
            }
            Down::Granted {
                session,
                generation,
                granted,
            } => {
                let Some(place) = self.of(session) else {
                    return;
                };
                let holder = &mut self.holders[place];
                let lease = &mut holder.lease;
                if generation > lease.generation {
                    lease.returned += std::mem::take(&mut lease.left);
                    let old = std::mem::take(lease);
                    if old.generation > 0 {
                        holder.old.push(old);
                    }
                    holder.lease.generation = generation;
                }
                let lease = &mut holder.lease;
                if generation == lease.generation && granted > lease.granted {
                    lease.left += granted - lease.granted;
                    lease.granted = granted;
                }
            }
        }
    }

    fn of(&self, session: SessionId) -> Option<usize> {
        self.holders
            .iter()
            .position(|holder| holder.session == Some(session))
    }

    fn edit(&mut self, kinds: &[Kind]) {
        if kinds.is_empty() {
            return;
        }
        let kind = &kinds[usize::try_from(self.dice.roll(kinds.len() as u64)).unwrap()];
        self.limit_max = self.limit_max.max(kind.limit());
        let rule = Rule::Inline(policy(kind.clone()));
        let now_us =
            self.anchor_us + elapsed(self.real_us - self.leader_from_us, self.leader_drift_ppm);
        self.log.stamped(&Entry {
            now_us,
            commands: vec![Command::PutBudget {
                pattern: pattern("a"),
                rule,
            }],
            ..Entry::default()
        });
        if self.restores == Restores::WithEveryEdit {
            self.backup = None;
        }
    }

    fn step(&mut self, kinds: &[Kind]) {
        self.real_us +=
            [0, 1, 500, 5_000, 20_000, 60_000][usize::try_from(self.dice.roll(6)).unwrap()];
        let place = usize::try_from(self.dice.roll(self.holders.len() as u64)).unwrap();
        match self.dice.roll(40) {
            0..12 => self.admit(place),
            12..18 => self.sync(place),
            18..23 => self.lead(),
            23..27 => self.press(),
            27..36 => {
                for _ in 0..self.dice.roll(8) {
                    self.receive();
                }
            }
            36 => {
                // Another leader after a while; cluster time stands still meanwhile.
                self.real_us += self.dice.roll(2) * self.dice.roll(1_500_000);
                self.anchor_us = self.log.ledger.now_us();
                self.leader_from_us = self.real_us;
                self.leader_drift_ppm = drift(&mut self.dice);
            }
            37..39 => self.edit(kinds),
            _ => {
                if self.local_us(place) >= self.holders[place].deadline_us {
                    self.void(place);
                }
                if self.dice.roll(10) == 0 {
                    self.log.restore();
                }
                if self.restores != Restores::Never {
                    match self.dice.roll(6) {
                        0..4 => self.backup = Some(self.log.ledger.clone()),
                        4 => self.lose_cluster(),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The most units above what is allowed in any closed interval between two
/// admissions; `allowed` is a bound times `scale` for an interval's length.
fn worst(admitted: &[(u64, u64)], scale: u128, allowed: impl Fn(u64) -> Option<u128>) -> i128 {
    let mut worst = i128::MIN;
    for (from, (start_us, _)) in admitted.iter().enumerate() {
        let mut units = 0_u128;
        for (at_us, of) in &admitted[from..] {
            let Some(bound) = allowed(at_us - start_us) else {
                break;
            };
            units += u128::from(*of);
            let excess = i128::try_from(units * scale).unwrap() - i128::try_from(bound).unwrap();
            worst = worst.max(excess);
        }
    }
    worst
}

fn play(seed: u64, start: &Policy, kinds: &[Kind], restores: Restores) -> World {
    let steps = if restores == Restores::Never {
        800
    } else {
        2_400
    };
    let mut world = World::new(seed, start, restores);
    for _ in 0..steps {
        world.step(kinds);
    }
    world
}

fn check_window(
    seed: u64,
    limit: u64,
    window_us: u64,
    kinds: &[Kind],
    restores: Restores,
) -> World {
    let world = play(seed, &window(limit, window_us), kinds, restores);
    let bound = u128::from(world.limit_max);
    let excess = worst(&world.admitted, 1, |length_us| {
        (length_us <= window_us).then_some(bound)
    });
    assert!(
        excess <= 0,
        "seed {seed}: {excess} units above {bound} in {window_us} µs"
    );
    world
}

fn check_bucket(
    seed: u64,
    capacity: u64,
    (refill, period_us): (u64, u64),
    edits: &[u64],
    restores: Restores,
) -> World {
    let kind = |capacity| Kind::TokenBucket {
        capacity,
        refill,
        refill_period_us: period_us,
    };
    let kinds: Vec<Kind> = edits.iter().map(|capacity| kind(*capacity)).collect();
    let world = play(seed, &policy(kind(capacity)), &kinds, restores);
    let bound = u128::from(world.limit_max) * u128::from(period_us);
    let excess = worst(&world.admitted, u128::from(period_us), |length_us| {
        Some(bound + u128::from(refill) * u128::from(length_us + 1))
    });
    assert!(
        excess <= 0,
        "seed {seed}: more than {capacity} + {refill} per {period_us} µs"
    );
    world
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 16))]

    #[test]
    fn no_interval_of_a_window_holds_more_than_the_limit(
        seed: u64,
        limit in 1..25_u64,
        window_us in prop_oneof![Just(100_000_u64), 100_000..3_000_000_u64],
    ) {
        check_window(seed, limit, window_us, &[], Restores::Never);
    }

    #[test]
    fn no_interval_of_a_window_holds_more_than_the_largest_limit_in_force(
        seed: u64,
        low in 0..6_u64,
        high in 12..25_u64,
        window_us in 100_000..3_000_000_u64,
    ) {
        let kinds = [low, high, 10].map(|limit| Kind::SlidingWindow { limit, window_us });
        check_window(seed, 10, window_us, &kinds, Restores::Never);
    }

    #[test]
    fn no_interval_of_a_bucket_holds_more_than_capacity_and_refill(
        seed: u64,
        capacity in 1..25_u64,
        refill in 1..30_u64,
        period_us in 100_000..3_000_000_u64,
        edits in prop::collection::vec(0..25_u64, 0..4),
    ) {
        check_bucket(seed, capacity, (refill, period_us), &edits, Restores::Never);
    }

    #[test]
    fn no_interval_of_a_window_holds_more_than_the_largest_limit_across_restores(
        seed: u64,
        low in 0..6_u64,
        high in 12..25_u64,
        window_us in 100_000..1_000_000_u64,
    ) {
        let kinds = [low, high, 10].map(|limit| Kind::SlidingWindow { limit, window_us });
        check_window(seed, 10, window_us, &kinds, Restores::FromAnyBackup);
    }

    #[test]
    fn no_interval_of_a_bucket_holds_more_than_capacity_and_refill_across_restores(
        seed: u64,
        capacity in 1..25_u64,
        refill in 1..30_u64,
        period_us in 100_000..1_000_000_u64,
        edits in prop::collection::vec(0..25_u64, 0..4),
    ) {
        check_bucket(seed, capacity, (refill, period_us), &edits, Restores::WithEveryEdit);
    }
}

#[test]
fn the_runs_admit_enough_to_mean_something() {
    let admitted =
        |worlds: Vec<World>| -> usize { worlds.iter().map(|world| world.admitted.len()).sum() };
    let windows = (0..5).map(|seed| check_window(seed, 20, 300_000, &[], Restores::Never));
    let windows = admitted(windows.collect());
    let buckets = (0..5).map(|seed| check_bucket(seed, 10, (20, 300_000), &[], Restores::Never));
    let buckets = admitted(buckets.collect());
    assert!(
        windows > 250 && buckets > 250,
        "{windows} and {buckets} admissions"
    );
}

#[test]
fn the_runs_restore_often_enough_to_mean_something() {
    for restores in [Restores::FromAnyBackup, Restores::WithEveryEdit] {
        let windows = (0..5).map(|seed| check_window(seed, 20, 300_000, &[], restores));
        let buckets = (0..5).map(|seed| check_bucket(seed, 10, (20, 300_000), &[], restores));
        for worlds in [windows.collect::<Vec<_>>(), buckets.collect()] {
            let restored: u128 = worlds.iter().map(|world| world.restored).sum();
            let admitted: usize = worlds.iter().map(|world| world.admitted.len()).sum();
            assert!(
                restored >= 10 && admitted > 250,
                "{restored} restores, {admitted} admissions"
            );
        }
    }
}
