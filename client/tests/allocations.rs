//! What spending costs in memory: nothing, once a key is known.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod authority;
mod fake;

use std::time::Duration;

use fake::{Fake, builder};
use leasehold_client::Verdict;

/// Allocations of this thread while `spend` runs.
fn allocations(spend: impl FnOnce()) -> u64 {
    allocation_counter::measure(spend).count_total
}

#[tokio::test]
async fn try_spend_allocates_nothing_once_warm() {
    let (fake, url) = Fake::start().await;
    fake.set(|books| books.limit = 1 << 20);
    fake.give("a", 10_000);
    let client = builder(&url).connect().await.unwrap();
    let budget = client.budget("a").unwrap();
    assert_eq!(budget.spend(5_000).await, Verdict::Admitted);
    // A slice comes, a part of which is spent below.
    while client.try_spend("a", 1) != Verdict::Admitted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    // This thread runs the only worker, so the driver does nothing meanwhile.
    let mut admitted = 0;
    let by_handle = allocations(|| {
        for _ in 0..1_000 {
            admitted += u32::from(budget.try_spend(1) == Verdict::Admitted);
        }
    });
    let by_key = allocations(|| {
        for _ in 0..1_000 {
            admitted += u32::from(client.try_spend("a", 1) == Verdict::Admitted);
        }
    });
    assert_eq!((by_handle, by_key), (0, 0));
    assert_eq!(admitted, 2_000);

    // Nothing is left, and the driver is rung for; nor then.
    let rest = allocations(|| while budget.try_spend(1) == Verdict::Admitted {});
    let empty = allocations(|| {
        for _ in 0..1_000 {
            assert!(!budget.try_spend(1).is_allowed());
            assert!(!client.try_spend("a", 1).is_allowed());
        }
    });
    assert_eq!((rest, empty), (0, 0));
    // Refused: the answer is local.
    while !matches!(client.spend("a", 5_000).await, Verdict::Denied { .. }) {}
    let refused = allocations(|| {
        for _ in 0..1_000 {
            assert!(matches!(budget.try_spend(5_000), Verdict::Denied { .. }));
        }
    });
    assert_eq!(refused, 0);
}
