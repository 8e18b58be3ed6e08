//! `period`: `limit` units per hour, day, week, month or year of a time zone.

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // 1,000 units a month, from the 15th on, by Berlin's clocks.
    let reports = client.budget(&fresh("examples/period"))?;
    let mut used = 0;
    // Reports cost between 1 and 7 units.
    for cost in (1..=7).cycle() {
        match reports.spend(cost).await {
            Verdict::Admitted => used += cost,
            refused => {
                println!("period: {used} of 1000 used, then {}", told(refused));
                break;
            }
        }
    }
    assert!((994..=1_000).contains(&used), "{used}");
    Ok(())
}
