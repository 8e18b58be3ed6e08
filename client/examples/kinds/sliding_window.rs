//! `sliding_window`: at most `limit` units in any interval of `window_ms`.

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // 100 requests in any minute, for each caller.
    let orders = client.budget(&fresh("examples/window"))?;
    let mut served = 0;
    let refused = loop {
        match orders.spend(1).await {
            Verdict::Admitted => served += 1,
            refused => break refused,
        }
    };
    println!("sliding_window: {served} served, then {}", told(refused));
    assert_eq!(served, 100);
    // When the first of the hundred is a minute old.
    assert!(
        refused
            .retry_after()
            .is_some_and(|after| after.as_secs() <= 61)
    );
    Ok(())
}
