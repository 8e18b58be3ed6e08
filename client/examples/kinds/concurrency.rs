//! `concurrency`: at most `limit` permits in use at one moment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use leasehold_client::Client;

use super::{Outcome, fresh};

pub(crate) async fn run(client: &Client) -> Outcome {
    // Three jobs at once, over all gateways.
    let jobs = client.budget(&fresh("examples/concurrency"))?;
    let (working, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let running = (0..12).map(|_| {
        let (jobs, working, most) = (jobs.clone(), Arc::clone(&working), Arc::clone(&most));
        tokio::spawn(async move {
            // Given back when it is dropped, at the end of this block.
            let Ok(permit) = jobs.acquire_within(1, Duration::from_secs(10)).await else {
                return false;
            };
            most.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(20)) => {}
                // This gateway lost its session: somebody else may have the permit soon.
                () = permit.ended() => {}
            }
            working.fetch_sub(1, Ordering::SeqCst);
            true
        })
    });
    let running: Vec<_> = running.collect();
    let mut done = 0;
    for job in running {
        done += u32::from(job.await?);
    }
    let most = most.load(Ordering::SeqCst);
    println!("concurrency: {done} jobs done, {most} at once at the most");
    assert_eq!((done, most), (12, 3));
    Ok(())
}
