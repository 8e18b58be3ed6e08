//! How far the coordinator is, measured while the run goes on: the round trips of
//! asks that nothing but the answer could hold up, and what of them is the commit.
//! Knows neither the gateways nor their key.

use std::time::{Duration, Instant};

use leasehold_client::{Client, Verdict};
use leasehold_sim::system::Network;
use leasehold_tests::LocalCluster;
use serde::Serialize;

use super::{Outcome, float, whole};

/// The pattern of the probe's keys, whose limit must be generous.
pub(super) const PROBE_KEYS: &str = "live-probe/**";
/// Seldom enough to leave the coordinator alone.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// The middle half of the sum of two draws from 0..=1 is so wide: 2 - √2.
const MIDDLE_HALF_OF_TWO: f64 = 0.585_786;

/// The round trips of asks, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Probed {
    pub(super) round_trips_us: Vec<u64>,
    pub(super) failed: u64,
}

/// Asks for one unit of a key that nobody spends from, and of another one the next
/// time: nothing is held and nothing has to be recalled, so that each waits for
/// exactly one answer.
pub(super) async fn probe(endpoints: &[String], until: Instant) -> Outcome<Probed> {
    let mut builder = Client::builder().holder("live-probe");
    for endpoint in endpoints {
        builder = builder.endpoint(endpoint.as_str());
    }
    let client = builder.connect().await?;
    let mut ticks = tokio::time::interval(PROBE_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut probed = Probed::default();
    for number in 0_u64.. {
        ticks.tick().await;
        if Instant::now() >= until {
            break;
        }
        let budget = client.budget(&PROBE_KEYS.replace("**", &number.to_string()))?;
        let began = Instant::now();
        match budget.spend(1).await {
            Verdict::Admitted => {
                let took_us = began.elapsed().as_micros();
                probed.round_trips_us.push(u64::try_from(took_us)?);
            }
            _ => probed.failed += 1,
        }
    }
    client.close().await;
    Ok(probed)
}

/// Entries that the nodes proposed so far, and the sum of what they took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Commits {
    count: f64,
    seconds: f64,
}

impl Commits {
    /// What all nodes say.
    pub(super) fn scrape(cluster: &LocalCluster) -> Outcome<Self> {
        let mut sum = Self::default();
        for node in 0..cluster.size() {
            let metrics = cluster.get_from(node, "/metrics")?.body;
            let value = |name: &str| -> f64 {
                let line = metrics.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|value| value.trim().parse().ok())
                    .unwrap_or(0.0)
            };
            sum.count += value("leasehold_commit_seconds_count ");
            sum.seconds += value("leasehold_commit_seconds_sum ");
        }
        Ok(sum)
    }

    /// The mean since an earlier look, in microseconds.
    fn mean_us_since(&self, earlier: &Self) -> Outcome<f64> {
        let count = self.count - earlier.count;
        if count < 1.0 {
            return Err("the nodes' /metrics tell of no commit".into());
        }
        Ok(1e6 * (self.seconds - earlier.seconds) / count)
    }
}

/// What was measured, and what the simulator is given for it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Delays {
    asks: usize,
    ask_mean_ms: f64,
    ask_p25_ms: f64,
    ask_p50_ms: f64,
    ask_p75_ms: f64,
    ask_p99_ms: f64,
    commit_mean_ms: f64,
    /// Given to the simulator: an entry takes so long.
    pub(super) commit_us: u64,
    /// Given to the simulator: one way takes at least so long ...
    pub(super) one_way_us: u64,
    /// ... and up to so much more.
    pub(super) jitter_us: u64,
}

impl Delays {
    /// A round trip is two ways and a commit. The simulator's commit is the mean of
    /// `leasehold_commit_seconds`; its jitter is such that the middle half of its
    /// round trips is as wide as the measured one, and its delay one way such that
    /// the mean is the same. What the client, the kernel and the commits scatter is
    /// in the jitter therefore.
    pub(super) fn derive(probed: &mut Probed, commits: (&Commits, &Commits)) -> Outcome<Self> {
        let asks_us = &mut probed.round_trips_us;
        asks_us.sort_unstable();
        if asks_us.is_empty() {
            return Err("no ask of the probe was answered".into());
        }
        let at =
            |percent: usize| float(asks_us[(asks_us.len() * percent / 100).min(asks_us.len() - 1)]);
        let count = u64::try_from(asks_us.len())?;
        let mean_us = float(asks_us.iter().sum()) / float(count);
        let commit_us = commits.1.mean_us_since(commits.0)?;
        let ways_us = (mean_us - commit_us).max(0.0);
        let jitter_us = ((at(75) - at(25)) / MIDDLE_HALF_OF_TWO).min(ways_us);
        Ok(Self {
            asks: asks_us.len(),
            ask_mean_ms: mean_us / 1e3,
            ask_p25_ms: at(25) / 1e3,
            ask_p50_ms: at(50) / 1e3,
            ask_p75_ms: at(75) / 1e3,
            ask_p99_ms: at(99) / 1e3,
            commit_mean_ms: commit_us / 1e3,
            commit_us: whole(commit_us),
            one_way_us: whole((ways_us - jitter_us) / 2.0),
            jitter_us: whole(jitter_us),
        })
    }

    /// As the simulator takes it.
    pub(super) fn network(&self) -> Network {
        Network {
            delay_us: self.one_way_us,
            jitter_us: self.jitter_us,
            loss: 0.0,
            duplication: 0.0,
        }
    }
}
