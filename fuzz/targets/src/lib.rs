//! What is fuzzed. Knows nothing of fuzzers: each target is a function of bytes that
//! panics when a promise is broken, run by `fuzz/fuzz_targets/` with a fuzzer and by
//! `tests/corpora.rs` with the committed corpora.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a target fails by panicking"
)]

// The ledger's own test model, as it is there.
#[path = "../../../coordinator/ledger/tests/ledger/counted.rs"]
mod counted;
#[path = "../../../coordinator/ledger/tests/ledger/log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod log;
#[path = "../../../coordinator/ledger/tests/ledger/naive.rs"]
mod naive;
#[path = "../../../coordinator/ledger/tests/ledger/ops.rs"]
mod ops;
#[path = "../../../coordinator/ledger/tests/ledger/play.rs"]
mod play;

mod commands;
mod grammar;
mod records;
#[cfg(feature = "coordinator")]
pub mod store;

/// A target.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("commands", commands::commands),
    ("entries", records::entries),
    #[cfg(feature = "coordinator")]
    ("http_bodies", http_bodies),
    #[cfg(feature = "coordinator")]
    ("identities", identities),
    ("keys", grammar::keys),
    ("ledger_snapshot", records::ledger_snapshot),
    #[cfg(feature = "coordinator")]
    ("messages", messages),
    #[cfg(feature = "coordinator")]
    ("store_open", store::open),
];

/// The target with this name.
///
/// # Panics
/// When there is none.
pub fn run(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    found.expect("a target's name").1(bytes);
}

/// Bodies of the admin API.
#[cfg(feature = "coordinator")]
fn http_bodies(bytes: &[u8]) {
    let _ = leasehold_coordinator::admin::bodies_that_read(bytes);
}

/// Who may come in, as the file says; what is wrong with it is said without a token that
/// somebody wrote into it.
#[cfg(feature = "coordinator")]
fn identities(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Err(said) = leasehold_coordinator::access::identities_that_read(text) else {
        return;
    };
    let secrets = text
        .match_indices("lh_")
        .filter_map(|(at, _)| text.get(at..at + 59));
    for secret in secrets.filter(|secret| is_token(secret)) {
        assert!(!said.contains(secret), "a token is said");
    }
}

/// Whether it has the form of a token: `lh_`, 12 hexadecimal digits, `_` and 43 more.
#[cfg(feature = "coordinator")]
fn is_token(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    bytes.len() == 59 && bytes[15] == b'_' && bytes.iter().all(is_word)
}

/// What gateways send.
#[cfg(feature = "coordinator")]
fn messages(bytes: &[u8]) {
    let _ = leasehold_coordinator::service::messages_that_read(bytes);
}
