//! `total`: prepaid units, that come back by a top-up only.

use leasehold_client::{Client, Verdict};

use super::{Outcome, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // Five units to begin with; `leasehold account adjust` adds to them.
    let key = std::env::args()
        .nth(2)
        .unwrap_or_else(|| super::fresh("examples/total"));
    let credits = client.budget(&key)?;
    let mut used = 0;
    let refused = loop {
        match credits.spend(1).await {
            Verdict::Admitted => used += 1,
            refused => break refused,
        }
    };
    println!("total: {key} had {used} units, then {}", told(refused));
    Ok(())
}
