//! No more than so many jobs at one moment, over all gateways: each job takes a
//! permit of a concurrency budget, and gives it back by dropping it.
//!
//! ```sh
//! cargo run -p leasehold-client --example permits -- http://127.0.0.1:7070
//! ```

use std::time::Duration;

use leasehold_client::{Budget, Client};

async fn job(number: u32, jobs: Budget) {
    let permit = match jobs.acquire_within(1, Duration::from_secs(5)).await {
        Ok(permit) => permit,
        Err(no) => {
            println!("job {number}: {no}");
            return;
        }
    };
    println!("job {number}: at work");
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(200)) => println!("job {number}: done"),
        // This gateway lost its session: others may take the permit from now on.
        () = permit.ended() => println!("job {number}: stopped"),
    }
    // The permit is dropped here, and the next job begins.
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().nth(1);
    let endpoint = endpoint.or_else(|| std::env::var("LEASEHOLD_ENDPOINT").ok());
    let endpoint = endpoint.unwrap_or_else(|| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder()
        .endpoint(endpoint)
        .holder("permits")
        .connect()
        .await?;

    let jobs = client.budget("jobs/reports")?;
    let running: Vec<_> = (1..=8)
        .map(|number| tokio::spawn(job(number, jobs.clone())))
        .collect();
    for job in running {
        job.await?;
    }
    let peek = jobs.peek();
    println!(
        "{} of {:?} permits could be had now",
        peek.remaining, peek.limit
    );
    client.close().await;
    Ok(())
}
