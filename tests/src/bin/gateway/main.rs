//! A gateway as a process: the real client, offered load, and an admission log.
//! Spends until its standard input ends, then hands everything back and prints a
//! summary. Knows no limit and judges nothing.
//!
//! With `--history` it also notes how long requests waited, when it could not run,
//! and what it did beside admitting; and it tries to connect until it is told to end.

mod record;
mod requests;

use std::{
    error::Error,
    io::Read as _,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::Parser;
use leasehold_client::{Budget, Client};
use leasehold_tests::{Load, Manner};
use rand::Rng as _;

use self::{
    record::{OVERDUE, Record, Shared, lock, take_pulse},
    requests::Target,
};

#[derive(Parser)]
struct Flags {
    /// A coordinator's URL; may be repeated
    #[arg(long, required = true)]
    endpoint: Vec<String>,
    /// The authority of coordinators with TLS
    #[arg(long)]
    ca: Option<PathBuf>,
    /// The token that it shows them
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// This gateway's name
    #[arg(long)]
    holder: String,
    /// Where admissions are logged
    #[arg(long)]
    log: PathBuf,
    /// Where what becomes of every request is logged, if anywhere
    #[arg(long)]
    requests: Option<PathBuf>,
    /// Where waits and pauses are noted, if anywhere
    #[arg(long)]
    history: Option<PathBuf>,
    /// Offered load, as in flood:acme/orders=100; may be repeated
    #[arg(long)]
    load: Vec<Load>,
}

const BURST_EVERY: Duration = Duration::from_millis(2);
/// How soon a stream that waits for its next request sees that it is to end.
const GLANCE_EVERY: Duration = Duration::from_millis(100);
/// A killed gateway loses at most so much of its log.
const FLUSH_EVERY: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let flags = Flags::parse();
    let record = Record::create(
        &flags.holder,
        &flags.log,
        flags.requests.as_deref(),
        flags.history.as_deref(),
    )?;
    let is_patient = flags.history.is_some();
    let shared: Shared = Arc::new(Mutex::new(record));
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            // Whatever comes: its end is the sign.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        }
    });

    if is_patient {
        take_pulse(Arc::clone(&shared));
    }
    let mut builder = Client::builder()
        .holder(flags.holder.as_str())
        .endpoints(flags.endpoint);
    if let Some(ca) = flags.ca {
        builder = builder.ca_file(ca);
    }
    if let Some(token_file) = flags.token_file {
        builder = builder.token_file(token_file);
    }
    let client = loop {
        match builder.clone().connect().await {
            Ok(client) => break Arc::new(client),
            Err(_) if is_patient && !stop.load(Ordering::Relaxed) => {}
            Err(_) if is_patient => {
                println!("{}", serde_json::to_string(&lock(&shared).summary)?);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    };
    let mut streams = tokio::task::JoinSet::new();
    for load in flags.load {
        let budgets: Result<Vec<Budget>, _> = load.keys().map(|key| client.budget(key)).collect();
        let target = Target {
            client: Arc::clone(&client),
            budgets: budgets?.into(),
            key: load.key.as_str().into(),
            shared: Arc::clone(&shared),
        };
        streams.spawn(offer(load, target, Arc::clone(&stop)));
    }
    let mut flush = tokio::time::interval(FLUSH_EVERY);
    let mut overdue = tokio::time::interval(OVERDUE);
    loop {
        tokio::select! {
            _ = flush.tick() => lock(&shared).flush()?,
            _ = overdue.tick() => lock(&shared).overdue()?,
            ended = streams.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
        }
    }
    while !stop.load(Ordering::Relaxed) {
        flush.tick().await;
    }
    client.close().await;
    let mut record = lock(&shared);
    record.flush()?;
    println!("{}", serde_json::to_string(&record.summary)?);
    Ok(())
}

/// Makes requests until it is told to end, and then waits for their answers.
async fn offer(load: Load, target: Target, stop: Arc<AtomicBool>) -> std::io::Result<()> {
    let mut waiting = tokio::task::JoinSet::new();
    let mut next = tokio::time::Instant::now();
    let mut due = 0.0;
    while !stop.load(Ordering::Relaxed) {
        if load.manner == Manner::Flood {
            next += BURST_EVERY;
            tokio::time::sleep_until(next).await;
            due += load.per_second * BURST_EVERY.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                if rand::rng().random_range(0..50) == 0 {
                    waiting.spawn(target.clone().request(load.manner));
                } else {
                    target.try_spend()?;
                }
            }
        } else {
            let gap = -(1.0 - rand::rng().random::<f64>()).ln() / load.per_second;
            next += Duration::from_secs_f64(gap);
            // A quiet key must not keep the process from ending.
            while tokio::time::Instant::now() < next && !stop.load(Ordering::Relaxed) {
                let glance = tokio::time::Instant::now() + GLANCE_EVERY;
                tokio::time::sleep_until(next.min(glance)).await;
            }
            if !stop.load(Ordering::Relaxed) {
                waiting.spawn(target.clone().request(load.manner));
            }
        }
        while let Some(ended) = waiting.try_join_next() {
            ended??;
        }
    }
    while let Some(ended) = waiting.join_next().await {
        ended??;
    }
    Ok(())
}
