//! The coordinator: a Raft-replicated ledger behind a gRPC service for gateways
//! and an HTTP API for operators. The rules themselves live in the pure crates
//! `leasehold-ledger` and `leasehold-allotter`; this crate gives them a log, a
//! clock, sockets and a command line.
//!
//! Who may know what: only `raft` names openraft, only `store` names sled, only
//! `clock` reads a clock for cluster time, only `admin::problem` maps errors to
//! HTTP statuses.

pub mod access;

pub mod admin;

pub mod backup;

pub mod cli;

pub mod clock;

pub mod config;

pub mod node;

mod file_limit;
mod listeners;
mod plain_words;

pub mod raft;

#[cfg(test)]
mod runbook;

pub(crate) mod sequencer;

pub mod serve;

pub mod service;

pub(crate) mod shadowed;

pub mod store;
