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
const ROUNDS: u32 = 101;
/// Few enough that a lease sized by the demand covers a round.
const CALLS: u64 = 100_000;
const KEYS: usize = 1_000;
/// Demand makes leases grow; until then the rounds do not count.
const WARM_UP: Duration = Duration::from_secs(6);

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
    let direct = RateLimiter::direct(Quota::per_second(NonZeroU32::MAX));
    let keyed = RateLimiter::keyed(Quota::per_second(NonZeroU32::MAX));
    let (mut ours, mut governors) = (Rounds::default(), Rounds::default());
    let (mut ours_keyed, mut governors_keyed) = (Rounds::default(), Rounds::default());
    let mut admitted = 0_u64;
    let began = Instant::now();
    let mut counted = 0;
    while counted < ROUNDS {
        if began.elapsed() < WARM_UP {
            (admitted, counted) = (0, 0);
            for rounds in [
                &mut ours,
                &mut governors,
                &mut ours_keyed,
                &mut governors_keyed,
            ] {
                rounds.0.clear();
            }
        }
        counted += 1;
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
        let calls = usize::try_from(CALLS).unwrap_or(usize::MAX);
        ours_keyed.time(|| {
            for name in names.iter().cycle().take(calls) {
                let verdict = client.try_spend(name, black_box(1));
                admitted += u64::from(matches!(verdict, Verdict::Admitted));
            }
        });
        governors_keyed.time(|| {
            for name in names.iter().cycle().take(calls) {
                let _ = black_box(keyed.check_key(name));
            }
        });
    }
    let asked = 2 * CALLS * u64::from(ROUNDS);
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
