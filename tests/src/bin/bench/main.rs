//! First figures: spending beside `governor`, reporting and asking on three
//! nodes with real fsyncs, and other servers where they are installed. Measures;
//! judges nothing.
//!
//! `cargo run --release -p leasehold-tests --bin bench` prints a table and adds
//! JSON lines to `tests/results/first-figures.jsonl`.

mod neighbours;
mod reporting;
mod spending;

use std::{error::Error, path::PathBuf, time::Duration};

use clap::Parser;
use leasehold_tests::{append_results, results_file};
use serde_json::{Value, json};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Flags {
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// How long each reporting measurement takes, in seconds
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Measure only these: spending, reporting, neighbours
    only: Vec<String>,
}

/// One measured figure.
struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    /// The figure that it is compared with: its name and value.
    against: Option<(String, f64)>,
}

impl Figure {
    fn new(what: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self {
            what: what.into(),
            value,
            unit,
            against: None,
        }
    }

    fn against(mut self, what: impl Into<String>, value: f64) -> Self {
        self.against = Some((what.into(), value));
        self
    }
}

fn main() -> Outcome<()> {
    let flags = Flags::parse();
    if cfg!(debug_assertions) {
        eprintln!("note: figures of an unoptimized build mean nothing; use --release");
    }
    let beside = std::env::current_exe()?.with_file_name("leasehold-under-test");
    let binary = flags.leasehold.clone().unwrap_or(beside);
    let wanted = |part: &str| flags.only.is_empty() || flags.only.iter().any(|name| name == part);
    let duration = Duration::from_secs(flags.seconds);
    let mut figures = Vec::new();
    if wanted("spending") {
        figures.extend(spending::measure(&binary)?);
    }
    if wanted("reporting") {
        figures.extend(reporting::measure(&binary, duration)?);
    }
    if wanted("neighbours") {
        figures.extend(neighbours::measure(duration)?);
    }
    print(&figures);
    keep(&figures)
}

fn print(figures: &[Figure]) {
    println!("{:<58} {:>14}  {:<10} compared", "figure", "value", "unit");
    for figure in figures {
        let compared = figure
            .against
            .as_ref()
            .map_or_else(String::new, |(what, value)| {
                format!("{:.2} x {what} ({value:.2})", figure.value / value)
            });
        println!(
            "{:<58} {:>14.2}  {:<10} {compared}",
            figure.what, figure.value, figure.unit
        );
    }
}

/// Adds the figures, with the commit, to the file of results.
fn keep(figures: &[Figure]) -> Outcome<()> {
    let path = results_file("first-figures.jsonl");
    let lines: Vec<Value> = figures
        .iter()
        .map(|figure| {
            let (against, against_value) = figure.against.clone().unzip();
            json!({
                "figure": figure.what, "value": figure.value, "unit": figure.unit,
                "against": against, "against_value": against_value,
            })
        })
        .collect();
    append_results(&path, &lines)?;
    println!("\nadded to {}", path.display());
    Ok(())
}

/// The value below which `percent` of the samples lie.
fn percentile(samples: &mut [u64], percent: usize) -> u64 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    samples
        .get((samples.len() * percent / 100).min(last))
        .copied()
        .unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn float(value: u64) -> f64 {
    value as f64
}
