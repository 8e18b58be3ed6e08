//! Nobody gets in where they don't belong, and nobody who is in can hurt the others: real
//! nodes with TLS and tokens, and what SECURITY.md says cannot be done to them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod claims;
mod floods;
mod neighbour;
mod rotation;
