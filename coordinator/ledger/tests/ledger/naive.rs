//! A naive model of one account and of who holds units of it: nothing is indexed, cached
//! or dropped early, and a period begins for the account in the entry that says so. Knows
//! nothing of the ledger but its types.

use std::collections::BTreeMap;

use leasehold_key::Key;
use leasehold_ledger::{
    correction::Change,
    entry::{Report, Roll, SessionId, SettledLease},
    outcome::Lifetime,
    policy::{Calendar, Kind, UNITS_MAX},
};

use crate::{
    counted::{Counted, Edit, can_be_spent, forgets, looks_back},
    log::report,
};

pub(crate) const TTL_US: u64 = 2_000_000;
/// For how long an account is kept for the sake of its corrections.
const REMEMBERED_US: u64 = 3_600_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) generation: u64,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) first_us: u64,
    pub(crate) epoch: u64,
    pub(crate) misbehaved: bool,
    /// The holder tells what it spent; nothing was granted.
    pub(crate) tells: bool,
    pub(crate) overrun: u64,
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

/// The present period of a calendar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) start_unix_us: i64,
    pub(crate) end_unix_us: i64,
    pub(crate) ends_us: u64,
}

/// The naive books.
pub(crate) struct Model {
    pub(crate) now_us: u64,
    pub(crate) kind: Kind,
    pub(crate) cooldown_us: u64,
    pub(crate) cooling_until_us: u64,
    pub(crate) periods: BTreeMap<Calendar, Bounds>,
    /// What was admitted under a name, and until when that is known.
    pub(crate) names: BTreeMap<String, (u64, u64)>,
    /// By id: what was asked, what came of it, and when.
    pub(crate) corrections: BTreeMap<u8, (Change, i64, u64)>,
    pub(crate) lifetime: Lifetime,
    pub(crate) counted: Counted,
    pub(crate) epoch: u64,
    pub(crate) holders: BTreeMap<SessionId, Holder>,
    pub(crate) ghosts: BTreeMap<SessionId, Vec<Ghost>>,
    /// Keys without an account start with nothing free at this time.
    pub(crate) strict_from_us: Option<u64>,
    pub(crate) exists: bool,
    /// It followed a period or a total once.
    pub(crate) never_forgets: bool,
}

impl Model {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            now_us: 0,
            counted: Counted::new(&kind, 0, None),
            kind,
            cooldown_us: 0,
            cooling_until_us: 0,
            periods: BTreeMap::new(),
            names: BTreeMap::new(),
            corrections: BTreeMap::new(),
            lifetime: Lifetime::default(),
            epoch: 0,
            holders: BTreeMap::new(),
            ghosts: BTreeMap::new(),
            strict_from_us: None,
            exists: false,
            never_forgets: false,
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.counted.limit(&self.kind)
    }

    /// The units that were admitted under a name, if that is known still.
    pub(crate) fn known_under(&self, name: &str) -> Option<u64> {
        let (units, until_us) = self.names.get(name)?;
        (self.now_us < *until_us).then_some(*units)
    }

    /// The largest cost that may be admitted once, with what is carried over or added.
    pub(crate) fn largest_cost(&self) -> u64 {
        let most = match &self.kind {
            Kind::Period {
                limit, carry_over, ..
            } => limit + carry_over,
            Kind::Total { .. } => UNITS_MAX,
            kind => kind.limit(),
        };
        most.max(self.limit())
    }

    /// When the next period is said to begin, or a second later if it is late.
    pub(crate) fn next_period_us(&self) -> Option<u64> {
        self.kind.calendar()?;
        let ends_us = self.ends_us().unwrap_or(0);
        Some(if ends_us > self.now_us {
            ends_us
        } else {
            self.now_us + 1_000_000
        })
    }

    /// When a period begins that has so many units free, nothing else happening: the next
    /// one, with what is carried over into it.
    pub(crate) fn free_in_next_when(&self, units: u64) -> Option<u64> {
        self.ends_us()?;
        let mut next = self.counted.clone();
        next.roll(&self.kind, self.outstanding(), 0);
        let used = next.units() + self.outstanding();
        let fits = units + used <= next.limit(&self.kind);
        fits.then(|| self.next_period_us()).flatten()
    }

    /// The same of the one after that, which has what the policy allows at the most; or
    /// when the first one of all begins.
    pub(crate) fn free_in_later_when(&self, units: u64) -> Option<u64> {
        let Kind::Period {
            limit, carry_over, ..
        } = &self.kind
        else {
            return None;
        };
        let next_us = self.next_period_us()?;
        match self.periods.get(self.kind.calendar()?) {
            None => Some(next_us),
            Some(bounds) => {
                let length_us = bounds.end_unix_us.abs_diff(bounds.start_unix_us);
                (units <= limit + carry_over).then(|| next_us.saturating_add(length_us))
            }
        }
    }

    /// When the present period of the kind's calendar is said to end.
    fn ends_us(&self) -> Option<u64> {
        let bounds = self.periods.get(self.kind.calendar()?)?;
        Some(bounds.ends_us)
    }

    /// For how long it stays refused.
    pub(crate) fn cooling_us(&self) -> Option<u64> {
        let left_us = self.cooling_until_us.saturating_sub(self.now_us);
        (self.exists && left_us > 0).then_some(left_us)
    }

    /// Whether it cools down from now on.
    pub(crate) fn cool_down(&mut self, index: u64) -> bool {
        let begins = self.cooldown_us > 0 && self.cooling_us().is_none();
        if begins {
            self.appear(index);
            self.cooling_until_us = self.now_us + self.cooldown_us;
        }
        begins
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
            excess => {
                let when_us = self.counted.drained_when(excess)?;
                Some(when_us.max(self.now_us))
            }
        }
    }

    /// An account that is not there begins with the rule's books.
    pub(crate) fn appear(&mut self, index: u64) {
        if !self.exists {
            self.exists = true;
            self.never_forgets = matches!(self.kind, Kind::Period { .. } | Kind::Total { .. });
            self.epoch = index;
        }
    }

    /// What a key without an account would have.
    pub(crate) fn fresh(&mut self) {
        if self.exists {
            return;
        }
        self.lifetime = Lifetime::default();
        self.corrections.clear();
        self.cooling_until_us = 0;
        let strict_from_us = self.strict_from_us.filter(|_| looks_back(&self.kind));
        let from_us = strict_from_us.unwrap_or(self.now_us);
        self.counted = Counted::new(&self.kind, from_us, self.ends_us());
        if let Some(at_us) = strict_from_us {
            self.counted.charge(self.limit(), at_us);
        }
        self.counted.settle(self.now_us);
    }

    /// A period begins; gives whether it does.
    pub(crate) fn roll(&mut self, roll: &Roll, index: u64) -> bool {
        let present = self.periods.get(&roll.calendar);
        let follows = present.is_none_or(|present| roll.start_unix_us >= present.end_unix_us);
        if roll.start_unix_us >= roll.end_unix_us || !follows {
            return false;
        }
        let ends_us = self.now_us.saturating_add(roll.ends_in_us);
        self.put_period(roll, ends_us);
        if self.exists && self.kind.calendar() == Some(&roll.calendar) {
            let outstanding = self.outstanding();
            self.counted.roll(&self.kind, outstanding, ends_us);
            self.epoch = index;
        }
        true
    }

    /// An operator says when the present period begins and ends; none: refused.
    pub(crate) fn correct_period(&mut self, roll: &Roll) -> Option<()> {
        self.periods.get(&roll.calendar)?;
        if roll.start_unix_us >= roll.end_unix_us {
            return None;
        }
        let ends_us = self.now_us.saturating_add(roll.ends_in_us);
        self.put_period(roll, ends_us);
        if self.kind.calendar() == Some(&roll.calendar)
            && let Counted::Period { ends_us: until, .. } = &mut self.counted
        {
            *until = Some(ends_us);
        }
        Some(())
    }

    fn put_period(&mut self, roll: &Roll, ends_us: u64) {
        let bounds = Bounds {
            start_unix_us: roll.start_unix_us,
            end_unix_us: roll.end_unix_us,
            ends_us,
        };
        self.periods.insert(roll.calendar.clone(), bounds);
    }

    /// A correction by hand: its effect and whether it was made before; none: refused.
    pub(crate) fn correct(&mut self, id: u8, change: Change, index: u64) -> Option<(i64, bool)> {
        if let Change::Adjust(units) = change
            && units.unsigned_abs() > UNITS_MAX
        {
            return None;
        }
        if let Some((known, effect, _)) = self.corrections.get(&id) {
            return (*known == change).then_some((*effect, true));
        }
        let effect = match change {
            Change::Adjust(units) => self.counted.adjust(&self.kind, units, self.now_us),
            Change::Reset => self.counted.reset(&self.kind),
        }?;
        self.appear(index);
        if effect > 0 && !matches!(self.kind, Kind::Total { .. }) {
            // What a dead holder is presumed to have spent may be free again already.
            self.epoch = index;
        }
        self.cooling_until_us = 0;
        self.corrections.insert(id, (change, effect, self.now_us));
        Some((effect, false))
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
        let granted = if lease.tells {
            lease.granted.max(spent + returned)
        } else {
            lease.granted
        };
        if spent + returned > granted {
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
        let overrun = lease.overrun.max(report.overrun_total);
        let beyond = overrun - lease.overrun;
        self.lifetime.granted += granted - lease.granted;
        self.lifetime.spent += spent - lease.spent;
        self.lifetime.returned += returned - lease.returned;
        lease.granted = granted;
        lease.spent = spent;
        lease.returned = returned;
        lease.overrun = overrun;
        if last {
            self.lifetime.returned += lease.outstanding();
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
        // What reservations used beyond what they had is charged as far as it is free.
        let charged = if can_be_spent(&self.kind) {
            beyond.min(self.free())
        } else {
            0
        };
        self.counted.charge(charged, now_us);
        self.lifetime.extra += charged;
        self.lifetime.overrun += beyond - charged;
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
                if can_be_spent(&self.kind) {
                    self.lifetime.presumed_spent += presumed;
                } else {
                    self.lifetime.returned += presumed;
                }
                if !Counted::refunds(&self.kind) {
                    continue;
                }
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
            if self.exists && ghost.epoch == self.epoch {
                let unspent = ghost.presumed - spent;
                let refunded = self.counted.refund(unspent, ghost.date_us, self.now_us);
                self.lifetime.presumed_spent -= refunded;
                self.lifetime.returned += refunded;
            }
        }
    }

    pub(crate) fn edit(&mut self, kind: &Kind, cooldown_us: u64, index: u64) {
        let old = std::mem::replace(&mut self.kind, kind.clone());
        self.cooldown_us = cooldown_us;
        if forgets(&old, kind) {
            self.strict_from_us = Some(self.now_us);
        }
        let edit = Edit {
            now_us: self.now_us,
            ends_us: self.ends_us(),
            outstanding: self.outstanding(),
        };
        let never_forgets = matches!(kind, Kind::Period { .. } | Kind::Total { .. });
        if self.exists && self.counted.edit(&old, kind, edit) {
            self.epoch = index;
            if never_forgets && self.never_forgets {
                self.counted.charge(self.free(), self.now_us);
            }
        }
        self.never_forgets |= self.exists && never_forgets;
    }

    /// The account is dropped when nothing of it matters; what was spent of periods and
    /// totals, or without a limit, is never forgotten.
    pub(crate) fn drop_idle(&mut self) {
        let kept = matches!(
            self.kind,
            Kind::Period { .. } | Kind::Total { .. } | Kind::Unlimited
        );
        let latest = self.corrections.values().map(|(.., at_us)| *at_us).max();
        let remembered_us = latest.map_or(0, |at_us| at_us + REMEMBERED_US);
        if self.exists
            && !kept
            && !self.never_forgets
            && self.counted.units() == 0
            && self.holders.values().all(|holder| holder.leases.is_empty())
            && remembered_us.max(self.cooling_until_us) <= self.now_us
        {
            self.exists = false;
        }
    }
}
