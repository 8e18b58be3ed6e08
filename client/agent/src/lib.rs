//! The sidecar that brings Leasehold to gateways which are not written in Rust.

pub mod ratelimit;
