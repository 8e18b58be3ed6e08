//! Nodes and gateways in three regions, 40 ms apart each way: real processes, real
//! sockets through links that delay.
//!
//! `cargo run --release -p leasehold-tests --bin regions -- --minutes 3` prints what
//! happened and one JSON object, adds that to `tests/results/regions.jsonl`, and
//! fails when a promise was broken. Build the whole package first: it starts the
//! binaries that lie beside it.

use std::{error::Error, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use leasehold_tests::{
    append_results,
    nemesis::{
        end_on_signal,
        regions::{Plan, run},
    },
    results_file,
};

#[derive(Parser)]
struct Flags {
    /// How long is measured, in minutes; some three more are needed around it
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Milliseconds from one region to another, one way
    #[arg(long, default_value_t = 40)]
    distance: u64,
    /// Units of the busy key a minute; as many requests come for it
    #[arg(long, default_value_t = 10_000)]
    limit: u64,
    /// How long a request for the busy key waits at most, in milliseconds
    #[arg(long, default_value_t = 150)]
    max_wait: u64,
    /// Most refusals beyond an exact central log, in points
    #[arg(long, default_value_t = 0.5)]
    excess: f64,
    /// Most requests that wait, in percent
    #[arg(long, default_value_t = 10.0)]
    waits: f64,
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// Where the result is added [default: tests/results/regions.jsonl]
    #[arg(long)]
    results: Option<PathBuf>,
}

fn main() -> ExitCode {
    match attempt(Flags::parse()) {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            for complaint in complaints {
                eprintln!("regions: {complaint}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("regions: {error}");
            ExitCode::from(2)
        }
    }
}

fn attempt(flags: Flags) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
    let own = std::env::current_exe()?;
    let plan = Plan {
        minutes: flags.minutes,
        distance: Duration::from_millis(flags.distance),
        limit: flags.limit,
        busy_max_wait_ms: flags.max_wait,
        excess_max_pp: flags.excess,
        waited_max_pct: flags.waits,
        leasehold: flags
            .leasehold
            .unwrap_or_else(|| own.with_file_name("leasehold-under-test")),
        gateway: own.with_file_name("gateway"),
        stop: end_on_signal()?,
    };
    for needed in [&plan.leasehold, &plan.gateway] {
        if !needed.exists() {
            return Err(format!(
                "{} is not there; build all of this package first: cargo build --release -p \
                 leasehold-tests",
                needed.display()
            )
            .into());
        }
    }
    let report = run(&plan)?;
    println!("{}", report.json);
    let results = flags
        .results
        .unwrap_or_else(|| results_file("regions.jsonl"));
    append_results(&results, &[report.json])?;
    println!("added to {}", results.display());
    Ok(report.complaints)
}
