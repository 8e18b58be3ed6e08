//! The `leasehold-agent` binary once more, so that the tests of this package always
//! run the code that they were built with.

fn main() -> std::process::ExitCode {
    leasehold_agent::cli::main()
}
