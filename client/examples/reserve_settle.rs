//! Work whose cost is known only afterwards: tokens are reserved for the most that
//! an answer may take, and settled for what it took.
//!
//! ```sh
//! cargo run -p leasehold-client --example reserve_settle -- http://127.0.0.1:7070
//! ```

use leasehold_client::{Client, Settled};

/// As if a model answered: the longer the question, the more tokens it takes.
fn answer(question: &str) -> u64 {
    u64::try_from(question.len()).unwrap_or(u64::MAX)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().nth(1);
    let endpoint = endpoint.or_else(|| std::env::var("LEASEHOLD_ENDPOINT").ok());
    let endpoint = endpoint.unwrap_or_else(|| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder()
        .endpoint(endpoint)
        .holder("reserve-settle")
        .connect()
        .await?;

    let tokens = client.budget("tokens/acme")?;
    for question in ["Who?", "What is a lease, and when does it end?", "Why?"] {
        let hold = match tokens.reserve(20).await {
            Ok(hold) => hold,
            Err(no) => {
                println!("{question}: {no}");
                continue;
            }
        };
        // Nobody else can use these 20 tokens while the model is at work. Were it
        // to fail, `hold` would be dropped, and all of them were free again.
        let used = answer(question);
        match hold.settle(used) {
            Settled::Within { returned } => println!("{question}: {used}, {returned} back"),
            Settled::Over { taken, overrun } => {
                println!("{question}: {used}, {taken} more taken, {overrun} overrun");
            }
            told => println!("{question}: {told:?}"),
        }
    }
    client.close().await;
    Ok(())
}
