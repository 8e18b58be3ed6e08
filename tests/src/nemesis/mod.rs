//! The nemesis: real nodes and gateways, load, and faults that are drawn from a
//! seed. What gateways and operators saw is judged by `leasehold-checkers`.
//!
//! A run is a series of *rounds*. Each injects a fault or several at once, lets
//! them last, undoes them, and waits until every node is ready and grants have
//! resumed. In the end everybody stops in peace, and the books must be whole.
//! One seed gives one schedule; what the machine does meanwhile is its own.
//!
//! Does not know the ledger: it sees processes, files, bytes on links, and what
//! the APIs answer.

mod callers;
mod cluster;
mod draw;
mod fault;
mod faults;
mod fleet;
mod ground;
mod host;
mod journal;
mod judge;
mod keys;
mod link;
mod links;
mod machine;
mod node;
mod operators;
mod process;
mod quotas;
pub mod regions;
mod report;
mod run;
mod samples;
mod schedule;
mod world;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

pub use report::Report;
pub use run::run;

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long faults are injected.
    pub minutes: f64,
    /// What the schedule is drawn from.
    pub seed: u64,
    /// Coordinators.
    pub nodes: u64,
    /// Gateway processes.
    pub gateways: u64,
    /// Kinds of faults by name; empty: all.
    pub faults: Vec<String>,
    /// The coordinator's binary.
    pub leasehold: PathBuf,
    /// The gateway's binary.
    pub gateway: PathBuf,
    /// Another build, for rolling upgrades.
    pub upgrade_to: Option<PathBuf>,
    /// Keep the files of a run without a violation as well.
    pub keeps_files: bool,
    /// Set by whoever wants the run to end early.
    pub stop: Arc<AtomicBool>,
}

/// Names of all kinds of faults.
#[must_use]
pub fn fault_names() -> Vec<&'static str> {
    fault::kinds().into_iter().map(|kind| kind.name).collect()
}

/// Set by SIGINT or SIGTERM, so that everything that was started is ended.
///
/// # Errors
/// When signals cannot be waited for.
pub fn end_on_signal() -> std::io::Result<Arc<AtomicBool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        )
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        });
        eprintln!("told to stop; ending everything that was started");
        told.store(true, Ordering::Relaxed);
    });
    Ok(stop)
}
