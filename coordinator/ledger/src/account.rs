//! The books of one key: what counts, and who holds units of it. Does not know
//! sessions beyond their ids, other accounts, or where its rule comes from.

use std::{collections::BTreeMap, sync::Arc};

use leasehold_key::Key;

use crate::{
    correction::Corrections,
    digest,
    entry::{Report, SessionId, SpentAge},
    exact,
    kind::{Books, Moment, Periods, Rebound},
    outcome::{Lifetime, ReportRefusal},
    policy::UNITS_MAX,
    rules::Binding,
    shards::Spread,
};

/// One account.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) key: Key,
    /// The hash of the key, which never changes.
    key_hash: u64,
    /// The rule that it follows, or followed last.
    pub(crate) binding: Arc<Binding>,
    /// The log index at which grants last had to open new generations.
    pub(crate) epoch: u64,
    pub(crate) books: Books,
    /// The sum over the leases.
    pub(crate) outstanding: u64,
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    /// The hashes of the leases, so that a change costs one lease's.
    pub(crate) lease_hashes: digest::Sum,
    pub(crate) lifetime: Lifetime,
    /// What operators corrected by hand.
    pub(crate) corrections: Corrections,
    /// Nothing is granted before: it was refused, and its policy has a cool-down.
    pub(crate) cooling_until_us: u64,
    /// It was charged by a period or a total once: what was spent of those is never
    /// forgotten, whatever it follows meanwhile.
    pub(crate) never_forgets: bool,
    /// When to look whether the account can be dropped; none while it has leases.
    pub(crate) due_us: Option<u64>,
    /// The account's part in the ledger's digest.
    pub(crate) hash: u64,
}

/// Who holds a lease, and the log index that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseId {
    pub(crate) session: SessionId,
    pub(crate) generation: u64,
}

/// The running totals of one lease. They only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    /// Cluster time of the first grant: no spend is older.
    pub(crate) first_grant_us: u64,
    /// The account's epoch when it opened.
    pub(crate) epoch: u64,
    /// It reported more than it was granted: no more grants.
    pub(crate) misbehaved: bool,
    /// Its holder tells what it spent, rather than being granted it: the granted
    /// total follows.
    pub(crate) tells: bool,
    /// Units that settled reservations used beyond what they had.
    pub(crate) overrun: u64,
}

impl Lease {
    pub(crate) const fn outstanding(&self) -> u64 {
        exact::sub(exact::sub(self.granted, self.spent), self.returned)
    }

    fn hash(&self, id: LeaseId) -> u64 {
        let (upper, lower) = digest::halves(id.session.0);
        let hash = digest::words([
            upper,
            lower,
            id.generation,
            self.granted,
            self.spent,
            self.returned,
            self.first_grant_us,
            self.epoch,
            u64::from(self.misbehaved),
        ]);
        // What version 6 added has no part in the digest of what is older.
        if self.tells || self.overrun > 0 {
            digest::words([hash, u64::from(self.tells), self.overrun])
        } else {
            hash
        }
    }
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    /// The lease goes on.
    Applied,
    /// The lease was final and is forgotten.
    Forgotten,
    /// No such lease: it was final before.
    Unknown,
    /// Nothing was applied.
    Refused(ReportRefusal),
}

/// What an ended session's lease left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Presumed {
    pub(crate) generation: u64,
    /// What had been reported.
    pub(crate) spent: u64,
    /// What nobody knows.
    pub(crate) units: u64,
    /// The account's epoch then.
    pub(crate) epoch: u64,
}

impl Account {
    pub(crate) fn new(key: Key, binding: Arc<Binding>, books: Books, epoch: u64) -> Self {
        Self {
            key_hash: key.spread(),
            key,
            never_forgets: binding.policy.kind.never_forgets(),
            binding,
            epoch,
            books,
            outstanding: 0,
            leases: BTreeMap::new(),
            lease_hashes: digest::Sum::default(),
            lifetime: Lifetime::default(),
            corrections: Corrections::default(),
            cooling_until_us: 0,
            due_us: None,
            hash: 0,
        }
    }

    /// Moves time: what no longer counts is dropped, and the period is the present
    /// one. Grants then open a new generation.
    pub(crate) fn settle(&mut self, now_us: u64, periods: &Periods) {
        self.books.settle(now_us);
        let kind = &self.binding.policy.kind;
        if let Some(index) = self.books.roll(kind, periods, self.outstanding) {
            self.epoch = index;
        }
    }

    /// Whether its books are of a period that is over.
    pub(crate) fn is_behind(&self, periods: &Periods) -> bool {
        self.books.is_behind(&self.binding.policy.kind, periods)
    }

    /// For how long it stays refused because it was.
    pub(crate) fn cooling_us(&self, now_us: u64) -> Option<u64> {
        self.cooling_until_us
            .checked_sub(now_us)
            .filter(|us| *us > 0)
    }

    /// Units that can be granted; the books are settled.
    pub(crate) fn free_at(&self, now_us: u64) -> u64 {
        self.books.free_at(now_us, self.outstanding)
    }

    /// It was refused: nothing is granted for a while, if its policy says so and it is
    /// not so already.
    pub(crate) fn cool_down(&mut self, now_us: u64) -> bool {
        let cooldown_us = self.binding.policy.cooldown_us;
        // A shadow refuses nothing, so that there is nothing to cool down after.
        if cooldown_us == 0 || self.binding.policy.shadow || self.cooling_us(now_us).is_some() {
            return false;
        }
        self.cooling_until_us = now_us.saturating_add(cooldown_us);
        true
    }

    /// The first moment at which more units are free by time alone.
    pub(crate) fn more_free_when(&self, now_us: u64) -> Option<u64> {
        let wanted = self.free_at(now_us).saturating_add(1);
        self.books
            .free_when(wanted, now_us, self.outstanding)
            .map(|when_us| when_us.max(self.cooling_until_us))
    }

    /// The newest lease of a session.
    pub(crate) fn newest(&self, session: SessionId) -> Option<(LeaseId, &Lease)> {
        self.leases
            .range(leases_of(session))
            .next_back()
            .map(|(id, lease)| (*id, lease))
    }

    /// All leases of a session, the oldest first.
    pub(crate) fn of_session(
        &self,
        session: SessionId,
    ) -> impl Iterator<Item = (&LeaseId, &Lease)> {
        self.leases.range(leases_of(session))
    }

    /// Whether grants continue in a lease rather than open a new generation.
    pub(crate) const fn continues(&self, lease: &Lease) -> bool {
        lease.epoch == self.epoch
    }

    /// Changes a lease and keeps sums and hashes in step.
    fn change<R>(&mut self, id: LeaseId, change: impl FnOnce(&mut Lease) -> R) -> Option<R> {
        let lease = self.leases.get_mut(&id)?;
        self.lease_hashes.remove(lease.hash(id));
        self.outstanding = exact::sub(self.outstanding, lease.outstanding());
        let result = change(lease);
        self.outstanding = exact::add(self.outstanding, lease.outstanding());
        self.lease_hashes.add(lease.hash(id));
        Some(result)
    }

    /// Takes a lease out; what it has outstanding is for the caller to account for.
    fn forget(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.leases.remove(&id)?;
        self.lease_hashes.remove(lease.hash(id));
        self.outstanding = exact::sub(self.outstanding, lease.outstanding());
        Some(lease)
    }

    /// Puts a lease in.
    pub(crate) fn put(&mut self, id: LeaseId, lease: Lease) {
        self.lease_hashes.add(lease.hash(id));
        self.outstanding = exact::add(self.outstanding, lease.outstanding());
        self.leases.insert(id, lease);
    }

    /// Grants units that the caller has found free, in the session's lease of
    /// this epoch or in a new one. Gives the generation and its new total.
    pub(crate) fn grant(
        &mut self,
        session: SessionId,
        units: u64,
        index: u64,
        now_us: u64,
    ) -> (u64, u64) {
        self.lifetime.granted = self.lifetime.granted.saturating_add(units);
        let continued = self
            .newest(session)
            .filter(|(_, lease)| self.continues(lease))
            .map(|(id, _)| id);
        if let Some(id) = continued {
            let granted = self.change(id, |lease| {
                lease.granted = exact::add(lease.granted, units);
                lease.granted
            });
            return (id.generation, granted.unwrap_or(0));
        }
        let lease = Lease {
            granted: units,
            spent: 0,
            returned: 0,
            first_grant_us: now_us,
            epoch: self.epoch,
            misbehaved: false,
            tells: self.books.tells(),
            overrun: 0,
        };
        self.put(
            LeaseId {
                session,
                generation: index,
            },
            lease,
        );
        (index, units)
    }

    /// Applies a report's totals. `last` also gives back what is neither spent
    /// nor returned, and forgets the lease.
    pub(crate) fn report(
        &mut self,
        session: SessionId,
        report: &Report,
        last: bool,
        now_us: u64,
    ) -> Reported {
        let id = LeaseId {
            session,
            generation: report.generation,
        };
        let Some(lease) = self.leases.get(&id) else {
            return Reported::Unknown;
        };
        if last && report.held > 0 {
            return Reported::Refused(ReportRefusal::LastWhileHeld);
        }
        let spent = lease.spent.max(report.spent_total);
        let returned = lease.returned.max(report.returned_total);
        let accounted_for = spent.checked_add(returned);
        let granted = match accounted_for {
            Some(told) if lease.tells => lease.granted.max(told),
            _ => lease.granted,
        };
        let Some(unspent) =
            accounted_for.and_then(|accounted_for| granted.checked_sub(accounted_for))
        else {
            self.change(id, |lease| lease.misbehaved = true);
            return Reported::Refused(ReportRefusal::Misbehaved);
        };
        let new_spent = exact::sub(spent, lease.spent);
        let new_granted = exact::sub(granted, lease.granted);
        let mut new_returned = exact::sub(returned, lease.returned);
        let overrun = lease.overrun.max(report.overrun_total);
        let new_overrun = exact::sub(overrun, lease.overrun);
        let first_grant_us = lease.first_grant_us;
        // What is told has no bound of its own, and an edit may have made the budget one
        // of another kind since: the books take as much of it as they can say.
        let counted = if lease.tells {
            new_spent.min(UNITS_MAX.saturating_sub(self.books.counted_at(now_us)))
        } else {
            new_spent
        };
        if last {
            new_returned = exact::add(new_returned, unspent);
            self.forget(id);
        } else {
            self.change(id, |lease| {
                lease.granted = granted;
                lease.spent = spent;
                lease.returned = returned;
                lease.overrun = overrun;
            });
        }
        let lifetime = &mut self.lifetime;
        lifetime.granted = lifetime.granted.saturating_add(new_granted);
        lifetime.returned = lifetime.returned.saturating_add(new_returned);
        lifetime.spent = lifetime.spent.saturating_add(new_spent);
        self.charge_aged(counted, &report.ages, first_grant_us, now_us);
        self.charge_overrun(new_overrun, now_us);
        if last {
            Reported::Forgotten
        } else {
            Reported::Applied
        }
    }

    /// Charges what reservations used beyond what they had reserved, as far as units
    /// are free; the rest is only written down.
    fn charge_overrun(&mut self, units: u64, now_us: u64) {
        if units == 0 {
            return;
        }
        let charged = if self.books.can_be_spent() {
            units.min(self.free_at(now_us))
        } else {
            0
        };
        self.books.charge(charged, now_us);
        let lifetime = &mut self.lifetime;
        lifetime.extra = lifetime.extra.saturating_add(charged);
        lifetime.overrun = lifetime.overrun.saturating_add(exact::sub(units, charged));
    }

    /// Charges units with the ages that a report states: units that no age
    /// covers are 0 old, and when more is covered than is new, the youngest
    /// ages count, because older units may be the ones applied before.
    fn charge_aged(&mut self, units: u64, ages: &[SpentAge], first_grant_us: u64, now_us: u64) {
        if units == 0 {
            return;
        }
        let covered = ages
            .iter()
            .fold(0_u64, |covered, age| covered.saturating_add(age.units));
        let mut left = units.min(covered);
        self.books.charge(exact::sub(units, left), now_us);
        let mut charge = |age: &SpentAge| {
            let aged = left.min(age.units);
            left = exact::sub(left, aged);
            let date_us = now_us
                .saturating_sub(age.age_us)
                .max(first_grant_us)
                .min(now_us);
            self.books.charge(aged, date_us);
        };
        if ages.is_sorted_by_key(|age| age.age_us) {
            ages.iter().for_each(&mut charge);
        } else {
            let mut youngest_first = ages.to_vec();
            youngest_first.sort_unstable_by_key(|age| age.age_us);
            youngest_first.iter().for_each(&mut charge);
        }
        // A date can be older than the window.
        self.books.settle(now_us);
    }

    /// Ends every lease of a session: what it has outstanding is presumed spent
    /// at `date_us`.
    pub(crate) fn presume(
        &mut self,
        session: SessionId,
        date_us: u64,
        now_us: u64,
        mut left_behind: impl FnMut(Presumed),
    ) {
        while let Some((id, _)) = self.newest(session) {
            let Some(lease) = self.forget(id) else { break };
            let units = lease.outstanding();
            self.books.charge(units, date_us.min(now_us));
            let lifetime = &mut self.lifetime;
            if self.books.can_be_spent() {
                lifetime.presumed_spent = lifetime.presumed_spent.saturating_add(units);
            } else {
                // Permits end with their holder.
                lifetime.returned = lifetime.returned.saturating_add(units);
            }
            left_behind(Presumed {
                generation: id.generation,
                spent: lease.spent,
                units,
                epoch: self.epoch,
            });
        }
        self.books.settle(now_us);
    }

    /// Refunds units that were presumed spent at `date_us`, if they still count
    /// in the books that they were charged to.
    pub(crate) fn refund(&mut self, units: u64, epoch: u64, date_us: u64, now_us: u64) {
        if epoch == self.epoch {
            let refunded = self.books.refund(units, date_us, now_us);
            let lifetime = &mut self.lifetime;
            lifetime.presumed_spent = lifetime.presumed_spent.saturating_sub(refunded);
            lifetime.returned = lifetime.returned.saturating_add(refunded);
        }
    }

    /// Follows an edited rule.
    pub(crate) fn rebind(&mut self, binding: Arc<Binding>, index: u64, moment: &Moment<'_>) {
        let rebound = self.books.rebind(
            &self.binding.policy.kind,
            &binding.policy.kind,
            moment,
            self.outstanding,
        );
        if rebound == Rebound::NewEpoch {
            self.epoch = index;
            let kind = &binding.policy.kind;
            if kind.never_forgets() && self.never_forgets {
                // It may have been charged to the same period or total before, and the
                // rule in between has forgotten it: nothing is free.
                let free = self.books.free_at(moment.now_us, self.outstanding);
                self.books.charge(free, moment.now_us);
            }
        }
        self.never_forgets |= binding.policy.kind.never_forgets();
        self.binding = binding;
    }

    /// Ends every lease and leaves nothing free, because the books are a backup's:
    /// whatever was out, and whatever was granted since, is spent at
    /// `moment.inherited_until_us` at the latest.
    pub(crate) fn inherit(&mut self, moment: &Moment<'_>) {
        let used = exact::add(self.books.counted_at(moment.now_us), self.outstanding);
        let lifetime = &mut self.lifetime;
        lifetime.presumed_spent = lifetime.presumed_spent.saturating_add(self.outstanding);
        self.leases.clear();
        self.lease_hashes = digest::Sum::default();
        self.outstanding = 0;
        let until_us = moment.inherited_until_us;
        match &mut self.books {
            // What was carried over or added is part of the limit that is used up.
            Books::Period(_) | Books::Total(_) => {
                let counted = self.books.counted_at(moment.now_us);
                let all = used.max(self.books.limit());
                self.books.charge(exact::sub(all, counted), until_us);
            }
            books => {
                let kind = &self.binding.policy.kind;
                *books = Books::exhausted(kind, moment.drift_ppm, until_us, moment.periods);
                // Debt stays.
                let debt = used.saturating_sub(books.limit());
                books.charge(debt, until_us);
            }
        }
        self.due_us = None;
    }

    /// Whether nothing would be lost by dropping it.
    pub(crate) fn is_idle(&self, now_us: u64) -> bool {
        self.leases.is_empty()
            && !self.never_forgets
            && self.books.is_idle()
            && self.remembered_until_us() <= now_us
    }

    /// The first moment at which nothing would be lost by dropping it, once it has no
    /// leases.
    pub(crate) fn idle_when(&self) -> u64 {
        if self.never_forgets {
            return u64::MAX;
        }
        self.books.idle_when().max(self.remembered_until_us())
    }

    /// Until when something has to be remembered that is not in the books.
    fn remembered_until_us(&self) -> u64 {
        self.corrections
            .remembered_until_us()
            .max(self.cooling_until_us)
    }

    /// Whether it has anything that formats before version 6 cannot say, besides what
    /// its policy has.
    pub(crate) fn is_newer(&self) -> bool {
        self.lifetime.extra > 0
            || self.lifetime.overrun > 0
            || self.corrections.len() > 0
            || self.cooling_until_us > 0
            || self.never_forgets
            || self
                .leases
                .values()
                .any(|lease| lease.tells || lease.overrun > 0)
    }

    /// The account's part in the digest, from its fields.
    pub(crate) fn computed_hash(&self) -> u64 {
        let hash = digest::words([
            self.key_hash,
            self.binding.hash,
            self.epoch,
            self.outstanding,
            self.books.hash(),
            self.lease_hashes.value(),
            self.lifetime.granted,
            self.lifetime.spent,
            self.lifetime.returned,
            self.lifetime.presumed_spent,
            self.lifetime.central,
            self.due_us.map_or(0, |due_us| due_us.saturating_add(1)),
        ]);
        let newer = [
            self.lifetime.extra,
            self.lifetime.overrun,
            self.corrections.hash(),
            self.cooling_until_us,
            u64::from(self.never_forgets),
        ];
        // What version 6 added has no part in the digest of what is older.
        if newer == [0; 5] {
            hash
        } else {
            let [extra, overrun, corrections, cooling, never_forgets] = newer;
            digest::words([hash, extra, overrun, corrections, cooling, never_forgets])
        }
    }

    /// The hashes of its leases, added up anew.
    pub(crate) fn computed_lease_hashes(&self) -> digest::Sum {
        let mut sum = digest::Sum::default();
        for (id, lease) in &self.leases {
            sum.add(lease.hash(*id));
        }
        sum
    }
}

/// Every lease id of a session.
pub(crate) const fn leases_of(session: SessionId) -> std::ops::RangeInclusive<LeaseId> {
    LeaseId {
        session,
        generation: 0,
    }..=LeaseId {
        session,
        generation: u64::MAX,
    }
}
