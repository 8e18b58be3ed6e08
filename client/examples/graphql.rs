//! A GraphQL endpoint whose callers pay what their queries cost, before anybody executes
//! them. Against `deploy/budgets.yaml`:
//!
//! ```sh
//! cargo run -p leasehold-client --features tower,graphql --example graphql -- 127.0.0.1:8081
//! curl -i -H 'x-caller: ada' -d '{"query": "{ repos(first: 100) { id } }"}' http://127.0.0.1:8081/
//! ```

use std::env;

use axum::{
    Router,
    body::{self, Body},
    extract::Request,
    http::{HeaderName, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::post,
};
use leasehold_client::{
    Client,
    graphql::Costs,
    tower::{Charge, QuotaLayer, header},
};
use tokio::net::TcpListener;

/// The longest body of a request.
const BODY_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone)]
struct Points(u64);

/// Reads the query, and leaves its cost for the quota.
async fn price(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = body::to_bytes(body, BODY_BYTES_MAX).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    match Costs::default().of_body(&body) {
        Ok(points) => parts.extensions.insert(Points(points)),
        Err(refused) => return (StatusCode::BAD_REQUEST, refused.to_string()).into_response(),
    };
    let request = Request::from_parts(parts, Body::from(body));
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listen = env::args().nth(1);
    let listen = listen.unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let endpoint = env::var("LEASEHOLD_ENDPOINT");
    let endpoint = endpoint.unwrap_or_else(|_| "http://127.0.0.1:7070".to_owned());
    let client = Client::builder().endpoint(endpoint).holder("graphql");
    let client = client.connect().await?;

    // Put what has authenticated the caller in its place: they can choose this header.
    let caller = header(HeaderName::from_static("x-caller"));
    let points = Charge::to("points")?.by(caller).cost(|request| {
        let points = request.extensions.get::<Points>();
        points.map_or(u64::MAX, |points| points.0)
    });
    let quotas = QuotaLayer::new(&client).charge(points);

    // The layer that is added last is the first to see a request.
    let execute = post(|| async { "{\"data\": {}}\n" });
    let app = Router::new().route("/", execute).layer(quotas);
    let app = app.layer(from_fn(price));
    axum::serve(TcpListener::bind(listen).await?, app)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    client.close().await; // hands everything back
    Ok(())
}
