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
#[path = "../../../coordinator/ledger/tests/ledger/log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod log;
#[path = "../../../coordinator/ledger/tests/ledger/model.rs"]
mod model;
#[path = "../../../coordinator/ledger/tests/ledger/naive.rs"]
mod naive;

mod grammar;
mod records;
pub mod store;

/// A target.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 7] = [
    ("commands", commands),
    ("entries", records::entries),
    ("http_bodies", http_bodies),
    ("keys", grammar::keys),
    ("ledger_snapshot", records::ledger_snapshot),
    ("messages", messages),
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

/// Command sequences against the naive model: the bytes seed its random choices.
fn commands(bytes: &[u8]) {
    use proptest::{
        strategy::{Strategy as _, ValueTree as _},
        test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
    };
    // proptest's choices cannot be the bytes themselves: it halves what is left of them
    // at each alternative, and takes zeros then.
    let mut seed = [0; 32];
    for (place, byte) in bytes.iter().enumerate() {
        let mixed = seed[place % 32] ^ byte;
        seed[place % 32] = mixed.rotate_left(3).wrapping_add(1);
    }
    let choices = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), choices);
    if let Ok(run) = model::runs().new_tree(&mut runner) {
        let (start, steps) = run.current();
        model::play(start, steps);
    }
}

/// Bodies of the admin API.
fn http_bodies(bytes: &[u8]) {
    let _ = leasehold_coordinator::admin::bodies_that_read(bytes);
}

/// What gateways send.
fn messages(bytes: &[u8]) {
    let _ = leasehold_coordinator::service::messages_that_read(bytes);
}
