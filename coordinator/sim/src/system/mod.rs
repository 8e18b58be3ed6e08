//! The product in virtual time: the real ledger, the real lease policy and the
//! real client core, and a network of the simulator's between them.

mod setup;

pub use setup::{Fault, FaultKind, Network, RequestPatience, Setup, promise_of, shipped_policy};
