//! `leasehold simulate`: the simulator behind flags. Talks to no node.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgGroup, ValueEnum};
use leasehold_sim::{
    output::Bar,
    scenario::{COORDINATOR_MESSAGES_PER_S, Scenario},
    suite::{self, Conditions, Findings, pictures},
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
    /// The lease policy against its figures: waits, refusals, messages, exactness
    Design,
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
        (None, Some(suite)) => Ok(suite.run(&flags.conditions(&bar))),
        // The flags' group lets nobody come here.
        (None, None) => Err("say --scenario FILE or --suite NAME".to_owned()),
    };
    let findings = match findings {
        Ok(findings) => findings,
        Err(message) => {
            bar.clear();
            complain(&message);
            return ExitCode::from(2);
        }
    };
    let pictures = match (&flags.pictures, flags.suite) {
        (Some(folder), Some(suite)) => Some((folder, suite.pictures(&flags.conditions(&bar)))),
        _ => None,
    };
    bar.clear();
    let text = if flags.json {
        findings.json_lines()
    } else if flags.csv {
        findings.csv()
    } else {
        findings.text()
    };
    // A reader that went away (`| head`) is no error.
    let _ = io::stdout().write_all(text.as_bytes());
    for complaint in &findings.complaints {
        complain(complaint);
    }
    let mut is_well = findings.hold();
    if let Some((folder, mut pictures)) = pictures {
        pictures.add(findings);
        match pictures.write_to(folder) {
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

fn scenario(flags: &SimulateFlags, file: &Path, bar: &Bar) -> Result<Findings, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut scenario =
        Scenario::parse(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    if let Some(seed) = flags.seed {
        scenario.setup.seed = seed;
    }
    let results = scenario.run(bar);
    Ok(results.findings(&scenario, flags.coordinator_messages_per_s))
}

impl SimulateFlags {
    fn conditions<'a>(&self, bar: &'a Bar) -> Conditions<'a> {
        Conditions {
            seed: self.seed.unwrap_or(1),
            reduced: self.reduced,
            progress: bar,
        }
    }
}

impl Suite {
    fn run(self, conditions: &Conditions<'_>) -> Findings {
        match self {
            Self::Design => suite::design(conditions),
            Self::Baselines => suite::baselines(conditions),
            Self::Questions => suite::questions(conditions),
        }
    }

    /// Runs that only its pictures need.
    fn pictures(self, conditions: &Conditions<'_>) -> Findings {
        match self {
            Self::Design => pictures::by_load(conditions),
            Self::Baselines => {
                let mut findings = pictures::by_flood(conditions);
                findings.add(pictures::by_sync_interval(conditions));
                findings
            }
            // Their own runs are pictured.
            Self::Questions => Findings::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::SimulateFlags;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        flags: SimulateFlags,
    }

    fn is_usage(flags: &[&str]) -> bool {
        Line::try_parse_from([&["simulate"], flags].concat()).is_ok()
    }

    #[test]
    fn either_a_scenario_or_a_suite_is_simulated() {
        assert!(is_usage(&["--scenario", "a.toml", "--seed", "7", "--json"]));
        assert!(is_usage(&["--suite", "design", "--reduced", "--csv"]));
        assert!(is_usage(&["--suite", "questions", "--pictures", "out"]));
        assert!(!is_usage(&[]));
        assert!(!is_usage(&["--suite", "questions", "--scenario", "a.toml"]));
        assert!(!is_usage(&["--scenario", "a.toml", "--reduced"]));
        assert!(!is_usage(&["--suite", "questions", "--json", "--csv"]));
        assert!(!is_usage(&[
            "--scenario",
            "a.toml",
            "--coordinator-messages-per-s",
            "0"
        ]));
    }
}
