//! The sidecar that brings Leasehold to gateways which are not written in Rust.
//!
//! Gateways ask it over HTTP (`check`) or over gRPC as Envoy does (`rls`) whether a
//! request may go ahead; both make of a request what it costs of which keys, and
//! `decide` spends. Everything else is around that: one file of settings (`config`,
//! taken anew by `reload` when it changes), sockets (`listen`, `serve`), and what
//! operators look at (`health`, `metrics`).
//!
//! [`import`] makes a coordinator's budgets what files of envoyproxy/ratelimit say, which
//! [`ratelimit`] reads.
//!
//! It knows the client crate and nothing of the coordinator's inside.

mod agent;
#[cfg(test)]
#[path = "../../../doors/tests/authority/mod.rs"]
mod authority;
mod check;
pub mod cli;
mod config;
mod decide;
mod health;
pub mod import;
mod listen;
mod metrics;
pub mod ratelimit;
mod reload;
mod repeats;
mod rls;
mod said;
mod serve;
