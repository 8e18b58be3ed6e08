//! Who gets in and who does not, by real requests to a real node that has an identities
//! file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

mod ground;
mod identities;
mod keys;
mod limits;
mod routes;
mod secrets;
mod sessions;
mod stream;
