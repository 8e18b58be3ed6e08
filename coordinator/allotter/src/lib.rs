//! The allotter: the leader's lease policy. It decides how much to propose for
//! whom, whom to ask for units back, and whom to tell no.
//!
//! Pure: it knows no clock, no log, no network and no stream. Nothing of it is
//! replicated. It may be wrong or lose its memory without the limit being at
//! risk, because the ledger clamps every grant to what is free when the entry is
//! applied; a new leader starts with an empty one and learns from the next
//! reports, since clients always state levels.

mod allotter;
mod book;
mod fair;
mod level;
mod recall;
mod scarce;
mod serve;

pub use allotter::{Allotter, Conclusion, Refused};
pub use level::{LaneLevel, Level};
pub use recall::Recall;
