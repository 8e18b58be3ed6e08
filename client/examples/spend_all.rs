//! One request that costs several budgets at once: its tenant's, its user's and
//! the service's own. All of them are charged, or none.
//!
//! ```sh
//! cargo run -p leasehold-client --example spend_all -- http://127.0.0.1:7070
//! ```

use leasehold_client::{Client, Verdict};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = std::env::args().nth(1);
    let endpoint = endpoint.or_else(|| std::env::var("LEASEHOLD_ENDPOINT").ok());
    let endpoint = endpoint.unwrap_or_else(|| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder()
        .endpoint(endpoint)
        .holder("spend-all")
        .connect()
        .await?;

    let tenant = client.budget("tenant/acme")?;
    let user = client.budget("user/acme/ada")?;
    let service = client.budget("service/search")?;
    for request in 1..=20 {
        // A search costs the tenant and the user one unit, and the service five.
        let told = client
            .spend_all([(&tenant, 1), (&user, 1), (&service, 5)])
            .await;
        match (&told.verdict, &told.refused_by) {
            (Verdict::Admitted, _) => println!("request {request}: admitted"),
            (verdict, Some(by)) => println!("request {request}: {} said {verdict:?}", by.key),
            (verdict, None) => println!("request {request}: {verdict:?}"),
        }
    }
    client.close().await;
    Ok(())
}
