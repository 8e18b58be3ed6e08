//! Claims about the replica: openraft's storage suite, one node, three nodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod administration;
mod answers;
mod offline;
mod one_node;
mod suite;
mod three_nodes;
