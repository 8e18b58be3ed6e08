//! The binary `leasehold-agent`.

fn main() -> std::process::ExitCode {
    leasehold_agent::cli::main()
}
