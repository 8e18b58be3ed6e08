//! A gateway of axum: a quota for each caller, and one for each address that nobody is
//! known at. Against `deploy/budgets.yaml`:
//!
//! ```sh
//! cargo run -p leasehold-client --features tower --example axum -- 127.0.0.1:8080
//! curl -i -H 'authorization: Bearer ada' http://127.0.0.1:8080/orders/7
//! ```

use std::{env, net::SocketAddr};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
    middleware::{Next, from_fn},
    response::Response,
    routing::get,
};
use leasehold_client::{
    Client,
    tower::{Address, Charge, QuotaLayer, extension},
};
use tokio::net::TcpListener;

#[derive(Clone)]
struct Caller(String);

/// Stands for what proves who is calling: here everybody is believed.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let stated = request.headers().get("authorization");
    let stated = stated.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if let Some(caller) = stated.map(|name| Caller(name.to_owned())) {
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = env::args().nth(1);
    let listen = listen.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let endpoint = env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder().endpoint(endpoint).holder("axum");
    let client = client.connect().await?;

    let address = Address::peer(|peer: &ConnectInfo<SocketAddr>| Some(peer.0));
    let caller = Charge::to("callers")?
        .by(extension(|caller: &Caller| caller.0.clone()))
        .or(Charge::to("anonymous")?.by(address));
    let quotas = QuotaLayer::new(&client)
        .charge(caller)
        .exempt(|request| request.uri.path() == "/healthz");

    let app = Router::new()
        .route("/orders/{id}", get(|| async { "an order\n" }))
        .route("/healthz", get(|| async { "well\n" }))
        .layer(quotas)
        .layer(from_fn(authenticate));
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(TcpListener::bind(listen).await?, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    client.close().await; // hands everything back
    Ok(())
}
