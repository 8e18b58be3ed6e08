//! Streams to a coordinator over tonic. Knows neither sessions nor leases.

#[cfg(feature = "tls")]
mod secured;

use std::{sync::Arc, time::Duration};

use leasehold_credentials::{Credentials, CredentialsError};
use leasehold_proto::v1::{ClientMessage, CoordinatorMessage, leasehold_client::LeaseholdClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    codegen::http::{HeaderValue, Uri},
    metadata::{Ascii, MetadataValue},
    transport::{Channel, Endpoint},
};

/// Messages that may wait for the transport. Far more than are ever under way:
/// when it is full the connection is stuck.
const OUTBOX: usize = 64;
/// A restatement of all leases of a session with very many keys.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How many times longer a connection with TLS may take: it goes back and forth twice
/// more, and the other end signs.
const TLS_TAKES: u32 = 3;

/// Where a client's messages go.
pub(crate) type Outbox = mpsc::Sender<ClientMessage>;

/// Whom to call, and as whom.
#[derive(Clone, Debug)]
struct Route {
    credentials: Arc<Credentials>,
    uri: Uri,
}

/// A connection on which a stream can be opened.
pub(crate) struct Dialed {
    channel: Channel,
    authorization: Option<HeaderValue>,
    route: Route,
}

/// Where the coordinator's messages come from.
pub(crate) struct Inbox {
    stream: Streaming<CoordinatorMessage>,
    route: Route,
}

/// Checks an endpoint's text, and whether it may be called.
pub(crate) fn check(url: &str, credentials: &Credentials) -> Result<(), CredentialsError> {
    let uri: Uri = url.parse().map_err(|_| CredentialsError::NoUrl)?;
    credentials.allow(&uri)
}

/// Whether a URL is called over TLS.
pub(crate) fn is_secured(url: &str) -> bool {
    let uri: Result<Uri, _> = url.parse();
    uri.is_ok_and(|uri| uri.scheme_str() == Some("https"))
}

/// Connects, with what the credentials' files say now.
pub(crate) async fn dial(
    url: String,
    credentials: Arc<Credentials>,
    within: Duration,
) -> Result<Dialed, String> {
    let uri: Uri = url
        .parse()
        .map_err(|_| CredentialsError::NoUrl.to_string())?;
    let is_secured = is_secured(&url);
    let route = Route { credentials, uri };
    let all = match is_secured {
        true => within * TLS_TAKES,
        false => within,
    };
    let connected = tokio::time::timeout(all, connect(route, within)).await;
    connected.unwrap_or_else(|_| Err(format!("no connection within {all:?}")))
}

async fn connect(route: Route, within: Duration) -> Result<Dialed, String> {
    let read = {
        let route = route.clone();
        // Files may be far away.
        tokio::task::spawn_blocking(move || route.credentials.for_url(&route.uri)).await
    };
    let ready = read
        .map_err(|error| error.to_string())?
        .map_err(|error| error.to_string())?;
    #[cfg(feature = "tls")]
    if let Some(tls) = ready.tls {
        let channel = secured::connect(&route.uri, tls, within).await;
        let channel = channel.map_err(|error| route.why(&*error))?;
        return Ok(Dialed {
            channel,
            authorization: ready.authorization,
            route,
        });
    }
    let endpoint = Endpoint::from(route.uri.clone())
        .connect_timeout(within)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await;
    Ok(Dialed {
        channel: channel.map_err(|error| route.why(&error))?,
        authorization: ready.authorization,
        route,
    })
}

/// Begins a stream whose first message is handed over with it.
pub(crate) fn outbox(first: ClientMessage) -> (Outbox, mpsc::Receiver<ClientMessage>) {
    let (outbox, messages) = mpsc::channel(OUTBOX);
    // Room for the first message: the channel was made just now.
    drop(outbox.try_send(first));
    (outbox, messages)
}

/// Opens the stream.
pub(crate) async fn open(
    dialed: Dialed,
    messages: mpsc::Receiver<ClientMessage>,
) -> Result<Inbox, String> {
    let Dialed {
        channel,
        authorization,
        route,
    } = dialed;
    let mut client = LeaseholdClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let mut request = Request::new(ReceiverStream::new(messages));
    if let Some(value) = authorization.as_ref().and_then(metadata) {
        request.metadata_mut().insert("authorization", value);
    }
    match client.session(request).await {
        Ok(answer) => Ok(Inbox {
            stream: answer.into_inner(),
            route,
        }),
        Err(status) => Err(route.why_status(&status)),
    }
}

fn metadata(header: &HeaderValue) -> Option<MetadataValue<Ascii>> {
    let mut value = MetadataValue::try_from(header.as_bytes()).ok()?;
    value.set_sensitive(true);
    Some(value)
}

impl Inbox {
    /// The next message; none: the coordinator has ended the stream.
    pub(crate) async fn message(&mut self) -> Result<Option<CoordinatorMessage>, String> {
        let message = self.stream.message().await;
        message.map_err(|status| self.route.why_status(&status))
    }
}

impl Route {
    /// What a failure means.
    fn why(&self, error: &(dyn std::error::Error + 'static)) -> String {
        #[cfg(feature = "tls")]
        if let Some(why) = self.credentials.explain(&self.uri, error) {
            return why;
        }
        in_full(error)
    }

    fn why_status(&self, status: &Status) -> String {
        let advice = match status.code() {
            Code::Unauthenticated => self.credentials.unknown_caller(),
            Code::PermissionDenied => self.credentials.forbidden_caller(),
            _ => return self.why(status),
        };
        format!("{}: {advice}", status.message())
    }
}

/// An error with all its causes.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
