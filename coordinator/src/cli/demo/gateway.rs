//! One gateway of the demo: the real client, traffic, and a record of what was
//! admitted. Knows the keys by position only, and no limit.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use leasehold_checkers::Admission;
use leasehold_client::{Budget, Client, Verdict};
use parking_lot::Mutex;
use rand::Rng as _;

use super::{
    GATEWAYS,
    scenes::{SCENES, Scene, Traffic},
    waits::Arrival,
};

/// What all gateways saw of one key.
#[derive(Debug)]
pub(super) struct Observed {
    /// The key's name, and the scene that it belongs to.
    key: String,
    scene: usize,
    offered: AtomicU64,
    refused: AtomicU64,
    unavailable: AtomicU64,
    degraded: AtomicU64,
    /// Of honest requests.
    arrivals: Mutex<Vec<Arrival>>,
    admissions: Mutex<Vec<Admission>>,
}

/// Requests of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) offered: u64,
    pub(super) refused: u64,
    pub(super) unavailable: u64,
    pub(super) degraded: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.refused += other.refused;
        self.unavailable += other.unavailable;
        self.degraded += other.degraded;
    }
}

/// Statistics only: they order nothing.
const STAT: Ordering = Ordering::Relaxed;
/// The grain of a flood.
const BURST_EVERY: Duration = Duration::from_millis(2);

impl Observed {
    /// One for every key.
    pub(super) fn all() -> Vec<Self> {
        let of_scene = |(scene, keys): (usize, &Scene)| {
            keys.names()
                .map(|key| Self {
                    key,
                    scene,
                    offered: AtomicU64::new(0),
                    refused: AtomicU64::new(0),
                    unavailable: AtomicU64::new(0),
                    degraded: AtomicU64::new(0),
                    arrivals: Mutex::default(),
                    admissions: Mutex::default(),
                })
                .collect::<Vec<_>>()
        };
        SCENES.iter().enumerate().flat_map(of_scene).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            offered: self.offered.load(STAT),
            refused: self.refused.load(STAT),
            unavailable: self.unavailable.load(STAT),
            degraded: self.degraded.load(STAT),
        }
    }

    /// The scene that the key belongs to.
    pub(super) fn scene(&self) -> usize {
        self.scene
    }

    /// The honest requests of all gateways so far.
    pub(super) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().clone()
    }

    /// The admission log of all gateways so far.
    pub(super) fn admissions(&self) -> Vec<Admission> {
        self.admissions.lock().clone()
    }

    fn note(&self, call_ns: u64, return_ns: u64, verdict: &Verdict) {
        self.offered.fetch_add(1, STAT);
        match verdict {
            Verdict::Admitted => {
                self.admissions.lock().push(Admission {
                    units: 1,
                    call_ns,
                    return_ns,
                });
            }
            Verdict::Degraded => {
                self.degraded.fetch_add(1, STAT);
            }
            Verdict::Unavailable { .. } => {
                self.unavailable.fetch_add(1, STAT);
            }
            _ => {
                self.refused.fetch_add(1, STAT);
            }
        }
    }
}

/// The host's raw monotonic clock, which all gateways of the demo share.
pub(super) fn clock_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}

/// One gateway process, as far as the coordinator can tell.
pub(super) struct Gateway {
    number: usize,
    client: Client,
    budgets: Vec<Budget>,
    observed: Arc<Vec<Observed>>,
}

impl Gateway {
    /// Connects with a session of its own.
    pub(super) async fn connect(
        number: usize,
        endpoints: &[String],
        observed: Arc<Vec<Observed>>,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let mut builder = Client::builder().holder(format!("gateway-{}", number + 1));
        for endpoint in endpoints {
            builder = builder.endpoint(endpoint.as_str());
        }
        let client = builder.connect().await?;
        let budgets = observed
            .iter()
            .map(|seen| client.budget(&seen.key))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            number,
            client,
            budgets,
            observed,
        })
    }

    /// Sends its share of the traffic, then hands everything back.
    pub(super) async fn spend_until(self, stop: Arc<AtomicBool>) {
        let mut streams = tokio::task::JoinSet::new();
        for (key, budget) in self.budgets.into_iter().enumerate() {
            let (observed, stop) = (Arc::clone(&self.observed), Arc::clone(&stop));
            let scene = &SCENES[observed[key].scene];
            let per_second = scene.per_second / f64::from(GATEWAYS);
            match scene.traffic {
                Traffic::Honest => {
                    let at = (self.number, key);
                    streams.spawn(honest(budget, at, per_second, observed, stop))
                }
                Traffic::Flood => streams.spawn(flood(budget, key, per_second, observed, stop)),
            };
        }
        while streams.join_next().await.is_some() {}
        self.client.close().await;
    }
}

/// Requests at random moments that do not wait for each other.
async fn honest(
    budget: Budget,
    (gateway, key): (usize, usize),
    per_second: f64,
    observed: Arc<Vec<Observed>>,
    stop: Arc<AtomicBool>,
) {
    let mut requests = tokio::task::JoinSet::new();
    let mut next = tokio::time::Instant::now();
    while !stop.load(STAT) {
        next += Duration::from_secs_f64(-(1.0 - rand::rng().random::<f64>()).ln() / per_second);
        // A quiet key must not keep its gateway from ending.
        while tokio::time::Instant::now() < next && !stop.load(STAT) {
            let glance = tokio::time::Instant::now() + Duration::from_millis(100);
            tokio::time::sleep_until(next.min(glance)).await;
        }
        if stop.load(STAT) {
            break;
        }
        let (budget, observed) = (budget.clone(), Arc::clone(&observed));
        requests.spawn(async move {
            let call_ns = clock_ns();
            let (verdict, waited) = spend(&budget).await;
            observed[key].note(call_ns, clock_ns(), &verdict);
            observed[key].arrivals.lock().push(Arrival {
                at_ns: call_ns,
                gateway,
                waited,
            });
        });
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

/// Spends one unit, and says whether what is held or known here did not do: the
/// client answers at its first poll unless a message has to come. Who is told that
/// nobody can be asked needed one too.
async fn spend(budget: &Budget) -> (Verdict, bool) {
    let mut answer = pin!(budget.spend(1));
    match futures::poll!(answer.as_mut()) {
        Poll::Ready(verdict) => (verdict, matches!(verdict, Verdict::Unavailable { .. })),
        Poll::Pending => (answer.await, true),
    }
}

/// As many requests as are due, at once.
async fn flood(
    budget: Budget,
    key: usize,
    per_second: f64,
    observed: Arc<Vec<Observed>>,
    stop: Arc<AtomicBool>,
) {
    let mut ticks = tokio::time::interval(BURST_EVERY);
    let mut due = 0.0;
    while !stop.load(STAT) {
        ticks.tick().await;
        due += per_second * BURST_EVERY.as_secs_f64();
        while due >= 1.0 {
            due -= 1.0;
            let call_ns = clock_ns();
            let verdict = budget.try_spend(1);
            observed[key].note(call_ns, clock_ns(), &verdict);
        }
    }
}
