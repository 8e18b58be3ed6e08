//! A gateway as a process: the real client, offered load, and an admission log.
//! Spends until its standard input ends, then hands everything back and prints a
//! summary. Knows no limit and judges nothing.

use std::{
    error::Error,
    future::{Future as _, poll_fn},
    io::Read as _,
    path::PathBuf,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use clap::Parser;
use leasehold_client::{Budget, Client, Verdict};
use leasehold_tests::{
    Admission, AdmissionWriter, Load, Manner, NotedRequest, RequestWriter, Summary, Told, clock_ns,
};
use rand::Rng as _;

#[derive(Parser)]
struct Flags {
    /// A coordinator's URL; may be repeated
    #[arg(long, required = true)]
    endpoint: Vec<String>,
    /// This gateway's name
    #[arg(long)]
    holder: String,
    /// Where admissions are logged
    #[arg(long)]
    log: PathBuf,
    /// Where what becomes of every request is logged, if anywhere
    #[arg(long)]
    requests: Option<PathBuf>,
    /// Offered load, as in flood:acme/orders=100; may be repeated
    #[arg(long)]
    load: Vec<Load>,
}

/// The log and the counts, written by all streams of requests.
struct Record {
    log: AdmissionWriter,
    requests: Option<RequestWriter>,
    summary: Summary,
}

impl Record {
    fn flush(&mut self) -> std::io::Result<()> {
        self.log.flush()?;
        self.requests.as_mut().map_or(Ok(()), RequestWriter::flush)
    }
}

type Shared = Arc<Mutex<Record>>;

const BURST_EVERY: Duration = Duration::from_millis(2);
/// How soon a stream that waits for its next request sees that it is to end.
const GLANCE_EVERY: Duration = Duration::from_millis(100);
/// A killed gateway loses at most so much of its log.
const FLUSH_EVERY: Duration = Duration::from_millis(20);

fn lock(shared: &Shared) -> MutexGuard<'_, Record> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(
    shared: &Shared,
    key: &str,
    call_ns: u64,
    waited: bool,
    verdict: &Verdict,
) -> std::io::Result<()> {
    let return_ns = clock_ns();
    let told = match verdict {
        Verdict::Admitted => Told::Admitted,
        Verdict::Degraded => Told::Degraded,
        Verdict::Unavailable { .. } => Told::Unavailable,
        _ => Told::Refused,
    };
    let mut record = lock(shared);
    record.summary.offered += 1;
    match told {
        Told::Admitted => {
            record.summary.admitted += 1;
            record.log.write(
                key,
                Admission {
                    units: 1,
                    call_ns,
                    return_ns,
                },
            )?;
        }
        Told::Degraded => record.summary.degraded += 1,
        Told::Unavailable => record.summary.unavailable += 1,
        Told::Refused => record.summary.refused += 1,
    }
    if let Some(requests) = &mut record.requests {
        requests.write(&NotedRequest {
            call_ns,
            return_ns,
            waited,
            told,
        })?;
    }
    Ok(())
}

/// The verdict, and whether it took a message: a request that is answered from what
/// is held, or by a refusal that still stands, is answered the first time it is
/// polled; one that joins the queue is not.
async fn spend_one(budget: &Budget) -> (Verdict, bool) {
    let mut spending = pin!(budget.spend(1));
    let mut waited = false;
    let verdict = poll_fn(|context| {
        let polled = spending.as_mut().poll(context);
        waited |= polled.is_pending();
        polled
    })
    .await;
    (verdict, waited)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let flags = Flags::parse();
    let log = AdmissionWriter::create(&flags.log)?;
    let requests = flags.requests.as_deref().map(RequestWriter::create);
    let shared: Shared = Arc::new(Mutex::new(Record {
        log,
        requests: requests.transpose()?,
        summary: Summary::default(),
    }));
    let stop = Arc::new(AtomicBool::new(false));
    std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            // Whatever comes: its end is the sign.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        }
    });

    let mut builder = Client::builder().holder(flags.holder.as_str());
    for endpoint in &flags.endpoint {
        builder = builder.endpoint(endpoint.as_str());
    }
    let client = builder.connect().await?;
    let mut streams = tokio::task::JoinSet::new();
    for load in flags.load {
        let budget = client.budget(&load.key)?;
        streams.spawn(offer(load, budget, Arc::clone(&shared), Arc::clone(&stop)));
    }
    let mut flush = tokio::time::interval(FLUSH_EVERY);
    loop {
        tokio::select! {
            _ = flush.tick() => lock(&shared).flush()?,
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

async fn offer(
    load: Load,
    budget: Budget,
    shared: Shared,
    stop: Arc<AtomicBool>,
) -> std::io::Result<()> {
    let key: Arc<str> = load.key.into();
    let mut waiting = tokio::task::JoinSet::new();
    let spend = |waiting: &mut tokio::task::JoinSet<std::io::Result<()>>| {
        let (budget, shared, key) = (budget.clone(), Arc::clone(&shared), Arc::clone(&key));
        waiting.spawn(async move {
            let call_ns = clock_ns();
            let (verdict, waited) = spend_one(&budget).await;
            note(&shared, &key, call_ns, waited, &verdict)
        });
    };
    let mut next = tokio::time::Instant::now();
    let mut due = 0.0;
    while !stop.load(Ordering::Relaxed) {
        match load.manner {
            Manner::Honest => {
                let gap = -(1.0 - rand::rng().random::<f64>()).ln() / load.per_second;
                next += Duration::from_secs_f64(gap);
                // A quiet key must not keep the process from ending.
                while tokio::time::Instant::now() < next && !stop.load(Ordering::Relaxed) {
                    let glance = tokio::time::Instant::now() + GLANCE_EVERY;
                    tokio::time::sleep_until(next.min(glance)).await;
                }
                if !stop.load(Ordering::Relaxed) {
                    spend(&mut waiting);
                }
            }
            Manner::Flood => {
                next += BURST_EVERY;
                tokio::time::sleep_until(next).await;
                due += load.per_second * BURST_EVERY.as_secs_f64();
                while due >= 1.0 {
                    due -= 1.0;
                    if rand::rng().random_range(0..50) == 0 {
                        spend(&mut waiting);
                    } else {
                        let call_ns = clock_ns();
                        let verdict = budget.try_spend(1);
                        note(&shared, &key, call_ns, false, &verdict)?;
                    }
                }
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
