//! The `leasehold` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold_coordinator::cli::main()
}
