//! A gateway as a process: the real client, offered load, and an admission log.
//! Spends until its standard input ends, then hands everything back and prints a
//! summary. Knows no limit and judges nothing.
//!
//! With `--history` it also notes how long requests waited and when it could not
//! run, and tries to connect until it is told to end.

use std::{
    collections::BTreeMap,
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
use leasehold_checkers::{HistoryWriter, Pause, Record as Noted, Request};
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
    /// Where waits and pauses are noted, if anywhere
    #[arg(long)]
    history: Option<PathBuf>,
    /// Offered load, as in flood:acme/orders=100; may be repeated
    #[arg(long)]
    load: Vec<Load>,
}

/// The log and the counts, written by all streams of requests.
struct Record {
    log: AdmissionWriter,
    requests: Option<RequestWriter>,
    waits: Option<Waits>,
    summary: Summary,
}

/// Requests that wait, and what is noted of them.
struct Waits {
    gateway: String,
    history: HistoryWriter,
    next: u64,
    /// By number: the key, and when it was called.
    pending: BTreeMap<u64, (Arc<str>, u64)>,
}

/// What `spend` waits at most, unless a policy says otherwise.
const PATIENCE: Duration = Duration::from_millis(250);
/// Waits of so long are all noted, of shorter ones some.
const SLOW: Duration = Duration::from_millis(400);
const ONE_IN: u64 = 8;
/// A request that waits for so long is noted while it waits.
const OVERDUE: Duration = Duration::from_secs(5);
const PULSE: Duration = Duration::from_millis(20);
/// A process that misses its pulse for so long did not run.
const PAUSED: Duration = Duration::from_millis(100);

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Waits {
    fn begin(&mut self, key: &Arc<str>, call_ns: u64) -> u64 {
        self.next += 1;
        self.pending.insert(self.next, (Arc::clone(key), call_ns));
        self.next
    }

    fn end(&mut self, number: u64, waited: bool, return_ns: u64) -> std::io::Result<()> {
        let Some((key, call_ns)) = self.pending.remove(&number) else {
            return Ok(());
        };
        let is_slow = return_ns.saturating_sub(call_ns) > nanos(SLOW);
        if is_slow || (waited && number.is_multiple_of(ONE_IN)) {
            self.note(&key, call_ns, Some(return_ns), return_ns)?;
        }
        Ok(())
    }

    fn note(
        &mut self,
        key: &str,
        call_ns: u64,
        return_ns: Option<u64>,
        looked_ns: u64,
    ) -> std::io::Result<()> {
        self.history.write(&Noted::Request(Request {
            gateway: self.gateway.clone(),
            key: key.to_owned(),
            call_ns,
            return_ns,
            looked_ns,
            patience_ns: nanos(PATIENCE),
        }))
    }

    /// Notes those that should have returned long ago.
    fn overdue(&mut self) -> std::io::Result<()> {
        let now = clock_ns();
        let overdue: Vec<(Arc<str>, u64)> = self
            .pending
            .values()
            .filter(|(_, call_ns)| now.saturating_sub(*call_ns) > nanos(OVERDUE))
            .cloned()
            .collect();
        for (key, call_ns) in overdue {
            self.note(&key, call_ns, None, now)?;
        }
        Ok(())
    }
}

/// Notes when this process could not run: stopped, or without a processor.
fn take_pulse(shared: Shared) {
    std::thread::spawn(move || {
        let mut last = clock_ns();
        loop {
            std::thread::sleep(PULSE);
            let now = clock_ns();
            if now.saturating_sub(last) > nanos(PAUSED)
                && let Some(waits) = &mut lock(&shared).waits
            {
                let pause = Noted::Pause(Pause {
                    gateway: waits.gateway.clone(),
                    from_ns: last,
                    to_ns: now,
                });
                if let Err(error) = waits.history.write(&pause) {
                    eprintln!("gateway: {error}");
                }
            }
            last = now;
        }
    });
}

impl Record {
    fn flush(&mut self) -> std::io::Result<()> {
        self.log.flush()?;
        if let Some(waits) = &mut self.waits {
            waits.history.flush()?;
        }
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
    let history = flags.history.as_deref().map(HistoryWriter::create);
    let waits = history.transpose()?.map(|history| Waits {
        gateway: flags.holder.clone(),
        history,
        next: 0,
        pending: BTreeMap::new(),
    });
    let is_patient = waits.is_some();
    let shared: Shared = Arc::new(Mutex::new(Record {
        log,
        requests: requests.transpose()?,
        waits,
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

    if is_patient {
        take_pulse(Arc::clone(&shared));
    }
    let builder = Client::builder()
        .holder(flags.holder.as_str())
        .endpoints(flags.endpoint);
    let client = loop {
        match builder.clone().connect().await {
            Ok(client) => break client,
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
        let budget = client.budget(&load.key)?;
        streams.spawn(offer(load, budget, Arc::clone(&shared), Arc::clone(&stop)));
    }
    let mut flush = tokio::time::interval(FLUSH_EVERY);
    let mut overdue = tokio::time::interval(OVERDUE);
    loop {
        tokio::select! {
            _ = flush.tick() => lock(&shared).flush()?,
            _ = overdue.tick() => {
                if let Some(waits) = &mut lock(&shared).waits {
                    waits.overdue()?;
                }
            }
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
            let number = (lock(&shared).waits.as_mut()).map(|waits| waits.begin(&key, call_ns));
            let (verdict, waited) = spend_one(&budget).await;
            if let Some((number, waits)) = number.zip(lock(&shared).waits.as_mut()) {
                waits.end(number, waited, clock_ns())?;
            }
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
