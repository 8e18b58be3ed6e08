//! `token_bucket`: a burst of `capacity`, and `refill` units per `refill_period_ms`.

use std::time::{Duration, Instant};

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh};

pub(crate) async fn run(client: &Client) -> Outcome {
    // A burst of 20, then 50 a second.
    let uploads = client.budget(&fresh("examples/bucket"))?;
    let begun = Instant::now();
    let mut served = 0;
    for _ in 0..45 {
        if uploads.spend_within(1, Duration::from_secs(5)).await == Verdict::Admitted {
            served += 1;
        }
    }
    let took = begun.elapsed();
    println!("token_bucket: {served} served in {} ms", took.as_millis());
    // 25 more than the burst: half a second at the least.
    assert_eq!(served, 45);
    assert!(took >= Duration::from_millis(490), "{took:?}");
    Ok(())
}
