//! The ledger as a whole: transcripts, a naive model, intervals, bytes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod churn;
mod counted;
mod edits;
mod explain;
mod golden;
mod golden_v6;
mod golden_v7;
mod hostile;
mod intervals;
mod log;
mod model;
mod naive;
mod once;
mod ops;
mod play;
mod restored_kinds;
mod scenario;
mod snapshots;
mod telling;
mod words;
