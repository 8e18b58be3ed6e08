//! The ledger: the replicated books of a Leasehold cluster.
//!
//! Pure: it knows no clock, no randomness, no network and no disk. Every replica
//! applies the same entries and reaches the same bytes.

pub mod entry;
mod interface;
pub mod outcome;
pub mod policy;
pub mod settings;
pub use interface::Ledger;
