//! Breaks a cluster of real processes in every way that this machine allows, and
//! judges what its gateways and operators saw.
//!
//! `cargo run --release -p leasehold-tests --bin nemesis -- --minutes 10 --seed 1`
//! prints what happened and one JSON object, and fails when a promise was broken.
//! Build the whole package first: it starts the binaries that lie beside it. As
//! root it uses network namespaces; `strace` and `libfaketime` allow more faults.

use std::{error::Error, path::PathBuf, process::ExitCode, sync::atomic::Ordering};

use clap::Parser;
use leasehold_tests::{
    append_results,
    nemesis::{Plan, Report, end_on_signal, fault_names, run},
};

#[derive(Parser)]
struct Flags {
    /// How long faults are injected, in minutes
    #[arg(long, default_value_t = 4.0)]
    minutes: f64,
    /// What the schedule is drawn from [default: another one each time]
    #[arg(long)]
    seed: Option<u64>,
    /// Coordinators, 3 or 5
    #[arg(long, default_value_t = 3)]
    nodes: u64,
    /// Gateway processes
    #[arg(long, default_value_t = 4)]
    gateways: u64,
    /// Kinds of faults, separated by commas [default: all]; `list` lists them
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// Only the JSON object on standard output
    #[arg(long)]
    json: bool,
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// Another build of it, for rolling upgrades
    #[arg(long)]
    upgrade_to: Option<PathBuf>,
    /// A file that the JSON object is added to, as tests/results/nemesis.jsonl
    #[arg(long)]
    results: Option<PathBuf>,
    /// Keep the files of the run whatever comes of it
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    match attempt(Flags::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nemesis: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every promise was kept.
fn attempt(flags: Flags) -> Result<bool, Box<dyn Error + Send + Sync>> {
    let known = fault_names();
    if flags.faults.iter().any(|name| name == "list") {
        for name in known {
            println!("{name}");
        }
        return Ok(true);
    }
    if let Some(unknown) = flags
        .faults
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        return Err(format!(
            "--faults: {unknown} is unknown; there are {}",
            known.join(", ")
        )
        .into());
    }
    if !(1..=9).contains(&flags.nodes) || !(1..=16).contains(&flags.gateways) {
        return Err("--nodes must be 1 to 9 and --gateways 1 to 16".into());
    }
    let own = std::env::current_exe()?;
    let plan = Plan {
        minutes: flags.minutes,
        seed: flags.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        nodes: flags.nodes,
        gateways: flags.gateways,
        faults: flags.faults,
        leasehold: flags
            .leasehold
            .unwrap_or_else(|| own.with_file_name("leasehold-under-test")),
        gateway: own.with_file_name("gateway"),
        upgrade_to: flags.upgrade_to,
        keeps_files: flags.keep,
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
    let report: Report = run(&plan)?;
    if flags.json {
        eprintln!("{}", report.text());
    } else {
        println!("{}", report.text());
    }
    println!("{}", report.json());
    if let Some(results) = flags.results {
        append_results(&results, &[report.json()])?;
    }
    if plan.stop.load(Ordering::Relaxed) {
        return Err("it was told to stop before its time".into());
    }
    Ok(report.is_fine())
}
