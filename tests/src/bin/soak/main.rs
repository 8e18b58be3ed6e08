//! A soak: real nodes under a churn of keys, sessions and edits, and whether
//! anything grows. `cargo run --release -p leasehold-tests --bin soak -- --minutes
//! 60` prints a line a minute, adds its result to `tests/results/soak.jsonl`, and
//! fails when memory is not flat in the later half or the disk is not bounded. Build
//! the whole package first: it starts the binary that lies beside it.
//!
//! The rule: the run is cut into quarters, and the last is held against the third. A
//! node fills its log mirror, its allocator's pools and its caches before, and its
//! memory then swings with each snapshot: a quarter must see several of them. What
//! leaks adds to the fourth what it added to the third. Allowed is what swings do:
//! 5 % and 8 MiB for the median of resident memory (its spread between two quarters
//! of a run that leaks nothing), 10 % and 16 MiB for the most that lay on disk (two
//! segments of the log), a few handles, no thread, a few series of metrics.

mod churn;
mod watch;

use std::{
    error::Error,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use leasehold_tests::{LocalCluster, append_results, results_file};
use serde_json::json;

use self::{
    churn::Churn,
    watch::{Growth, Watch},
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Short, so that what dies is gone within a quarter of a short run.
const QUICK: &str =
    "[cluster]\nsession_ttl_ms = 5000\nsync_interval_ms = 500\ntombstone_ttl_ms = 20000\n";

#[derive(Parser)]
struct Flags {
    /// How long
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Coordinators: 1, 3 or 5
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// New keys a second
    #[arg(long, default_value_t = 200)]
    keys_per_second: u32,
    /// Sessions that open and end a second
    #[arg(long, default_value_t = 3)]
    sessions_per_second: u32,
    /// The coordinator's binary [default: the one built beside this program]
    #[arg(long)]
    leasehold: Option<PathBuf>,
    /// Where the result is added [default: tests/results/soak.jsonl]
    #[arg(long)]
    results: Option<PathBuf>,
    /// Where every sample goes as a line of CSV, if anywhere
    #[arg(long)]
    samples: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(complaints) if complaints.is_empty() => ExitCode::SUCCESS,
        Ok(complaints) => {
            for complaint in complaints {
                eprintln!("soak: {complaint}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Outcome<Vec<String>> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("leasehold-under-test");
    let binary = flags.leasehold.clone().unwrap_or(beside);
    if !binary.exists() {
        return Err(format!("{} is not there: build the package first", binary.display()).into());
    }
    let mut cluster = LocalCluster::start(&binary, flags.nodes, QUICK)?;
    cluster.wait_ready(PATIENCE)?;
    cluster.wait_leader(PATIENCE)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let churn = Arc::new(Churn::new(cluster.endpoints()));
    churn.prepare(&cluster)?;
    let driven =
        runtime.spawn(Arc::clone(&churn).drive(flags.keys_per_second, flags.sessions_per_second));
    let mut watch = Watch::new(&cluster, flags.samples.as_deref())?;
    let began = Instant::now();
    let duration = Duration::try_from_secs_f64(60.0 * flags.minutes)?;
    let mut told = 0;
    while began.elapsed() < duration {
        std::thread::sleep(LOOK_EVERY);
        if driven.is_finished() {
            return Err("the churn ended".into());
        }
        churn.edit(&cluster)?;
        watch.look(&cluster, began.elapsed())?;
        if began.elapsed().as_secs() / 60 > told {
            told += 1;
            println!("minute {told}: {} {}", churn.counts(), watch.last());
        }
    }
    driven.abort();
    let quarters = watch.quarters();
    let complaints: Vec<String> = quarters.iter().flat_map(Growth::complaints).collect();
    let figures: Vec<_> = quarters.iter().map(Growth::figures).collect();
    let line = json!({
        "command": format!("soak --minutes {} --nodes {}", flags.minutes, flags.nodes),
        "optimized": !cfg!(debug_assertions),
        "keys_per_second": flags.keys_per_second,
        "sessions_per_second": flags.sessions_per_second,
        "churn": churn.counts(),
        "nodes": figures,
        "flat": complaints.is_empty(),
    });
    println!("{line}");
    let results = flags.results.clone();
    append_results(
        &results.unwrap_or_else(|| results_file("soak.jsonl")),
        &[line],
    )?;
    Ok(complaints)
}
