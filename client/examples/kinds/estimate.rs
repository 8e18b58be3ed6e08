//! `estimate`: about `limit` units in any `window_ms`, and no request ever waits. Not exact.

use std::time::Duration;

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // About 100 a minute, counted by each gateway and told to the others.
    let searches = client.budget(&fresh("examples/estimate"))?;
    let (mut served, mut refused) = (0, 0);
    let mut last = Verdict::Empty;
    // A gateway begins with a few, until it has heard who else there is.
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    for _ in 0..300 {
        ticks.tick().await;
        // The first one asks what kind of budget it is; all others are answered at once.
        match searches.spend(1).await {
            Verdict::Estimated => served += 1,
            verdict => (refused, last) = (refused + 1, verdict),
        }
    }
    println!(
        "estimate: about {served} served, {refused} not, at last {}",
        told(last)
    );
    assert!((90..=101).contains(&served), "{served}");
    Ok(())
}
