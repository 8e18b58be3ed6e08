//! A gateway in a few lines: spends one unit per request of one key and says what
//! it was told.
//!
//! ```sh
//! cargo run -p leasehold-client --example gateway -- acme/orders.read 50
//! ```
//! asks for `acme/orders.read` fifty times a second, for ten seconds. `LEASEHOLD_ENDPOINT`
//! names a coordinator, `LEASEHOLD_CA` and `LEASEHOLD_TOKEN_FILE` whom it trusts and who it is.

use std::{collections::BTreeMap, time::Duration};

use leasehold_client::{Client, Verdict};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let key = args.next().unwrap_or_else(|| "acme/orders.read".to_owned());
    let per_second: u64 = args.next().map_or(Ok(50), |rate| rate.parse())?;
    let endpoint = std::env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());

    let mut builder = Client::builder().endpoint(endpoint).holder("gateway");
    if let Ok(ca) = std::env::var("LEASEHOLD_CA") {
        builder = builder.ca_file(ca);
    }
    if let Ok(token) = std::env::var("LEASEHOLD_TOKEN_FILE") {
        builder = builder.token_file(token);
    }
    let client = builder.connect().await?;
    let budget = client.budget(&key)?;
    let mut told = BTreeMap::<String, u64>::new();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / u32::try_from(per_second)?);
    for _ in 0..10 * per_second {
        ticks.tick().await;
        let word = match budget.spend(1).await {
            Verdict::Admitted => "admitted".to_owned(),
            Verdict::Denied { code, .. } => format!("denied: {code}"),
            Verdict::Unavailable { code } => format!("unavailable: {code}"),
            verdict => format!("{verdict:?}"),
        };
        *told.entry(word).or_default() += 1;
    }
    client.close().await;
    println!("{key}: {told:?}");
    Ok(())
}
