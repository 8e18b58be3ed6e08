//! A gRPC server of tonic with a quota for each caller, and a caller who uses it up.
//! Against `deploy/budgets.yaml`:
//!
//! ```sh
//! cargo run -p leasehold-client --features tower --example tonic
//! ```

use std::env;

use http::HeaderName;
use leasehold_client::{
    Client,
    tower::{Charge, QuotaLayer, header},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request,
    transport::{Endpoint, Server},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let endpoint = env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder()
        .endpoint(endpoint)
        .holder("tonic")
        .connect()
        .await?;

    // Whoever sends this header must not be able to choose it: put what has
    // authenticated the caller in its place, like the name in their certificate.
    let caller = header(HeaderName::from_static("x-caller"));
    let quotas = QuotaLayer::new(&client).charge(Charge::to("callers")?.by(caller));

    // Any service does; this one comes with tonic.
    let (_reporter, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = Server::builder().layer(quotas).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    let mut calls = HealthClient::new(Endpoint::from_shared(url)?.connect().await?);
    for number in 1.. {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-caller", "grace".parse()?);
        match calls.check(request).await {
            Ok(response) => {
                println!(
                    "{number}: served, {:?}",
                    response.metadata().get("ratelimit")
                );
            }
            Err(status) => {
                let retry = status.get_details_retry_info();
                let retry = retry.and_then(|info| info.retry_delay);
                println!("{number}: {:?}, again in {retry:?}", status.code());
                break;
            }
        }
    }
    client.close().await; // hands everything back
    Ok(())
}
