//! A request and its answer, whatever the design. Knows nothing of how it is
//! decided.

/// One request at one gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number: 0, 1, 2 … in the order of arrival.
    pub id: u64,
    /// When it arrives, in microseconds.
    pub at_us: u64,
    /// Where, from 0.
    pub gateway: usize,
    /// Which key it spends, from 0.
    pub key: usize,
    /// What it costs.
    pub units: u64,
    /// Its lane in the key's policy, 0 is the highest; one that there is not is the
    /// lowest. Only the product knows lanes.
    pub lane: u32,
}

/// The lowest lane, however many there are.
pub const LOWEST_LANE: u32 = u32::MAX;

/// What it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its units were taken.
    Admitted,
    /// There were none.
    Refused {
        /// When it is worth trying again, in microseconds from the answer; none:
        /// not said.
        retry_after_us: Option<u64>,
    },
    /// Nobody could be asked.
    Unavailable,
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's number.
    pub id: u64,
    /// When it is answered; the admission instant of an admitted one.
    pub at_us: u64,
    /// The answer.
    pub verdict: Verdict,
    /// It had to wait for a message from somewhere else.
    pub waited: bool,
}
