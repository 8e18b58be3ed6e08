//! A paced budget: requests are let out one after another at the budget's rate, in
//! order, and wait for their turn as long as they want to.
//!
//! ```json
//! {"kind": "paced", "capacity": 5, "refill": 10, "refill_period_ms": 1000}
//! ```
//!
//! ```sh
//! cargo run -p leasehold-client --example paced -- mail/outgoing
//! ```

use std::{
    env,
    time::{Duration, Instant},
};

use leasehold_client::{Client, Verdict};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let key = env::args()
        .nth(1)
        .unwrap_or_else(|| "mail/outgoing".to_owned());
    let endpoint = env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());

    let client = Client::builder()
        .endpoint(endpoint)
        .holder("paced-example")
        .connect()
        .await?;
    let budget = client.budget(&key)?;
    let began = Instant::now();
    // All at once: they queue, and those for whom three seconds are too short are told so.
    let sends = (0..50).map(|number| {
        let budget = budget.clone();
        tokio::spawn(async move {
            let verdict = budget.spend_within(1, Duration::from_secs(3)).await;
            (number, verdict, began.elapsed())
        })
    });
    let sends: Vec<_> = sends.collect();
    let (mut sent, mut refused) = (0, 0);
    for send in sends {
        match send.await? {
            (number, Verdict::Admitted, after) => {
                sent += 1;
                println!("{number}: sent after {} ms", after.as_millis());
            }
            _ => refused += 1,
        }
    }
    println!("{sent} sent, {refused} told that it takes too long");
    client.close().await;
    Ok(())
}
