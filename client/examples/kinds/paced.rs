//! `paced`: a bucket whose units are released one after the other, in order.

use std::time::{Duration, Instant};

use leasehold_client::{Client, Verdict};

use super::{Outcome, fresh, told};

pub(crate) async fn run(client: &Client) -> Outcome {
    // 50 a second, and never two at once from one gateway.
    let mails = client.budget(&fresh("examples/paced"))?;
    // The rule is known from the first answer on.
    let first = mails.spend_within(1, Duration::from_secs(5)).await;
    if first != Verdict::Admitted {
        return Err(told(first).into());
    }
    let begun = Instant::now();
    let sends = (0..20).map(|number| {
        let mails = mails.clone();
        tokio::spawn(async move {
            let verdict = mails.spend_within(1, Duration::from_secs(5)).await;
            (number, verdict, begun.elapsed())
        })
    });
    let sends: Vec<_> = sends.collect();
    let mut sent = Vec::new();
    for send in sends {
        if let (number, Verdict::Admitted, after) = send.await? {
            sent.push((after, number));
        }
    }
    sent.sort_unstable();
    let last = sent.last().map_or(Duration::ZERO, |(after, _)| *after);
    println!("paced: {} sent in {} ms", sent.len(), last.as_millis());
    assert_eq!(sent.len(), 20);
    // Twenty at 20 ms each, as far as timers are exact.
    assert!(last >= Duration::from_millis(300), "{last:?}");
    Ok(())
}
