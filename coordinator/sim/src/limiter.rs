//! A design under test. Knows nothing of traffic.

use crate::request::{Answer, Request};

/// Messages that a design sent so far, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// What one key was the reason for: asks and their answers, pushed grants,
    /// recalls and what comes back, reports that could not wait for the next
    /// regular sync. For a design that asks a store: requests and answers.
    pub keyed: u64,
    /// Regular syncs and their answers, which carry all keys at once and are sent
    /// whether there is anything to say or not.
    pub regular: u64,
    /// Answers to the former that say nothing but that it has arrived.
    pub acknowledgements: u64,
}

impl Messages {
    /// Those since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            keyed: self.keyed - earlier.keyed,
            regular: self.regular - earlier.regular,
            acknowledgements: self.acknowledgements - earlier.acknowledgements,
        }
    }
}

/// What a design asks of its coordinator, so far: the figures that say how large
/// one must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Messages to the coordinator that one key was the reason for.
    pub keyed_up: u64,
    /// Messages from the coordinator that one key was the reason for.
    pub keyed_down: u64,
    /// Regular syncs to the coordinator.
    pub regular_up: u64,
    /// Answers to regular syncs.
    pub regular_down: u64,
    /// Entries that the coordinator put into its log.
    pub entries: u64,
    /// Reports and asks of single keys in them.
    pub reports: u64,
}

impl Work {
    /// That since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            keyed_up: self.keyed_up - earlier.keyed_up,
            keyed_down: self.keyed_down - earlier.keyed_down,
            regular_up: self.regular_up - earlier.regular_up,
            regular_down: self.regular_down - earlier.regular_down,
            entries: self.entries - earlier.entries,
            reports: self.reports - earlier.reports,
        }
    }
}

/// A design that answers requests, in virtual time.
pub trait Limiter {
    /// A request arrives. Its answer is appended to `answers` now or by a later
    /// call; exactly one per request, each with a time that is not before now.
    fn request(&mut self, request: &Request, answers: &mut Vec<Answer>);

    /// When something happens inside though nobody asks, if anything will.
    fn next_us(&self) -> Option<u64>;

    /// Lets what is due at `now_us` happen.
    fn advance(&mut self, now_us: u64, answers: &mut Vec<Answer>);

    /// Messages sent so far.
    fn messages(&self) -> Messages;

    /// What its coordinator has to do, if it has one that keeps a log.
    fn work(&self) -> Option<Work> {
        None
    }
}
