//! What stands behind the gateways: it serves everything, and counts what arrives.
//! Knows neither keys' budgets nor agents.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use leasehold_tests::clock_ns;
use tokio::net::TcpListener;

use super::Outcome;

/// The header that says whose request it is.
pub(super) const KEY: &str = "x-api-key";

/// What arrived of each key, by when.
#[derive(Clone, Debug, Default)]
pub(super) struct Upstream(Arc<Mutex<BTreeMap<String, Vec<u64>>>>);

impl Upstream {
    /// Serves on a port of its own until the runtime ends.
    pub(super) async fn start(&self) -> Outcome<SocketAddr> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let upstream = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let upstream = upstream.clone();
                tokio::spawn(async move {
                    let service = service_fn(|request| {
                        let answer = upstream.serve(&request);
                        async move { Ok::<_, Infallible>(answer) }
                    });
                    // An error here is a connection that its gateway closed.
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Ok(address)
    }

    fn serve(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let key = request
            .headers()
            .get(KEY)
            .map_or("", |key| key.to_str().unwrap_or(""));
        let mut arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.entry(key.to_owned()).or_default().push(clock_ns());
        Response::new(Full::new(Bytes::from_static(b"served\n")))
    }

    /// How many requests of a key arrived.
    pub(super) fn count(&self, key: &str) -> u64 {
        let arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.get(key).map_or(0, |at| at.len() as u64)
    }

    /// How many requests of all keys arrived.
    pub(super) fn total(&self) -> u64 {
        let arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.values().map(|at| at.len() as u64).sum()
    }

    /// From the first to the last arrival of a key, in nanoseconds.
    pub(super) fn span_ns(&self, key: &str) -> u64 {
        let arrived = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = arrived.get(key) else { return 0 };
        let ends = at.iter().min().zip(at.iter().max());
        ends.map_or(0, |(first, last)| last - first)
    }
}
