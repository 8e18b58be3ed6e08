//! What entries can hold that are played to the ledger and to the naive model. Knows
//! nothing of who chooses them, nor of what comes of them.

use leasehold_ledger::{
    correction::Change,
    policy::{Calendar, Kind, PeriodUnit},
};

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// How much time passes first.
    pub(crate) pass_us: u64,
    pub(crate) ops: Vec<Op>,
    /// The ledger goes on from its snapshot afterwards.
    pub(crate) restart: bool,
}

/// What an entry holds.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open(u8),
    End(u8),
    Grant(u8, u64),
    Spend(u64),
    /// Under one of a few names.
    SpendOnce(u8, u64),
    Sync(Said),
    Settle(u8, u8, u64),
    /// A rule, and its cool-down.
    Edit(Kind, u64),
    Roll(u8, Begin),
    /// An operator moves the present period's bounds.
    CorrectPeriod(u8, Begin),
    Correct(u8, Change),
    CoolDown,
}

/// What a holder says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) session: u8,
    /// Of its leases, from the newest.
    pub(crate) lease: u8,
    /// Beyond what is known.
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) overrun: u64,
    pub(crate) ages: Vec<(u64, u64)>,
    pub(crate) held: u64,
    pub(crate) last: bool,
    pub(crate) close: bool,
    pub(crate) renew: bool,
    /// How far the message is out of order.
    pub(crate) late: u64,
}

/// When a period begins, by the one before, and in how long it is said to end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Begin {
    /// Just when the one before ends.
    Next(u64),
    /// Some periods later.
    Later(u64),
    /// Once more.
    Again,
    /// Before the one before has ended.
    Early,
    /// The one before the present one.
    Stale,
    /// It ends when it begins.
    Unsound,
}

pub(crate) fn calendar(number: u8) -> Calendar {
    let (unit, time_zone) = match number {
        0 => (PeriodUnit::Day, "Europe/Berlin"),
        _ => (PeriodUnit::Hour, "UTC"),
    };
    Calendar {
        unit,
        time_zone: time_zone.to_owned(),
        anchor: 0,
        anchor_month: 0,
    }
}
