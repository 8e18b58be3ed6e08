//! `leasehold simulate`: the simulator behind flags. Talks to no node.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::{ArgGroup, ValueEnum};
use leasehold_sim::{
    output::Bar,
    scenario::{COORDINATOR_MESSAGES_PER_S, Scenario},
    suite::{self, Conditions, Findings},
};

use super::complain;

/// Flags of `leasehold simulate`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = ArgGroup::new("what").required(true).args(["scenario", "suite"]))]
pub struct SimulateFlags {
    /// Your gateways, traffic and limits, as a TOML file; deploy/scenarios/ has some
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Runs that say something together
    #[arg(long)]
    suite: Option<Suite>,
    /// Print one JSON object for each row, a line each
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
    /// Write pictures (SVG) and the tables behind them (CSV) into this folder
    #[arg(long, value_name = "DIR", conflicts_with = "scenario")]
    pictures: Option<PathBuf>,
    /// Everything random comes from it [default: 1, or the scenario's]
    #[arg(long)]
    seed: Option<u64>,
    /// Fewer and shorter runs, with bounds widened accordingly
    #[arg(long, conflicts_with = "scenario")]
    reduced: bool,
    /// Messages per second that a coordinator of yours takes, for the scenario's plan.
    /// The default is what three nodes and 64 gateways took on one machine with 2 cores:
    /// cargo run --release -p leasehold-tests --bin bench
    #[arg(long, value_name = "N", default_value_t = COORDINATOR_MESSAGES_PER_S,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000), conflicts_with = "suite")]
    coordinator_messages_per_s: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Suite {
    /// The designs it is compared with, against published values
    Baselines,
    /// Questions that the published studies leave open
    Questions,
}

/// Runs it: exit code 0 when everything is within its bounds, 1 when something is
/// not or cannot be written, 2 when the scenario makes no sense.
#[must_use]
pub fn run(flags: &SimulateFlags) -> ExitCode {
    let bar = Bar::new();
    let findings = match (&flags.scenario, flags.suite) {
        (Some(file), _) => scenario(flags, file, &bar),
        (None, Some(suite)) => Ok(run_suite(flags, suite, &bar)),
        // The flags' group lets nobody come here.
        (None, None) => Err("say --scenario FILE or --suite NAME".to_owned()),
    };
    bar.clear();
    let findings = match findings {
        Ok(findings) => findings,
        Err(message) => {
            complain(&message);
            return ExitCode::from(2);
        }
    };
    let text = if flags.json {
        findings.json_lines()
    } else if flags.csv {
        findings.csv()
    } else {
        findings.text()
    };
    // A reader that went away (`| head`) is no error.
    let _ = io::stdout().write_all(text.as_bytes());
    let mut is_well = findings.hold();
    for complaint in &findings.complaints {
        complain(complaint);
    }
    if let Some(folder) = &flags.pictures {
        match findings.write_to(folder) {
            Ok(files) => {
                let _ = writeln!(
                    io::stderr(),
                    "{} files in {}",
                    files.len(),
                    folder.display()
                );
            }
            Err(error) => {
                complain(&error.to_string());
                is_well = false;
            }
        }
    }
    ExitCode::from(u8::from(!is_well))
}

fn scenario(flags: &SimulateFlags, file: &PathBuf, bar: &Bar) -> Result<Findings, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut scenario =
        Scenario::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    if let Some(seed) = flags.seed {
        scenario.setup.seed = seed;
    }
    let results = scenario.run(bar);
    Ok(results.findings(&scenario, flags.coordinator_messages_per_s))
}

fn run_suite(flags: &SimulateFlags, suite: Suite, bar: &Bar) -> Findings {
    let conditions = Conditions {
        seed: flags.seed.unwrap_or(1),
        reduced: flags.reduced,
        progress: bar,
    };
    match suite {
        Suite::Baselines => suite::baselines(&conditions),
        Suite::Questions => suite::questions(&conditions),
    }
}
