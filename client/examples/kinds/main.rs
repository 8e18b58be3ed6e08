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

use std::process::ExitCode;

use leasehold_client::{Client, Code, Verdict};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The kinds, and where `deploy/budgets.yaml` has a budget of each.
const KINDS: [(&str, &str); 8] = [
    ("sliding_window", "examples/window"),
    ("token_bucket", "examples/bucket"),
    ("paced", "examples/paced"),
    ("period", "examples/period"),
    ("total", "examples/total"),
    ("concurrency", "examples/concurrency"),
    ("estimate", "examples/estimate"),
    ("unlimited", "examples/unlimited"),
];

#[tokio::main]
async fn main() -> ExitCode {
    let kind = std::env::args().nth(1);
    let known = |name: &String| KINDS.into_iter().find(|(kind, _)| kind == name);
    let Some((kind, prefix)) = kind.as_ref().and_then(known) else {
        if let Some(kind) = &kind {
            eprintln!("there is no example of a kind {kind:?}");
        }
        let names: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
        eprintln!("name one of: {}", names.join(", "));
        return ExitCode::from(2);
    };
    match run(kind, prefix).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{kind}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(kind: &str, prefix: &str) -> Outcome {
    let endpoint =
        std::env::var("LEASEHOLD_ENDPOINT").unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder()
        .endpoint(&endpoint)
        .holder("example")
        .connect()
        .await?;
    look(&client, &endpoint, prefix).await?;
    match kind {
        "concurrency" => concurrency::run(&client).await?,
        "estimate" => estimate::run(&client).await?,
        "paced" => paced::run(&client).await?,
        "period" => period::run(&client).await?,
        "sliding_window" => sliding_window::run(&client).await?,
        "token_bucket" => token_bucket::run(&client).await?,
        "total" => total::run(&client).await?,
        _ => unlimited::run(&client).await?,
    }
    client.close().await;
    Ok(())
}

/// Asks about a key that the example does not use, to say what is missing before anything
/// is expected of its own.
async fn look(client: &Client, endpoint: &str, prefix: &str) -> Outcome {
    let verdict = client.budget(&fresh(prefix))?.spend(1).await;
    match verdict.code() {
        Some(Code::NoBudget) => Err(format!(
            "the coordinator has no budget for {prefix}/*: run `leasehold apply -f deploy/budgets.yaml` first"
        )
        .into()),
        _ if matches!(verdict, Verdict::Unavailable { .. }) => Err(format!(
            "no coordinator answers at {endpoint}: start one with `leasehold serve`, or set LEASEHOLD_ENDPOINT"
        )
        .into()),
        _ => Ok(()),
    }
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
        Verdict::Denied { code, .. } => format!("refused ({code}), and time alone frees nothing"),
        verdict => format!("{verdict:?}").to_lowercase(),
    }
}
