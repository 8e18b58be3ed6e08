//! Every kind of budget in a few lines each: `cargo run -p leasehold-client --example kinds
//! -- KIND`, against a coordinator that knows `deploy/budgets.yaml`
//! (`leasehold apply -f deploy/budgets.yaml`). Each says what it was told, and fails if
//! that is not what the kind promises.

mod concurrency;
mod estimate;
mod paced;
mod period;
mod sliding_window;
mod token_bucket;
mod total;
mod unlimited;

use leasehold_client::{Client, Verdict};

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let endpoint = std::env::var("LEASEHOLD_ENDPOINT");
    let client = Client::builder()
        .endpoint(endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned()))
        .holder("example")
        .connect()
        .await?;
    match kind.as_str() {
        "concurrency" => concurrency::run(&client).await?,
        "estimate" => estimate::run(&client).await?,
        "paced" => paced::run(&client).await?,
        "period" => period::run(&client).await?,
        "sliding_window" => sliding_window::run(&client).await?,
        "token_bucket" => token_bucket::run(&client).await?,
        "total" => total::run(&client).await?,
        "unlimited" => unlimited::run(&client).await?,
        other => return Err(format!("there is no example of a kind {other:?}").into()),
    }
    client.close().await;
    Ok(())
}

/// A key that no run has used before: the examples can be run again and again.
fn fresh(prefix: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    format!("{prefix}/{}", now.map_or(0, |now| now.as_nanos()))
}

/// One line for people.
fn told(verdict: Verdict) -> String {
    match verdict {
        Verdict::Denied {
            code,
            retry_after: Some(after),
        } => format!("refused ({code}), try again in {} s", after.as_secs() + 1),
        Verdict::Denied { code, .. } => format!("refused ({code})"),
        verdict => format!("{verdict:?}").to_lowercase(),
    }
}
