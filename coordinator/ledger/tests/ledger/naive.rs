//! A naive model of one account: a window is the list of all spends with their
//! dates, a bucket an exact fraction, and nothing is indexed, cached or dropped
//! early. Knows nothing of the ledger but its types.

use std::collections::BTreeMap;

use leasehold_key::Key;
use leasehold_ledger::{
    entry::{Report, SessionId, SettledLease},
    policy::Kind,
};

use crate::log::report;

pub(crate) const DRIFT_PPM: u32 = 1_000;
pub(crate) const SCALE: u128 = 1_000_000;
pub(crate) const TTL_US: u64 = 2_000_000;

/// What counts, naively.
#[derive(Clone, Debug)]
pub(crate) enum Counted {
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

pub(crate) fn hold(window_us: u64) -> u64 {
    let scaled = u128::from(window_us) * (SCALE + u128::from(DRIFT_PPM));
    u64::try_from(scaled.div_ceil(SCALE)).unwrap() + 1
}

pub(crate) fn rate(refill: u64, period_us: u64) -> (u128, u128) {
    (
        u128::from(refill) * SCALE,
        u128::from(period_us) * (SCALE + u128::from(DRIFT_PPM)),
    )
}

impl Counted {
    pub(crate) fn new(kind: &Kind, now_us: u64) -> Self {
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
            ref other => unreachable!("{other:?} has a model of its own"),
        }
    }

    pub(crate) fn settle(&mut self, now_us: u64) {
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

    pub(crate) fn units(&self) -> u64 {
        match self {
            Self::Window { spends, .. } => spends.iter().map(|(_, units)| units).sum(),
            Self::Bucket { per, parts, .. } => u64::try_from(parts.div_ceil(*per)).unwrap(),
        }
    }

    pub(crate) fn charge(&mut self, units: u64, date_us: u64) {
        match self {
            Self::Window { spends, .. } => spends.push((date_us, units)),
            Self::Bucket { per, parts, .. } => *parts += u128::from(units) * *per,
        }
    }

    /// When `units` of what counts no longer count.
    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
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
pub(crate) struct Lease {
    pub(crate) generation: u64,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) first_us: u64,
    pub(crate) epoch: u64,
    pub(crate) misbehaved: bool,
}

impl Lease {
    pub(crate) fn outstanding(&self) -> u64 {
        self.granted - self.spent - self.returned
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) deadline_us: u64,
    pub(crate) seq: u64,
    pub(crate) ended: bool,
    pub(crate) leases: Vec<Lease>,
}

/// Presumed units of a session that is gone.
#[derive(Clone, Debug)]
pub(crate) struct Ghost {
    pub(crate) generation: u64,
    pub(crate) spent: u64,
    pub(crate) presumed: u64,
    pub(crate) date_us: u64,
    pub(crate) epoch: u64,
}

/// The naive books.
pub(crate) struct Model {
    pub(crate) now_us: u64,
    pub(crate) kind: Kind,
    pub(crate) counted: Counted,
    pub(crate) epoch: u64,
    pub(crate) holders: BTreeMap<SessionId, Holder>,
    pub(crate) ghosts: BTreeMap<SessionId, Vec<Ghost>>,
    /// Keys without an account start with nothing free at this time.
    pub(crate) strict_from_us: Option<u64>,
    pub(crate) exists: bool,
}

impl Model {
    pub(crate) fn limit(&self) -> u64 {
        self.kind.limit()
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.holders
            .values()
            .flat_map(|holder| &holder.leases)
            .map(Lease::outstanding)
            .sum()
    }

    pub(crate) fn used(&self) -> u64 {
        self.counted.units() + self.outstanding()
    }

    pub(crate) fn free(&self) -> u64 {
        self.limit().saturating_sub(self.used())
    }

    pub(crate) fn free_when(&self, units: u64) -> Option<u64> {
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
    pub(crate) fn appear(&mut self, index: u64) {
        if !self.exists {
            self.exists = true;
            self.epoch = index;
        }
    }

    /// What a key without an account would have.
    pub(crate) fn fresh(&mut self) {
        if self.exists {
            return;
        }
        self.counted = Counted::new(&self.kind, self.strict_from_us.unwrap_or(self.now_us));
        if let Some(at_us) = self.strict_from_us {
            self.counted.charge(self.limit(), at_us);
        }
        self.counted.settle(self.now_us);
    }

    pub(crate) fn report(&mut self, id: SessionId, report: &Report, close: bool) {
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

    pub(crate) fn finish(&mut self, id: SessionId) {
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

    pub(crate) fn expire(&mut self) -> Vec<SessionId> {
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

    pub(crate) fn settle(&mut self, id: SessionId, leases: &[SettledLease], key: &Key) {
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

    pub(crate) fn edit(&mut self, kind: &Kind, index: u64) {
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
    pub(crate) fn drop_idle(&mut self) {
        if self.exists
            && self.counted.units() == 0
            && self.holders.values().all(|holder| holder.leases.is_empty())
        {
            self.exists = false;
        }
    }
}
