//! Traffic of which nothing is meant to stay: keys that are used once, sessions
//! that end well or die, budgets and policies that come and go. Knows nothing of
//! what it does to a node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_client::{Client, Verdict};
use leasehold_tests::LocalCluster;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Outcome, PATIENCE};

/// A unit counts for so long: accounts that nobody uses are gone soon after.
const WINDOW_MS: u64 = 2_000;
/// A session's life.
const LIFE: Duration = Duration::from_secs(4);
/// Keys that one session uses and then leaves.
const KEYS: u64 = 20;
/// A client that stays is replaced once it has used so many keys: it remembers them.
const STAYS_FOR_KEYS: u64 = 20_000;

#[derive(Default)]
pub(super) struct Churn {
    endpoints: Vec<String>,
    keys: AtomicU64,
    admitted: AtomicU64,
    refused: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    died: AtomicU64,
    failed: AtomicU64,
    edits: AtomicU64,
}

impl Churn {
    pub(super) fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            ..Self::default()
        }
    }

    /// Budgets for everything that comes.
    pub(super) fn prepare(&self, cluster: &LocalCluster) -> Outcome<()> {
        let window = json!({"kind": "sliding_window", "limit": 50, "window_ms": WINDOW_MS});
        let bucket = json!({
            "kind": "token_bucket", "capacity": 50, "refill": 50, "refill_period_ms": WINDOW_MS,
        });
        self.put(cluster, "/v1/budgets/soak/w/*", &json!({"policy": window}))?;
        self.put(cluster, "/v1/budgets/soak/b/*", &json!({"policy": bucket}))
    }

    /// An operator's edits: a policy changes, a budget with a key comes and goes.
    pub(super) fn edit(&self, cluster: &LocalCluster) -> Outcome<()> {
        let number = self.edits.fetch_add(1, Ordering::Relaxed);
        let policy = json!({
            "kind": "sliding_window", "limit": 40 + number % 20, "window_ms": WINDOW_MS,
        });
        self.put(cluster, "/v1/budgets/soak/w/*", &json!({"policy": policy}))?;
        let name = format!("/v1/policies/soak-{}", number % 50);
        let budget = format!("/v1/budgets/soak/own/{number}");
        self.put(cluster, &name, &policy)?;
        self.put(cluster, &budget, &json!({"policy": policy}))?;
        let spend = json!({"key": format!("soak/own/{number}"), "units": 1});
        cluster.request("POST", "/v1/spend", Some(&spend), PATIENCE)?;
        cluster.request("DELETE", &budget, None, PATIENCE)?;
        cluster.request("DELETE", &name, None, PATIENCE)?;
        Ok(())
    }

    fn put(&self, cluster: &LocalCluster, path: &str, body: &Value) -> Outcome<()> {
        let answer = cluster.request("PUT", path, Some(body), PATIENCE)?;
        if answer.status >= 300 {
            return Err(format!("PUT {path}: {answer:?}").into());
        }
        Ok(())
    }

    /// Opens clients and uses new keys, until it is aborted.
    pub(super) async fn drive(self: Arc<Self>, keys_per_second: u32, sessions_per_second: u32) {
        let stays = tokio::spawn(Arc::clone(&self).stay(keys_per_second));
        let mut tick = interval(Duration::from_secs(1) / sessions_per_second.max(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if stays.is_finished() {
                return;
            }
            tokio::spawn(Arc::clone(&self).visit());
        }
    }

    /// Clients that stay for long, and see many keys.
    async fn stay(self: Arc<Self>, keys_per_second: u32) {
        let mut tick = interval(Duration::from_secs(1) / keys_per_second.max(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Some(client) = self.connect("stays").await else {
                sleep(Duration::from_secs(1)).await;
                continue;
            };
            let client = Arc::new(client);
            for _ in 0..STAYS_FOR_KEYS {
                tick.tick().await;
                let (churn, client) = (Arc::clone(&self), Arc::clone(&client));
                tokio::spawn(async move { churn.spend(&client).await });
            }
            client.close().await;
            self.closed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A session that uses some keys and ends: every second one without a word.
    async fn visit(self: Arc<Self>) {
        let Some(client) = self.connect("visits").await else {
            return;
        };
        for _ in 0..KEYS {
            self.spend(&client).await;
        }
        sleep(LIFE).await;
        if self.opened.load(Ordering::Relaxed).is_multiple_of(2) {
            client.close().await;
            self.closed.fetch_add(1, Ordering::Relaxed);
        } else {
            drop(client);
            self.died.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn connect(&self, holder: &str) -> Option<Client> {
        let connected = Client::builder()
            .endpoints(self.endpoints.clone())
            .holder(holder)
            .connect()
            .await;
        let count = match connected {
            Ok(_) => &self.opened,
            Err(_) => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        connected.ok()
    }

    async fn spend(&self, client: &Client) {
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        let kind = if number.is_multiple_of(2) { "w" } else { "b" };
        let verdict = client.spend(&format!("soak/{kind}/{number}"), 1).await;
        let count = match verdict == Verdict::Admitted {
            true => &self.admitted,
            false => &self.refused,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// What was done so far.
    pub(super) fn counts(&self) -> Value {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "keys": read(&self.keys),
            "admitted": read(&self.admitted),
            "refused": read(&self.refused),
            "sessions_opened": read(&self.opened),
            "sessions_closed": read(&self.closed),
            "sessions_died": read(&self.died),
            "sessions_failed": read(&self.failed),
            "edits": read(&self.edits),
        })
    }
}
