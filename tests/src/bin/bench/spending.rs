//! What one `try_spend` costs, beside `governor` in the same process. Knows only
//! the client's public face.

use std::{
    hint::black_box,
    num::NonZeroU32,
    path::Path,
    time::{Duration, Instant},
};

use governor::{Quota, RateLimiter};
use leasehold_client::{Client, Verdict};
use leasehold_tests::LocalCluster;
use serde_json::json;

use super::{Figure, Outcome, float};

/// Rounds of each measurement; the median counts, and they take turns.
const ROUNDS: usize = 9;
const CALLS: u64 = 2_000_000;
const KEYS: usize = 1_000;

pub(super) fn measure(binary: &Path) -> Outcome<Vec<Figure>> {
    let mut cluster = LocalCluster::start(binary, 1, "")?;
    cluster.wait_ready(Duration::from_secs(30))?;
    let plenty = json!({ "policy": {
        "kind": "token_bucket", "capacity": 1_u64 << 52, "refill": 1_u64 << 52,
        "refill_period_ms": 1_000,
    } });
    cluster.request(
        "PUT",
        "/v1/budgets/bench/**",
        Some(&plenty),
        Duration::from_secs(10),
    )?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let endpoint = cluster.endpoints().remove(0);
    let client = runtime.block_on(
        Client::builder()
            .endpoint(endpoint)
            .holder("bench")
            .connect(),
    )?;

    let hot = client.budget("bench/hot")?;
    let names: Vec<String> = (0..KEYS)
        .map(|i| format!("bench/tenant-{i:04}/read"))
        .collect();
    // Leases large enough for every round: demand grows them.
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_secs(8) {
        for _ in 0..100_000 {
            black_box(hot.try_spend(1).is_allowed());
        }
        for name in &names {
            for _ in 0..100 {
                black_box(client.try_spend(name, 1).is_allowed());
            }
        }
    }

    let direct = RateLimiter::direct(Quota::per_second(NonZeroU32::MAX));
    let keyed = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let (mut ours, mut governors) = (Rounds::default(), Rounds::default());
    let (mut ours_keyed, mut governors_keyed) = (Rounds::default(), Rounds::default());
    let mut admitted = 0_u64;
    let mut asked = 0_u64;
    for _ in 0..ROUNDS {
        asked += 2 * CALLS;
        ours.time(|| {
            for _ in 0..CALLS {
                admitted += u64::from(matches!(hot.try_spend(black_box(1)), Verdict::Admitted));
            }
        });
        governors.time(|| {
            for _ in 0..CALLS {
                let _ = black_box(direct.check());
            }
        });
        ours_keyed.time(|| {
            for name in names
                .iter()
                .cycle()
                .take(usize::try_from(CALLS).unwrap_or(usize::MAX))
            {
                admitted += u64::from(matches!(
                    client.try_spend(name, black_box(1)),
                    Verdict::Admitted
                ));
            }
        });
        governors_keyed.time(|| {
            for name in names
                .iter()
                .cycle()
                .take(usize::try_from(CALLS).unwrap_or(usize::MAX))
            {
                let _ = black_box(keyed.check_key(name));
            }
        });
    }
    runtime.block_on(client.close());
    Ok(vec![
        Figure::new("try_spend by handle, one thread", ours.median(), "ns")
            .against("governor direct", governors.median()),
        Figure::new("try_spend by key, 1,000 keys", ours_keyed.median(), "ns")
            .against("governor keyed by String", governors_keyed.median()),
        Figure::new(
            "admitted of these",
            float(admitted) / float(asked) * 100.0,
            "%",
        ),
    ])
}

/// Nanoseconds per call, round by round.
#[derive(Default)]
struct Rounds(Vec<f64>);

impl Rounds {
    fn time(&mut self, calls: impl FnOnce()) {
        let began = Instant::now();
        calls();
        self.0
            .push(began.elapsed().as_secs_f64() * 1e9 / float(CALLS));
    }

    fn median(&mut self) -> f64 {
        self.0.sort_unstable_by(f64::total_cmp);
        self.0.get(self.0.len() / 2).copied().unwrap_or(0.0)
    }
}
