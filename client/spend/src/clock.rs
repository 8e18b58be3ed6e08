//! Time as the core sees it: readings of a client clock in nanoseconds from an
//! arbitrary origin. Knows no clock.

/// A client clock. Readings never go backwards.
pub trait Clock {
    /// Elapsed time that is never less than what really passed, up to the
    /// assumed drift: what deadlines are judged by.
    fn now_ns(&self) -> u64;

    /// Elapsed time that is never more than what really passed, up to the
    /// assumed drift: what the ages in reports are made of.
    fn floor_ns(&self) -> u64 {
        self.now_ns()
    }
}

impl<C: Clock + ?Sized> Clock for &C {
    fn now_ns(&self) -> u64 {
        (**self).now_ns()
    }

    fn floor_ns(&self) -> u64 {
        (**self).floor_ns()
    }
}

/// A reading that stands still: what a simulator with virtual time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub u64);

impl Clock for At {
    fn now_ns(&self) -> u64 {
        self.0
    }
}

/// One millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND: u64 = 1_000_000_000;
