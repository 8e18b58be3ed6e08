//! The ledger beside a naive model of one account: a window is the list of all
//! spends with their dates, a bucket an exact fraction, and nothing is indexed,
//! cached or dropped early. Both see the same random entries.

use std::collections::BTreeMap;

use leasehold_key::Key;
use leasehold_ledger::{
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{Code, CommandOutcome},
    policy::Kind,
    settings::Settings,
};
use proptest::prelude::*;

use crate::log::{Log, key, open, pattern, policy, report};

const DRIFT_PPM: u32 = 1_000;
const SCALE: u128 = 1_000_000;
const TTL_US: u64 = 2_000_000;

/// What counts, naively.
#[derive(Clone, Debug)]
enum Counted {
    /// Every unit that may still count, with its date.
    Window {
        window_us: u64,
        spends: Vec<(u64, u64)>,
    },
    /// Parts of `per` that have not flowed back; a unit is `per` parts.
    Bucket {
        flow: u128,
        per: u128,
        parts: u128,
        settled_us: u64,
    },
}

fn hold(window_us: u64) -> u64 {
    let scaled = u128::from(window_us) * (SCALE + u128::from(DRIFT_PPM));
    u64::try_from(scaled.div_ceil(SCALE)).unwrap() + 1
}

fn rate(refill: u64, period_us: u64) -> (u128, u128) {
    (
        u128::from(refill) * SCALE,
        u128::from(period_us) * (SCALE + u128::from(DRIFT_PPM)),
    )
}

impl Counted {
    fn new(kind: &Kind, now_us: u64) -> Self {
        match *kind {
            Kind::SlidingWindow { window_us, .. } => Self::Window {
                window_us,
                spends: Vec::new(),
            },
            Kind::TokenBucket {
                refill,
                refill_period_us,
                ..
            } => {
                let (flow, per) = rate(refill, refill_period_us);
                Self::Bucket {
                    flow,
                    per,
                    parts: 0,
                    settled_us: now_us,
                }
            }
        }
    }

    fn settle(&mut self, now_us: u64) {
        match self {
            Self::Window { window_us, spends } => {
                spends.retain(|(date_us, _)| date_us + hold(*window_us) > now_us);
            }
            Self::Bucket {
                flow,
                parts,
                settled_us,
                ..
            } => {
                *parts = parts.saturating_sub(u128::from(now_us - *settled_us) * *flow);
                *settled_us = now_us;
            }
        }
    }

    fn units(&self) -> u64 {
        match self {
            Self::Window { spends, .. } => spends.iter().map(|(_, units)| units).sum(),
            Self::Bucket { per, parts, .. } => u64::try_from(parts.div_ceil(*per)).unwrap(),
        }
    }

    fn charge(&mut self, units: u64, date_us: u64) {
        match self {
            Self::Window { spends, .. } => spends.push((date_us, units)),
            Self::Bucket { per, parts, .. } => *parts += u128::from(units) * *per,
        }
    }

    /// When `units` of what counts no longer count.
    fn drained_when(&self, units: u64) -> Option<u64> {
        if units > self.units() {
            return None;
        }
        match self {
            Self::Window { window_us, spends } => {
                let mut times: Vec<(u64, u64)> = spends
                    .iter()
                    .map(|(date_us, units)| (date_us + hold(*window_us), *units))
                    .collect();
                times.sort_unstable();
                let mut sum = 0;
                times.into_iter().find_map(|(when_us, of)| {
                    sum += of;
                    (sum >= units).then_some(when_us)
                })
            }
            Self::Bucket {
                flow,
                per,
                parts,
                settled_us,
            } => {
                let stays = u128::from(self.units() - units) * *per;
                Some(settled_us + u64::try_from((parts - stays).div_ceil(*flow)).unwrap())
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Lease {
    generation: u64,
    granted: u64,
    spent: u64,
    returned: u64,
    first_us: u64,
    epoch: u64,
    misbehaved: bool,
}

impl Lease {
    fn outstanding(&self) -> u64 {
        self.granted - self.spent - self.returned
    }
}

#[derive(Clone, Debug)]
struct Holder {
    deadline_us: u64,
    seq: u64,
    ended: bool,
    leases: Vec<Lease>,
}

/// Presumed units of a session that is gone.
#[derive(Clone, Debug)]
struct Ghost {
    generation: u64,
    spent: u64,
    presumed: u64,
    date_us: u64,
    epoch: u64,
}

/// The naive books.
struct Model {
    now_us: u64,
    kind: Kind,
    counted: Counted,
    epoch: u64,
    holders: BTreeMap<SessionId, Holder>,
    ghosts: BTreeMap<SessionId, Vec<Ghost>>,
    /// Keys without an account start with nothing free at this time.
    strict_from_us: Option<u64>,
    exists: bool,
}

impl Model {
    fn limit(&self) -> u64 {
        match self.kind {
            Kind::SlidingWindow { limit, .. } => limit,
            Kind::TokenBucket { capacity, .. } => capacity,
        }
    }

    fn outstanding(&self) -> u64 {
        self.holders
            .values()
            .flat_map(|holder| &holder.leases)
            .map(Lease::outstanding)
            .sum()
    }

    fn used(&self) -> u64 {
        self.counted.units() + self.outstanding()
    }

    fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    fn free_when(&self, units: u64) -> Option<u64> {
        let may_count = self
            .limit()
            .checked_sub(self.outstanding())?
            .checked_sub(units)?;
        match self.counted.units().saturating_sub(may_count) {
            0 => Some(self.now_us),
            excess => self.counted.drained_when(excess),
        }
    }

    /// An account that is not there begins with the rule's books.
    fn appear(&mut self, index: u64) {
        if !self.exists {
            self.exists = true;
            self.epoch = index;
        }
    }

    /// What a key without an account would have.
    fn fresh(&mut self) {
        if self.exists {
            return;
        }
        self.counted = Counted::new(&self.kind, self.strict_from_us.unwrap_or(self.now_us));
        if let Some(at_us) = self.strict_from_us {
            self.counted.charge(self.limit(), at_us);
        }
        self.counted.settle(self.now_us);
    }

    fn report(&mut self, id: SessionId, report: &Report, close: bool) {
        let now_us = self.now_us;
        let Some(holder) = self.holders.get_mut(&id) else {
            return;
        };
        let Some(place) = holder
            .leases
            .iter()
            .position(|lease| lease.generation == report.generation)
        else {
            return;
        };
        let last = report.last || (close && report.held == 0);
        if last && report.held > 0 {
            return;
        }
        let lease = &mut holder.leases[place];
        let spent = lease.spent.max(report.spent_total);
        let returned = lease.returned.max(report.returned_total);
        if spent.saturating_add(returned) > lease.granted {
            lease.misbehaved = true;
            return;
        }
        // One date per unit, the youngest first.
        let mut ages: Vec<u64> = Vec::new();
        for age in &report.ages {
            ages.extend(std::iter::repeat_n(
                age.age_us,
                usize::try_from(age.units).unwrap(),
            ));
        }
        ages.sort_unstable();
        let new = usize::try_from(spent - lease.spent).unwrap();
        let covered = new.min(ages.len());
        let first_us = lease.first_us;
        lease.spent = spent;
        lease.returned = returned;
        if last {
            holder.leases.remove(place);
        }
        for _ in covered..new {
            self.counted.charge(1, now_us);
        }
        for age_us in &ages[..covered] {
            self.counted
                .charge(1, now_us.saturating_sub(*age_us).max(first_us));
        }
        self.counted.settle(now_us);
    }

    fn finish(&mut self, id: SessionId) {
        let Some(holder) = self.holders.get_mut(&id) else {
            return;
        };
        if holder.leases.is_empty() {
            self.holders.remove(&id);
            self.ghosts.insert(id, Vec::new());
        } else {
            holder.ended = true;
        }
    }

    fn expire(&mut self) -> Vec<SessionId> {
        let mut due: Vec<(u64, SessionId)> = self
            .holders
            .iter()
            .filter(|(_, holder)| holder.deadline_us <= self.now_us)
            .map(|(id, holder)| (holder.deadline_us, *id))
            .collect();
        due.sort_unstable();
        for (deadline_us, id) in &due {
            let holder = self.holders.remove(id).unwrap();
            let ghosts = self.ghosts.entry(*id).or_default();
            for lease in holder.leases {
                let presumed = lease.outstanding();
                self.counted.charge(presumed, *deadline_us);
                ghosts.push(Ghost {
                    generation: lease.generation,
                    spent: lease.spent,
                    presumed,
                    date_us: *deadline_us,
                    epoch: self.epoch,
                });
            }
        }
        self.counted.settle(self.now_us);
        due.into_iter().map(|(_, id)| id).collect()
    }

    fn settle(&mut self, id: SessionId, leases: &[SettledLease], key: &Key) {
        if self.holders.contains_key(&id) {
            for lease in leases {
                let stated = Report {
                    last: true,
                    spent_total: lease.spent_total,
                    ..report(key, lease.generation)
                };
                self.report(id, &stated, false);
            }
            self.finish(id);
            return;
        }
        let Some(ghosts) = self.ghosts.get_mut(&id) else {
            return;
        };
        for lease in leases {
            let Some(place) = ghosts
                .iter()
                .position(|ghost| ghost.generation == lease.generation)
            else {
                continue;
            };
            let ghost = ghosts.remove(place);
            let spent = lease
                .spent_total
                .saturating_sub(ghost.spent)
                .min(ghost.presumed);
            if let Counted::Window { window_us, spends } = &mut self.counted
                && self.exists
                && ghost.epoch == self.epoch
                && ghost.date_us + hold(*window_us) > self.now_us
            {
                spends.push((ghost.date_us, 0));
                let mut refund = ghost.presumed - spent;
                for (date_us, units) in spends.iter_mut() {
                    if *date_us == ghost.date_us {
                        let taken = refund.min(*units);
                        *units -= taken;
                        refund -= taken;
                    }
                }
                assert_eq!(refund, 0, "presumed units are where they were charged");
                spends.retain(|(_, units)| *units > 0);
            }
        }
    }

    fn edit(&mut self, kind: &Kind, index: u64) {
        let old = std::mem::replace(&mut self.kind, kind.clone());
        let outstanding = self.outstanding();
        let forgets = match (&old, kind) {
            (Kind::SlidingWindow { window_us: old, .. }, Kind::SlidingWindow { window_us, .. }) => {
                window_us > old
            }
            (Kind::TokenBucket { .. }, Kind::TokenBucket { .. }) => false,
            _ => true,
        };
        if forgets {
            self.strict_from_us = Some(self.now_us);
        }
        if !self.exists {
            return;
        }
        let remainder = self
            .limit()
            .saturating_sub(self.counted.units() + outstanding);
        match (&mut self.counted, kind) {
            (Counted::Window { window_us, .. }, Kind::SlidingWindow { window_us: new, .. }) => {
                if *window_us != *new {
                    self.epoch = index;
                }
                *window_us = *new;
                self.counted.settle(self.now_us);
                if forgets {
                    self.counted.charge(remainder, self.now_us);
                }
            }
            (
                Counted::Bucket {
                    flow, per, parts, ..
                },
                Kind::TokenBucket {
                    refill,
                    refill_period_us,
                    ..
                },
            ) => {
                let (new_flow, new_per) = rate(*refill, *refill_period_us);
                let whole = parts.div_ceil(*per);
                let progress = whole * *per - *parts;
                *parts = whole * new_per - progress * new_per / *per;
                *flow = new_flow;
                *per = new_per;
            }
            (counted, kind) => {
                let units = counted.units();
                *counted = Counted::new(kind, self.now_us);
                let least = self.limit().saturating_sub(outstanding);
                self.counted.charge(units.max(least), self.now_us);
                self.epoch = index;
            }
        }
    }

    /// The account is dropped when nothing of it matters.
    fn drop_idle(&mut self) {
        if self.exists
            && self.counted.units() == 0
            && self.holders.values().all(|holder| holder.leases.is_empty())
        {
            self.exists = false;
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Open(u8),
    End(u8),
    Grant(u8, u64),
    Spend(u64),
    /// Session, lease from the newest, spent and returned beyond the known, ages,
    /// held, last, close, renew, how far the message is out of order.
    Sync(
        u8,
        u8,
        u64,
        u64,
        Vec<(u64, u64)>,
        u64,
        bool,
        bool,
        bool,
        u64,
    ),
    Settle(u8, u8, u64),
    Edit(Kind),
}

fn kind() -> impl Strategy<Value = Kind> {
    let time = prop_oneof![100_000..400_000_u64, Just(300_000), Just(1_000_000)];
    prop_oneof![
        (0..30_u64, time.clone())
            .prop_map(|(limit, window_us)| Kind::SlidingWindow { limit, window_us }),
        (0..30_u64, 1..40_u64, time).prop_map(|(capacity, refill, refill_period_us)| {
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ages = prop::collection::vec((0..6_u64, prop_oneof![0..500_000_u64, Just(1 << 40)]), 0..4);
    let rare = || prop::bool::weighted(0.15);
    prop_oneof![
        2 => (0..3_u8).prop_map(Op::Open),
        1 => (0..3_u8).prop_map(Op::End),
        8 => (0..3_u8, 0..15_u64).prop_map(|(session, units)| Op::Grant(session, units)),
        6 => (0..12_u64).prop_map(Op::Spend),
        12 => (
            (0..3_u8, 0..2_u8, 0..6_u64, 0..4_u64, ages),
            (prop_oneof![4 => Just(0), 1 => 1..3_u64], rare(), prop::bool::weighted(0.05),
             prop::bool::weighted(0.9), prop_oneof![5 => Just(0), 1 => 1..3_u64]),
        )
            .prop_map(|((session, lease, spent, returned, ages), (held, last, close, renew, late))| {
                Op::Sync(session, lease, spent, returned, ages, held, last, close, renew, late)
            }),
        3 => (0..6_u8, 0..3_u8, 0..10_u64)
            .prop_map(|(session, lease, spent)| Op::Settle(session, lease, spent)),
        1 => kind().prop_map(Op::Edit),
    ]
}

/// One entry: how much time passes first, and what is in it.
fn step() -> impl Strategy<Value = (u64, Vec<Op>, bool)> {
    let time = prop_oneof![
        3 => Just(0),
        6 => 1..200_000_u64,
        2 => 200_000..1_200_000_u64,
        1 => Just(TTL_US + 1),
        1 => Just(5_000_000),
    ];
    (
        time,
        prop::collection::vec(op(), 0..5),
        prop::bool::weighted(0.1),
    )
}

/// The session that a slot stands for now: slots are reused, ids are not.
struct Slots(BTreeMap<u8, Vec<SessionId>>);

impl Slots {
    fn newest(&self, slot: u8) -> SessionId {
        self.0
            .get(&slot)
            .and_then(|ids| ids.last())
            .copied()
            .unwrap_or(SessionId(0))
    }

    /// Slots from 3 on are sessions before the newest.
    fn any(&self, slot: u8) -> SessionId {
        let ids = self.0.get(&(slot % 3));
        let back = usize::from(slot / 3) + 1;
        ids.and_then(|ids| ids.len().checked_sub(back).map(|place| ids[place]))
            .unwrap_or(SessionId(0))
    }
}

fn play(start: Kind, steps: Vec<(u64, Vec<Op>, bool)>) {
    let key = key("a/b");
    let mut log = Log::new();
    log.command(Command::PutSettings(Settings {
        session_ttl_us: TTL_US,
        sync_interval_us: 500_000,
        max_drift_ppm: DRIFT_PPM,
        ..Settings::default()
    }));
    log.command(Command::PutPolicy {
        name: "P".to_owned(),
        policy: policy(start.clone()),
    });
    log.command(Command::PutBudget {
        pattern: pattern("a/*"),
        rule: Rule::Named("P".to_owned()),
    });
    let mut slots = Slots(BTreeMap::new());
    let mut next_id = 1;
    let mut model = Model {
        now_us: 0,
        counted: Counted::new(&start, 0),
        kind: start,
        epoch: 0,
        holders: BTreeMap::new(),
        ghosts: BTreeMap::new(),
        strict_from_us: None,
        exists: false,
    };
    for (pass_us, ops, restart) in steps {
        log.advance(pass_us);
        let index = log.index() + 1;
        let mut entry = Entry::default();
        // Sessions that this entry opens count for its grants only.
        let known = slots.0.clone();
        let before = Slots(known);
        for op in &ops {
            match op {
                Op::Open(slot) => {
                    let id = SessionId(next_id);
                    next_id += 1;
                    entry.commands.push(open(id));
                    slots.0.entry(*slot).or_default().push(id);
                }
                Op::End(slot) => {
                    let session = before.newest(*slot);
                    entry.commands.push(Command::EndSession { session });
                }
                Op::Grant(slot, units) => {
                    let session = slots.newest(*slot);
                    entry.grants.push(Grant {
                        session,
                        key: key.clone(),
                        units: *units,
                    });
                }
                Op::Spend(units) => {
                    entry.commands.push(Command::Spend {
                        key: key.clone(),
                        units: *units,
                    });
                }
                Op::Sync(slot, back, spent, returned, ages, held, last, close, renew, late) => {
                    let session = before.newest(*slot);
                    let holder = model.holders.get(&session);
                    let lease = holder
                        .and_then(|holder| holder.leases.iter().rev().nth(usize::from(*back)));
                    let reports = lease.map(|lease| Report {
                        last: *last,
                        spent_total: (lease.spent + spent).saturating_sub(*late),
                        returned_total: (lease.returned + returned).saturating_sub(*late),
                        held: *held,
                        ages: ages
                            .iter()
                            .map(|(units, age_us)| SpentAge {
                                units: *units,
                                age_us: *age_us,
                            })
                            .collect(),
                        ..report(&key, lease.generation)
                    });
                    let seq = holder.map_or(1, |holder| (holder.seq + 1).saturating_sub(*late));
                    entry.syncs.push(Sync {
                        session,
                        seq,
                        renew: *renew,
                        close: *close,
                        reports: reports.into_iter().collect(),
                    });
                }
                Op::Settle(slot, back, spent) => {
                    let session = before.any(*slot);
                    let live = model.holders.get(&session).map(|holder| {
                        holder
                            .leases
                            .iter()
                            .map(|lease| (lease.generation, lease.spent))
                            .collect()
                    });
                    let leases: Vec<(u64, u64)> = live
                        .or_else(|| {
                            model.ghosts.get(&session).map(|ghosts| {
                                ghosts
                                    .iter()
                                    .map(|ghost| (ghost.generation, ghost.spent))
                                    .collect()
                            })
                        })
                        .unwrap_or_default();
                    let lease = leases.iter().rev().nth(usize::from(*back));
                    let leases = lease.map(|(generation, known)| SettledLease {
                        key: key.clone(),
                        generation: *generation,
                        spent_total: known + spent,
                    });
                    entry.commands.push(Command::Settle {
                        session,
                        identity: String::new(),
                        leases: leases.into_iter().collect(),
                    });
                }
                Op::Edit(kind) => entry.commands.push(Command::PutPolicy {
                    name: "P".to_owned(),
                    policy: policy(kind.clone()),
                }),
            }
        }

        let applied = log.entry(entry.clone());
        model.now_us = log.now_us();
        model.fresh();
        model.counted.settle(model.now_us);

        for (sync, outcome) in entry.syncs.iter().zip(&applied.syncs) {
            assert_eq!(outcome.expired, !model.holders.contains_key(&sync.session));
            for report in &sync.reports {
                model.report(sync.session, report, sync.close);
            }
            if let Some(holder) = model.holders.get_mut(&sync.session) {
                // A resume has number 0 and is as new as its stream.
                let newer = sync.seq == 0 || sync.seq > holder.seq;
                let renews = sync.renew && !sync.close && !holder.ended && newer;
                assert_eq!(outcome.renewed, renews);
                holder.seq = holder.seq.max(sync.seq);
                if renews {
                    holder.deadline_us = model.now_us + TTL_US + 1;
                }
            }
            if sync.close {
                model.finish(sync.session);
            }
        }
        assert_eq!(applied.expired, model.expire());
        for (command, outcome) in entry.commands.iter().zip(&applied.commands) {
            model.fresh();
            match command {
                Command::Open { session, .. } => {
                    assert!(
                        matches!(outcome, CommandOutcome::Opened { .. }),
                        "{outcome:?}"
                    );
                    let deadline_us = model.now_us + TTL_US + 1;
                    let holder = Holder {
                        deadline_us,
                        seq: 0,
                        ended: false,
                        leases: Vec::new(),
                    };
                    model.holders.insert(*session, holder);
                }
                Command::EndSession { session } => {
                    if let Some(holder) = model.holders.get_mut(session) {
                        holder.ended = true;
                    }
                }
                Command::Settle {
                    session, leases, ..
                } => model.settle(*session, leases, &key),
                Command::PutPolicy { policy, .. } => model.edit(&policy.kind, index),
                Command::Spend { units, .. } => {
                    let CommandOutcome::Spent(spent) = outcome else {
                        panic!("{outcome:?}")
                    };
                    let refusal = if *units > model.limit() {
                        Some((Code::CostAboveLimit, None))
                    } else if *units > model.free() {
                        let earliest = || {
                            let holders = model.holders.values();
                            holders
                                .filter(|holder| {
                                    holder.leases.iter().any(|lease| lease.outstanding() > 0)
                                })
                                .map(|holder| holder.deadline_us)
                                .min()
                        };
                        let when_us = model.free_when(*units).or_else(earliest);
                        Some((Code::Limit, when_us.map(|when_us| when_us - model.now_us)))
                    } else {
                        None
                    };
                    assert_eq!(
                        spent.refusal.map(|no| (no.code, no.retry_after_us)),
                        refusal
                    );
                    if refusal.is_none() && *units > 0 {
                        model.appear(index);
                        model.counted.charge(*units, model.now_us);
                    }
                    assert_eq!(spent.free, model.free());
                }
                command => panic!("{command:?}"),
            }
        }
        for (grant, outcome) in entry.grants.iter().zip(&applied.grants) {
            model.fresh();
            let free = model.free();
            let now_us = model.now_us;
            let epoch = if model.exists { model.epoch } else { index };
            let Some(holder) = model.holders.get_mut(&grant.session) else {
                assert_eq!(outcome.units, 0);
                continue;
            };
            let newest = holder
                .leases
                .iter_mut()
                .max_by_key(|lease| lease.generation);
            let continued = newest.filter(|lease| lease.epoch == epoch);
            let misbehaved = continued.as_ref().is_some_and(|lease| lease.misbehaved);
            let given = if holder.ended || misbehaved {
                0
            } else {
                grant.units.min(free)
            };
            assert_eq!(outcome.units, given, "{grant:?} of {free} free");
            if given > 0 {
                let lease = match continued {
                    Some(lease) => lease,
                    None => {
                        holder.leases.push(Lease {
                            generation: index,
                            granted: 0,
                            spent: 0,
                            returned: 0,
                            first_us: now_us,
                            epoch,
                            misbehaved: false,
                        });
                        holder.leases.last_mut().unwrap()
                    }
                };
                lease.granted += given;
                assert_eq!(
                    (outcome.generation, outcome.granted_total),
                    (lease.generation, lease.granted)
                );
                model.appear(index);
            }
        }
        model.drop_idle();

        let view = log.ledger.account(&key);
        assert_eq!(view.is_some(), model.exists);
        if let Some(view) = view {
            assert_eq!(view.counted, model.counted.units());
            assert_eq!(view.outstanding, model.outstanding());
            assert_eq!(view.free, model.free());
            assert_eq!(view.debt, model.used().saturating_sub(model.limit()));
            let next_us = model
                .free_when(model.free() + 1)
                .map(|when_us| when_us - model.now_us);
            assert_eq!(view.next_free_us, next_us);
        }
        if restart {
            log.restart();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn the_ledger_agrees_with_a_naive_model(
        start in kind(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        play(start, steps);
    }
}
