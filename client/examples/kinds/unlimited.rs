//! `unlimited`: counts, and never refuses.

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh};

pub(crate) async fn run(client: &Client) -> Outcome {
    let internal = client.budget(&fresh("examples/unlimited"))?;
    let mut served = 0;
    for _ in 0..10_000 {
        if internal.spend(1).await == Verdict::Admitted {
            served += 1;
        }
    }
    println!("unlimited: {served} served; the account's lifetime totals count them");
    assert_eq!(served, 10_000);
    Ok(())
}
