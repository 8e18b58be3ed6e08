//! Every kind of budget, and what is around them, through the real client and the HTTP
//! API against a cluster of three nodes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "tests"
)]

mod approximate;
mod cluster;
mod cooldown;
mod failure_modes;
mod lanes;
mod paced;
mod periods;
mod permits;
mod reservations;
mod shadow;
mod together;
mod totals;
