//! `estimate`: about `limit` units in any `window_ms`, and no request ever waits. Not exact.

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // About 100 a minute, counted by each gateway and told to the others.
    let searches = client.budget(&fresh("examples/estimate"))?;
    // The first request asks what kind of budget it is.
    let _first = searches.spend(1).await;
    let mut served = 0;
    let refused = loop {
        // `try_spend` and `spend` are alike here: both answer at once.
        match searches.try_spend(1) {
            Verdict::Estimated => served += 1,
            refused => break refused,
        }
    };
    println!("estimate: about {served} served, then {}", told(refused));
    assert!((90..=101).contains(&served), "{served}");
    Ok(())
}
