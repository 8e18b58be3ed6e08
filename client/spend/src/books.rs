//! The running totals of a key's leases, generation by generation. Plain data
//! behind the slot's lock. Knows neither the word nor the queue nor the wire.

/// The totals of one lease.
///
/// `spent = granted − returned − left − held − parked` is derived, never
/// stored: a spender that admits a request touches nothing but the word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) generation: u64,
    /// Grows with grants.
    pub(crate) granted: u64,
    /// Grows with what is handed back.
    pub(crate) returned: u64,
    /// Taken, and not decided yet.
    pub(crate) held: u64,
    /// Put aside because the deadline passed; comes back with a renewal.
    pub(crate) parked: u64,
    /// Whether `left` was put aside: what comes in goes to `parked` as well.
    pub(crate) is_parked: bool,
    /// The last moment, exclusive, at which its units may be spent.
    pub(crate) deadline_ns: u64,
    /// Its units are this gateway's own to grant: what is not spent of them was never
    /// granted, rather than handed back.
    pub(crate) is_own: bool,
    /// Units that settled reservations used and that there were none for.
    pub(crate) overrun: u64,
    /// How many of them the coordinator is known to know of.
    pub(crate) overrun_acked: u64,
}

impl Lease {
    pub(crate) fn new(generation: u64, deadline_ns: u64) -> Self {
        Self {
            generation,
            granted: 0,
            returned: 0,
            held: 0,
            parked: 0,
            is_parked: false,
            deadline_ns,
            is_own: false,
            overrun: 0,
            overrun_acked: 0,
        }
    }

    /// Units are given up that were neither spent nor are left.
    pub(crate) fn hand_back(&mut self, units: u64) {
        if self.is_own {
            self.granted -= units;
        } else {
            self.returned += units;
        }
    }

    /// Units spent so far, given what the word has left of this lease.
    pub(crate) fn spent(&self, left: u64) -> u64 {
        let unspent = self.returned + left + self.held + self.parked;
        debug_assert!(
            self.granted >= unspent,
            "more unspent than granted: {self:?}, left {left}"
        );
        self.granted.saturating_sub(unspent)
    }

    fn totals(&self, left: u64) -> Totals {
        Totals {
            generation: self.generation,
            granted: self.granted,
            spent: self.spent(left),
            returned: self.returned,
            left: left + self.parked,
            held: self.held,
            is_own: self.is_own,
            overrun: self.overrun,
        }
    }
}

/// A lease's totals at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The lease.
    pub generation: u64,
    /// Units granted so far.
    pub granted: u64,
    /// Units spent so far, or forfeited by being taken too late.
    pub spent: u64,
    /// Units handed back so far.
    pub returned: u64,
    /// Units that can still be spent, or could be after a renewal.
    pub left: u64,
    /// Units taken and not decided.
    pub held: u64,
    /// They are this gateway's own to grant.
    pub is_own: bool,
    /// Units used beyond what there was.
    pub overrun: u64,
}

/// Units of an ended session that somebody still holds. They were settled as
/// unspent, so none of them may be spent any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Voided {
    generation: u64,
    held: u64,
}

/// What became of units that were held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// They belong to the present lease: they are left again.
    ToLeft,
    /// Their lease is put aside, ended or gone: they are accounted for.
    Settled,
}

/// All leases of a key that this process still has to account for.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub(crate) current: Option<Lease>,
    /// Ended generations: kept until nothing is held of them and a final report
    /// of them was acknowledged.
    old: Vec<Lease>,
    voided: Vec<Voided>,
    /// Every generation up to here is known; its grants are old news.
    pub(crate) floor: u64,
    /// Overrun that waits for a lease to carry it.
    pub(crate) overrun: u64,
}

impl Books {
    /// Ends the present lease, of which the word had `left`.
    pub(crate) fn end_current(&mut self, left: u64) {
        if let Some(mut lease) = self.current.take() {
            lease.hand_back(left + lease.parked);
            lease.parked = 0;
            lease.is_parked = false;
            self.floor = self.floor.max(lease.generation);
            self.old.push(lease);
        }
    }

    /// Opens a lease; the one before has ended.
    pub(crate) fn open(&mut self, mut lease: Lease) {
        lease.overrun = std::mem::take(&mut self.overrun);
        self.current = Some(lease);
    }

    /// Units were used that there were none for. They are the present lease's, or
    /// the next one's: a lease that has ended may have been told of for good.
    pub(crate) fn charge_overrun(&mut self, units: u64) {
        let total = match &mut self.current {
            Some(lease) => &mut lease.overrun,
            None => &mut self.overrun,
        };
        *total = total.saturating_add(units);
    }

    /// A report with this total was acknowledged.
    pub(crate) fn note_overrun(&mut self, generation: u64, total: u64) {
        if let Some(lease) = self.find(generation) {
            lease.overrun_acked = lease.overrun_acked.max(total);
        }
    }

    /// Takes over what the coordinator says of a lease that this process never
    /// saw: it was granted in a lost message and must be handed back.
    pub(crate) fn adopt_unseen(&mut self, generation: u64, granted: u64, spent: u64) {
        let known = self.old.iter().any(|lease| lease.generation == generation);
        if known
            || self
                .current
                .as_ref()
                .is_some_and(|lease| lease.generation == generation)
        {
            return;
        }
        let mut lease = Lease::new(generation, 0);
        lease.granted = granted;
        lease.returned = granted.saturating_sub(spent);
        self.old.push(lease);
        self.floor = self.floor.max(generation);
    }

    /// Ends every lease because the session is gone, and says what was spent of
    /// each. What is held of them can never be spent, so it counts as unspent.
    pub(crate) fn void(&mut self, left: u64, settled: &mut Vec<(u64, u64)>) {
        self.end_current(left);
        // Generations are a session's: after a restore they may begin anew.
        self.floor = 0;
        for lease in self.old.drain(..) {
            let untold = lease.overrun.saturating_sub(lease.overrun_acked);
            self.overrun = self.overrun.saturating_add(untold);
            let held = lease.held;
            settled.push((lease.generation, lease.spent(0)));
            if held > 0 {
                self.voided.push(Voided {
                    generation: lease.generation,
                    held,
                });
            }
        }
    }

    /// Whether something is still held of a generation of an ended session, so
    /// that a lease of the same number would be taken for it.
    pub(crate) fn is_voided(&self, generation: u64) -> bool {
        self.voided.iter().any(|v| v.generation == generation)
    }

    fn find(&mut self, generation: u64) -> Option<&mut Lease> {
        let current = self
            .current
            .as_mut()
            .filter(|lease| lease.generation == generation);
        current.or_else(|| {
            self.old
                .iter_mut()
                .find(|lease| lease.generation == generation)
        })
    }

    /// Until when what is held of a lease may be spent.
    pub(crate) fn deadline_ns(&mut self, generation: u64) -> Option<u64> {
        self.find(generation).map(|lease| lease.deadline_ns)
    }

    /// Whether what is held of a lease may be spent at `now_ns`.
    pub(crate) fn is_valid(&mut self, generation: u64, now_ns: u64) -> bool {
        self.deadline_ns(generation)
            .is_some_and(|deadline_ns| now_ns < deadline_ns)
    }

    /// Hands held units of the present lease back, as far as its returned total is
    /// below a target; says how many.
    pub(crate) fn return_held(&mut self, generation: u64, units: u64, target: u64) -> u64 {
        let current = self.current.as_mut();
        let Some(lease) = current.filter(|lease| lease.generation == generation) else {
            return 0;
        };
        let back = units.min(target.saturating_sub(lease.returned));
        lease.returned += back;
        lease.held -= back;
        back
    }

    /// Decides held units as spent that were admitted when they were taken.
    pub(crate) fn spend_held(&mut self, generation: u64, units: u64) {
        if let Some(lease) = self.find(generation) {
            lease.held -= units;
        }
    }

    /// Decides held units as spent if their lease is still valid at `now_ns`.
    /// False: they must be released instead.
    pub(crate) fn commit(&mut self, generation: u64, units: u64, now_ns: u64) -> bool {
        match self.find(generation) {
            Some(lease) if now_ns < lease.deadline_ns => {
                lease.held -= units;
                true
            }
            _ => false,
        }
    }

    /// Decides held units as unspent. `raise_left` is called while they still
    /// count as held, so that no sample can take them for spent.
    pub(crate) fn release(
        &mut self,
        generation: u64,
        units: u64,
        is_closed: bool,
        raise_left: impl FnOnce(u64),
    ) -> Release {
        if let Some(lease) = self.current.as_mut().filter(|l| l.generation == generation) {
            if is_closed {
                lease.hand_back(units);
            } else if lease.is_parked {
                lease.parked += units;
            } else {
                raise_left(units);
            }
            let settled = is_closed || lease.is_parked;
            lease.held -= units;
            return if settled {
                Release::Settled
            } else {
                Release::ToLeft
            };
        }
        if let Some(lease) = self.old.iter_mut().find(|l| l.generation == generation) {
            lease.hand_back(units);
            lease.held -= units;
        } else if let Some(at) = self.voided.iter().position(|v| v.generation == generation) {
            self.voided[at].held -= units;
            if self.voided[at].held == 0 {
                self.voided.swap_remove(at);
            }
        }
        Release::Settled
    }

    /// Forgets an ended generation whose final report was acknowledged.
    pub(crate) fn forget(&mut self, generation: u64) {
        self.old
            .retain(|lease| lease.generation != generation || lease.held > 0);
    }

    /// Nothing at all has to be accounted for any more.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.old.is_empty() && self.voided.is_empty() && self.overrun == 0
    }

    /// The present lease's totals, and those of ended ones into `ended`.
    pub(crate) fn totals(&self, left: u64, ended: &mut Vec<Totals>) -> Option<Totals> {
        ended.clear();
        ended.extend(self.old.iter().map(|lease| lease.totals(0)));
        self.current.as_ref().map(|lease| lease.totals(left))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn books(granted: u64, held: u64) -> Books {
        let lease = Lease {
            granted,
            held,
            ..Lease::new(1, 100)
        };
        Books {
            current: Some(lease),
            ..Books::default()
        }
    }

    #[test]
    fn what_is_left_of_an_ended_lease_is_returned() {
        let mut books = books(10, 2);
        books.end_current(5);
        let mut ended = Vec::new();
        assert_eq!(books.totals(0, &mut ended), None);
        assert_eq!(
            (ended[0].spent, ended[0].returned, ended[0].held),
            (3, 5, 2)
        );
    }

    #[test]
    fn a_hold_cancelled_after_its_lease_ended_is_returned() {
        let mut books = books(10, 2);
        books.end_current(5);
        let released = books.release(1, 2, false, |_| unreachable!("the lease ended"));
        assert_eq!(released, Release::Settled);
        let mut ended = Vec::new();
        books.totals(0, &mut ended);
        assert_eq!(
            (ended[0].spent, ended[0].returned, ended[0].held),
            (3, 7, 0)
        );
    }

    #[test]
    fn an_ended_lease_is_kept_while_anything_is_held() {
        let mut books = books(10, 2);
        books.end_current(5);
        books.forget(1);
        assert!(!books.is_empty());
        assert!(books.commit(1, 2, 99));
        books.forget(1);
        assert!(books.is_empty());
    }

    #[test]
    fn a_hold_of_a_voided_lease_can_only_be_released() {
        let mut books = books(10, 2);
        let mut settled = Vec::new();
        books.void(5, &mut settled);
        assert_eq!(settled, [(1, 3)], "held units are settled as unspent");
        assert!(!books.commit(1, 2, 0));
        books.release(1, 2, false, |_| unreachable!("the lease is void"));
        assert!(books.is_empty());
    }

    #[test]
    fn what_was_put_aside_is_returned_with_its_lease() {
        let mut books = books(10, 2);
        if let Some(lease) = &mut books.current {
            (lease.parked, lease.is_parked) = (4, true);
        }
        books.end_current(1);
        let mut ended = Vec::new();
        books.totals(0, &mut ended);
        assert_eq!(
            (ended[0].spent, ended[0].returned, ended[0].held),
            (3, 5, 2)
        );
    }

    #[test]
    fn a_hold_cancelled_after_a_close_is_returned() {
        let mut books = books(10, 3);
        let released = books.release(1, 2, true, |_| unreachable!("nothing becomes left"));
        assert_eq!(released, Release::Settled);
        let totals = books.totals(5, &mut Vec::new()).unwrap();
        assert_eq!((totals.spent, totals.returned, totals.held), (2, 2, 1));
    }

    #[test]
    fn a_hold_cancelled_while_its_lease_is_put_aside_is_put_aside() {
        let mut books = books(10, 3);
        if let Some(lease) = &mut books.current {
            (lease.parked, lease.is_parked) = (4, true);
        }
        let released = books.release(1, 2, false, |_| unreachable!("nothing becomes left"));
        assert_eq!(released, Release::Settled);
        let totals = books.totals(0, &mut Vec::new()).unwrap();
        assert_eq!((totals.spent, totals.left, totals.held), (3, 6, 1));
    }

    #[test]
    fn a_hold_that_is_cancelled_is_left_before_it_stops_being_held() {
        let mut books = books(10, 3);
        let mut raised = 0;
        let released = books.release(1, 2, false, |units| raised = units);
        assert_eq!((released, raised), (Release::ToLeft, 2));
        let totals = books.totals(7, &mut Vec::new()).unwrap();
        assert_eq!((totals.spent, totals.held), (2, 1));
    }

    #[test]
    fn a_lease_that_is_known_is_not_taken_over_again() {
        let mut books = books(10, 0);
        books.adopt_unseen(1, 10, 0);
        let mut ended = Vec::new();
        books.totals(10, &mut ended);
        assert_eq!(ended, [], "it is the present one");
        books.end_current(7);
        books.adopt_unseen(1, 10, 0);
        books.totals(0, &mut ended);
        assert_eq!((ended.len(), ended[0].returned), (1, 7));
        books.adopt_unseen(3, 4, 0);
        books.totals(0, &mut ended);
        assert_eq!(ended.len(), 2);
    }

    #[test]
    fn a_generation_is_taken_for_void_while_something_is_held_of_it() {
        let mut settled = Vec::new();
        let mut free = books(10, 0);
        free.void(5, &mut settled);
        assert!(!free.is_voided(1));
        let mut held = books(10, 2);
        held.void(5, &mut settled);
        assert!(held.is_voided(1) && !held.is_voided(2));
        held.release(1, 1, false, |_| unreachable!("the lease is void"));
        assert!(held.is_voided(1));
        held.release(1, 1, false, |_| unreachable!("the lease is void"));
        assert!(!held.is_voided(1));
    }

    #[test]
    fn an_unseen_lease_is_handed_back_without_inventing_units() {
        let mut books = Books::default();
        books.adopt_unseen(7, 10, 4);
        let mut ended = Vec::new();
        books.totals(0, &mut ended);
        assert_eq!((ended[0].spent, ended[0].returned), (4, 6));
        assert_eq!(books.floor, 7);
    }
}
