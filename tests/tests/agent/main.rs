//! The agent's contract with gateways: real processes, real sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod check;
mod life;
mod outage;
mod rls;
mod setup;
mod together;
