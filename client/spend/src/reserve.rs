//! Units that are reserved for work whose cost is known afterwards. Knows nothing
//! of how a request waits, nor of the wire.
//!
//! A reservation is admitted when it is made: its units are taken, then the clock
//! is looked at, as for any spend. Until it is settled they are *held*, so they are
//! outstanding in the coordinator's books and nobody else can use them. Settling
//! only ever frees what was not used. So it needs no look at the clock, and it does
//! no harm that it comes after the lease's deadline: as long as the session lives
//! the unused units are put aside with the rest, and once it is gone there is
//! nothing to settle any more.
//!
//! Nobody knows what became of work that is never settled, so it is taken for done:
//! after `hold_max` a reservation counts as spent in full, and so it does when its
//! session ends or the client is closed under it. The driver sees to that without
//! the holder's help. Whoever settles later is told so, and can only add to it.
//!
//! What was used beyond a reservation is taken from what is left here, by the usual
//! take and look. The rest has no units: it becomes *overrun*, a total of the lease
//! that its reports carry. Overrun that no report of a lost session is known to have
//! told is told again by the key's next lease; it is counted twice if that report
//! had arrived and only the answer was lost, rather than never.

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    clock::{Clock, SECOND},
    lane::Lane,
    queue::Patience,
    slot::{Inner, Slot},
    sync::taken_before_look,
    verdict::Verdict,
    waiting::{Begun, Use, Waiter},
};

/// How long a reservation may stay unsettled when the policy does not say.
const HOLD_MAX_NS: u64 = 60 * SECOND;

/// What the slot knows of a reservation, by its end and its number.
#[derive(Debug)]
pub(crate) struct Reserved {
    generation: u64,
    units: u64,
}

/// When a reservation ends, and its number.
type Ticket = (u64, u64);

/// Units that are reserved until they are settled. Dropped, it hands all of them
/// back.
#[derive(Debug)]
#[must_use = "a reservation that is dropped hands its units back"]
pub struct Reservation {
    slot: Arc<Slot>,
    ticket: Ticket,
    units: u64,
    is_done: bool,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settled {
    /// No more was used than was reserved.
    Within {
        /// Reserved units that were handed back.
        returned: u64,
    },
    /// More was used than was reserved.
    Over {
        /// Units beyond the reservation that were taken from what was left here.
        taken: u64,
        /// Units that there were none for: reported as overrun.
        overrun: u64,
    },
    /// It counts as spent in full, whatever was used: its time was over, or its
    /// session had ended, or the client was closed.
    TooLate {
        /// Units beyond the reservation: reported as overrun, unless the client was
        /// closed.
        overrun: u64,
    },
}

impl Slot {
    /// Reserves units, or begins to wait for them.
    ///
    /// # Errors
    /// How it goes on: the answer, if it is not admitted, or the wait.
    pub fn reserve(
        self: &Arc<Self>,
        units: u64,
        patience: Patience,
        clock: &impl Clock,
    ) -> Result<Reservation, Begun> {
        if let Some(reservation) = self.take_as(Use::Spend, units, clock, Slot::kept(clock)) {
            return Ok(reservation);
        }
        let miss = self.miss_as(Use::Spend, Lane::LOWEST, units, clock);
        Err(self.begin_after(miss, Lane::LOWEST, units, patience, clock))
    }

    /// Reserves units of what is here.
    ///
    /// # Errors
    /// The answer, if it is not admitted.
    pub fn try_reserve(
        self: &Arc<Self>,
        units: u64,
        clock: &impl Clock,
    ) -> Result<Reservation, Verdict> {
        if let Some(reservation) = self.take_as(Use::Spend, units, clock, Slot::kept(clock)) {
            return Ok(reservation);
        }
        let miss = self.miss_as(Use::Spend, Lane::LOWEST, units, clock);
        let miss = self.settle_own(miss, units, clock);
        let verdict = self.answer_miss(miss, Lane::LOWEST, units, clock);
        Err(self.shade(verdict))
    }

    /// Turns held units into a reservation, whose time begins now.
    fn keep_reserved(
        self: &Arc<Self>,
        inner: &mut Inner,
        generation: u64,
        units: u64,
        clock: &impl Clock,
    ) -> Reservation {
        let hold_max_ns = match self.hold_max_ns() {
            0 => HOLD_MAX_NS,
            stated => stated,
        };
        let ticket = (
            clock.now_ns().saturating_add(hold_max_ns),
            inner.next_number(),
        );
        inner
            .reserved
            .insert(ticket, Reserved { generation, units });
        Reservation {
            slot: Arc::clone(self),
            ticket,
            units,
            is_done: false,
        }
    }

    /// Counts the reservations as spent whose time is over.
    pub fn expire_reservations(&self, now_ns: u64) {
        let mut inner = self.lock();
        let Inner {
            books, reserved, ..
        } = &mut *inner;
        while let Some(entry) = reserved.first_entry()
            && entry.key().0 <= now_ns
        {
            let Reserved { generation, units } = entry.remove();
            books.spend_held(generation, units);
        }
    }

    /// Counts all reservations as spent: their lease ends now, and nobody will ever
    /// know.
    pub(crate) fn spend_reserved(inner: &mut Inner) {
        let Inner {
            books, reserved, ..
        } = inner;
        while let Some((_, Reserved { generation, units })) = reserved.pop_first() {
            books.spend_held(generation, units);
        }
    }

    fn settle(&self, ticket: Ticket, reserved: u64, actual: u64, clock: &impl Clock) -> Settled {
        let mut wakes = Vec::new();
        let beyond = actual.saturating_sub(reserved);
        let mut inner = self.lock();
        let settled = match inner.reserved.remove(&ticket) {
            Some(Reserved { generation, units }) if clock.now_ns() < ticket.0 => {
                let used = units.min(actual);
                inner.books.spend_held(generation, used);
                let returned = units - used;
                if returned > 0 {
                    self.give_up_held(&mut inner, generation, returned, &mut wakes);
                }
                if beyond == 0 {
                    Settled::Within { returned }
                } else {
                    let taken = self.take_up_to(&mut inner, beyond, clock, &mut wakes);
                    let overrun = beyond - taken;
                    Settled::Over { taken, overrun }
                }
            }
            late => {
                if let Some(Reserved { generation, units }) = late {
                    inner.books.spend_held(generation, units);
                }
                Settled::TooLate { overrun: beyond }
            }
        };
        let mut rings = self.is_at_bell(self.left());
        if let Settled::Over { overrun, .. } | Settled::TooLate { overrun } = settled
            && overrun > 0
            && !self.is_closed()
        {
            inner.books.charge_overrun(overrun);
            // It may have to ask for a lease that can carry it.
            rings |= inner.books.current.is_none();
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
        if rings {
            self.ring();
        }
        settled
    }

    /// Spends at most `units` of what is left, and says how many: taken first, then
    /// judged by the clock. Nobody who waits is overtaken.
    fn take_up_to(
        &self,
        inner: &mut Inner,
        units: u64,
        clock: &impl Clock,
        wakes: &mut Vec<Waker>,
    ) -> u64 {
        loop {
            if let Some(lease) = inner.books.current.as_mut().filter(|lease| lease.is_own) {
                // It grants itself what was used: counted, and an estimate.
                lease.granted += units;
                return units;
            }
            let some = units.min(self.left());
            if some == 0 || !inner.queue.is_empty() || self.wrong_kind(Use::Spend).is_some() {
                return 0;
            }
            let Some(generation) = self.take_in_turn(inner, Lane::LOWEST, some, clock) else {
                // A spender was faster, or the lease is put aside.
                if self.left() < some && !inner.gate.is_shut() {
                    continue;
                }
                return 0;
            };
            taken_before_look();
            let now = clock.now_ns();
            if inner.books.commit(generation, some, now) {
                return some;
            }
            self.park(inner, now);
            self.give_up_held(inner, generation, some, wakes);
            return 0;
        }
    }

    fn cancel_reservation(&self, ticket: Ticket) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        // If it is gone, it was counted as spent.
        if let Some(Reserved { generation, units }) = inner.reserved.remove(&ticket)
            && units > 0
        {
            self.give_up_held(&mut inner, generation, units, &mut wakes);
        }
        drop(inner);
        wakes.into_iter().for_each(Waker::wake);
    }
}

impl Reservation {
    /// How many units it has.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// `Admitted`, or `Estimated` if the budget is an estimate.
    pub fn verdict(&self) -> Verdict {
        self.slot.admitted()
    }

    /// When it will count as spent, by the client's clock.
    #[must_use]
    pub fn until_ns(&self) -> u64 {
        self.ticket.0
    }

    /// Says what was really used. Less: the rest is handed back. More: it is taken
    /// from what is left here as far as it goes, and recorded as overrun beyond.
    pub fn settle(mut self, actual: u64, clock: &impl Clock) -> Settled {
        self.is_done = true;
        self.slot.settle(self.ticket, self.units, actual, clock)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_done {
            self.slot.cancel_reservation(self.ticket);
        }
    }
}

impl Waiter {
    /// As [`poll`](Self::poll), of a request that wants to reserve.
    pub fn poll_reserved(
        &mut self,
        context: &mut Context<'_>,
        clock: &impl Clock,
    ) -> Poll<Result<Reservation, Verdict>> {
        let decision = self.poll_decision(context);
        decision.map(|decision| self.conclude_as(Use::Spend, decision, clock, Slot::kept(clock)))
    }

    /// As [`give_up`](Self::give_up), of a request that wants to reserve.
    ///
    /// # Errors
    /// The answer, if it is not admitted.
    pub fn give_up_reserved(mut self, clock: &impl Clock) -> Result<Reservation, Verdict> {
        match self.leave() {
            Some(decision) => self.conclude_as(Use::Spend, decision, clock, Slot::kept(clock)),
            None => Err(self.time_out(Use::Spend, clock)),
        }
    }
}

impl Slot {
    /// Keeps what a waiter was served as a reservation.
    fn kept<C: Clock>(
        clock: &C,
    ) -> impl FnOnce(&Arc<Self>, &mut Inner, u64, u64) -> Reservation + use<'_, C> {
        move |slot, inner, generation, units| slot.keep_reserved(inner, generation, units, clock)
    }
}
