//! A proxy of Pingora from 127.0.0.1:8090 to a server at 8080, with a quota for each
//! caller, against `deploy/budgets.yaml`. Its build needs cmake, so it is no part of the
//! workspace: `cargo run --manifest-path client/examples/pingora/Cargo.toml`.

use std::sync::Arc;

use leasehold_client::http::{Answer, Answers, Reason};
use leasehold_client::{Client, Key};
use pingora_core::server::{Server, ShutdownWatch};
use pingora_core::services::background::{BackgroundService, background_service};
use pingora_core::{Result, upstreams::peer::HttpPeer};
use pingora_http::ResponseHeader as Head;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use tokio::sync::OnceCell;

type Told = Option<Answer>;

#[derive(Clone, Default)]
struct Gateway(Arc<OnceCell<Client>>, Answers);

#[async_trait::async_trait]
impl BackgroundService for Gateway {
    /// Connects once Pingora runs: it may fork before, and a client must not be forked.
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let client = Client::builder().endpoint("http://127.0.0.1:7070");
        let client = client.holder("pingora").connect();
        match self.0.get_or_try_init(|| client).await {
            Ok(client) => {
                drop(shutdown.changed().await);
                client.close().await; // hands everything back
            }
            Err(error) => eprintln!("no request is served: {error}"),
        }
    }
}

#[async_trait::async_trait]
impl ProxyHttp for Gateway {
    type CTX = Told;
    fn new_ctx(&self) -> Told {
        None
    }

    async fn request_filter(&self, session: &mut Session, told: &mut Told) -> Result<bool> {
        // Put what has authenticated the caller in its place: they can choose this header.
        let caller = session.req_header().headers.get("x-caller");
        let caller = caller.and_then(|caller| caller.to_str().ok());
        let answer = match (self.0.get(), caller.map(|name| Key::new(["callers", name]))) {
            (Some(client), Some(Ok(key))) => self.1.spend(client, key, 1).await,
            (Some(_), _) => self.1.refusal(Reason::NoIdentity, None),
            (None, _) => self.1.refusal(Reason::ReducedCapacity, None),
        };
        if told.insert(answer.clone()).is_allowed {
            return Ok(false);
        }
        let body = answer.body.unwrap_or_default();
        let mut head = Head::build(answer.status, None)?;
        head.insert_header("content-length", body.len())?;
        self.response_filter(session, &mut head, told).await?;
        session.write_error_response(head, body).await?;
        Ok(true)
    }

    async fn response_filter(&self, _: &mut Session, to: &mut Head, told: &mut Told) -> Result<()> {
        for (name, value) in told.iter().flat_map(|answer| &answer.headers) {
            to.append_header(name.clone(), value.clone())?;
        }
        Ok(())
    }

    async fn upstream_peer(&self, _: &mut Session, _: &mut Told) -> Result<Box<HttpPeer>> {
        let upstream = HttpPeer::new("127.0.0.1:8080", false, String::new());
        Ok(Box::new(upstream))
    }
}

fn main() -> Result<()> {
    let mut server = Server::new(None)?;
    server.bootstrap();
    let gateway = Gateway::default();
    server.add_service(background_service("leases", gateway.clone()));
    let mut proxy = http_proxy_service(&server.configuration, gateway);
    proxy.add_tcp("127.0.0.1:8090");
    server.add_service(proxy);
    server.run_forever();
}
