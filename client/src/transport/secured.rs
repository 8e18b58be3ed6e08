//! HTTP/2 over TLS. Knows nothing of where its configuration came from.
//!
//! tonic is told an `http` address with an `https` origin, and the connector speaks TLS
//! by itself: so it does not matter which of tonic's own TLS features another crate of
//! the same program switches on.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    codegen::{
        Service,
        http::{Uri, uri::Scheme},
    },
    transport::{Channel, Endpoint},
};

type Failure = Box<dyn Error + Send + Sync>;

const PORT: u16 = 443;

/// Connects to an `https` address.
pub(super) async fn connect(
    uri: &Uri,
    mut tls: ClientConfig,
    within: Duration,
) -> Result<Channel, Failure> {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let host = uri.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let server = ServerName::try_from(bare.to_owned())?;
    let port = uri.port_u16().unwrap_or(PORT);
    let tcp_uri = Uri::builder()
        .scheme(Scheme::HTTP)
        .authority(format!("{host}:{port}"))
        .path_and_query("/")
        .build()?;
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(within));
    let connector = Secured {
        tcp,
        tls: TlsConnector::from(Arc::new(tls)),
        server,
    };
    let endpoint = Endpoint::from(tcp_uri).origin(uri.clone());
    Ok(endpoint.connect_with_connector(connector).await?)
}

#[derive(Clone)]
struct Secured {
    tcp: HttpConnector,
    tls: TlsConnector,
    server: ServerName<'static>,
}

impl Service<Uri> for Secured {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Failure>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tcp = self.tcp.call(uri);
        let (tls, server) = (self.tls.clone(), self.server.clone());
        Box::pin(async move {
            let tcp = tcp.await?.into_inner();
            Ok(TokioIo::new(tls.connect(server, tcp).await?))
        })
    }
}
