//! The gateways' service over a real node with a real store, spoken to by the
//! generated client and nothing else.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod bad_messages;
mod floods;
mod gateway;
mod leases;
mod real_client;
mod sessions;
mod three_nodes;
