//! The `leasehold` binary.

fn main() {}
