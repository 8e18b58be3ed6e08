//! Cuts the power of a store at any moment, again and again, and flips its bits.
//!
//! `cargo run -p leasehold-tests --bin power-cut -- --cuts 1000 --seed 1` records
//! what real processes write and sync (it needs strace), rebuilds the folder as a
//! file system could leave it, opens it, and prints one JSON object, which it adds
//! to `tests/results/power-cut.jsonl`. It fails when something acknowledged is
//! lost, or when a store does not start after a cut alone.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use leasehold_tests::{
    append_results,
    power_cut::{self, Outcome, Plan, ServePlan},
    results_file,
};
use serde_json::json;

#[derive(Parser)]
struct Flags {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    campaign: Campaign,
}

#[derive(Subcommand)]
enum Command {
    /// The process that is recorded: writes to a store
    #[command(hide = true)]
    Live {
        dir: PathBuf,
        notes: PathBuf,
        seed: u64,
        demands: u32,
    },
}

#[derive(Args)]
struct Campaign {
    /// How often power is cut under a store that is written to
    #[arg(long, default_value_t = 400)]
    cuts: usize,
    /// How often bits are flipped
    #[arg(long, default_value_t = 200)]
    flips: usize,
    /// How often power is cut under `leasehold serve`
    #[arg(long, default_value_t = 100)]
    serve_cuts: usize,
    /// Decides everything but how threads run
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Keeps folders that break a promise
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Adds the result to tests/results/power-cut.jsonl
    #[arg(long)]
    record: bool,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let done = match flags.command {
        Some(Command::Live {
            dir,
            notes,
            seed,
            demands,
        }) => power_cut::live(&dir, &notes, seed, demands).map(|()| true),
        None => campaign(&flags.campaign),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("power-cut: {error}");
            ExitCode::FAILURE
        }
    }
}

fn campaign(flags: &Campaign) -> Outcome<bool> {
    if let Some(why) = power_cut::missing() {
        return Err(format!("{why}; on Debian, apt-get install strace").into());
    }
    let program = std::env::current_exe()?;
    let report = power_cut::run(&Plan {
        cuts: flags.cuts,
        flips: flags.flips,
        seed: flags.seed,
        program: program.clone(),
        keep: flags.keep.clone(),
    })?;
    let serve = power_cut::cut_serve(&ServePlan {
        cuts: flags.serve_cuts,
        seed: flags.seed,
        leasehold: program.with_file_name("leasehold-under-test"),
    })?;
    for told in report.told.iter().chain(&serve.told) {
        eprintln!("{told}");
    }
    let line = json!({
        "command": format!(
            "power-cut --cuts {} --flips {} --serve-cuts {} --seed {}",
            flags.cuts, flags.flips, flags.serve_cuts, flags.seed
        ),
        "store": report,
        "serve": serve,
    });
    println!("{line}");
    if flags.record {
        append_results(&results_file("power-cut.jsonl"), &[line])?;
    }
    Ok(report.is_good() && serve.is_good())
}
