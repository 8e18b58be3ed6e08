//! Requests of three lanes at one budget: under a flood of `anonymous` requests the
//! `payment` lane still gets through.
//!
//! The policy names the lanes, the highest first, and keeps units back for them:
//!
//! ```json
//! {"kind": "sliding_window", "limit": 100, "window_ms": 1000, "lanes": [
//!   {"name": "payment", "reserve": 30, "max_wait_ms": 1000},
//!   {"name": "reads", "reserve": 10},
//!   {"name": "anonymous", "reserve": 0}]}
//! ```
//!
//! ```sh
//! cargo run -p leasehold-client --example lanes -- shop/api
//! ```

use std::{env, time::Duration};

use leasehold_client::{Client, Lane};

/// Requests, and those of them that were let through.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    requests: u32,
    allowed: u32,
}

/// Spends one unit every so often for two seconds.
async fn stream_of(lane: Lane, every: Duration) -> Count {
    let mut count = Count::default();
    let mut tick = tokio::time::interval(every);
    let end = tokio::time::Instant::now() + Duration::from_secs(2);
    while tokio::time::Instant::now() < end {
        tick.tick().await;
        count.requests += 1;
        count.allowed += u32::from(lane.spend(1).await.is_allowed());
    }
    count
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = env::args().nth(1).unwrap_or_else(|| "shop/api".to_owned());
    let endpoint = env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());

    let client = Client::builder()
        .endpoint(endpoint)
        .holder("lanes-example")
        .connect()
        .await?;
    let budget = client.budget(&key)?;
    // A handle for each lane. The budget itself stands for the lowest.
    let (payment, anonymous) = (budget.lane("payment"), budget.lane("anonymous"));

    let (paid, flooded) = tokio::join!(
        stream_of(payment, Duration::from_millis(50)),
        stream_of(anonymous, Duration::from_millis(1)),
    );
    println!(
        "payment:   {} of {} let through",
        paid.allowed, paid.requests
    );
    println!(
        "anonymous: {} of {} let through",
        flooded.allowed, flooded.requests
    );
    client.close().await;
    Ok(())
}
