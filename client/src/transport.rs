//! Streams to a coordinator over tonic. Knows neither sessions nor leases.

use std::time::Duration;

use leasehold_proto::v1::{ClientMessage, CoordinatorMessage, leasehold_client::LeaseholdClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

/// Messages that may wait for the transport. Far more than are ever under way:
/// when it is full the connection is stuck.
const OUTBOX: usize = 64;
/// A restatement of all leases of a session with very many keys.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Where a client's messages go.
pub(crate) type Outbox = mpsc::Sender<ClientMessage>;
/// Where the coordinator's come from.
pub(crate) type Inbox = Streaming<CoordinatorMessage>;

/// Checks an endpoint's text.
pub(crate) fn endpoint(url: &str) -> Result<Endpoint, String> {
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|error| in_full(&error))?;
    match (endpoint.uri().scheme_str(), endpoint.uri().host()) {
        (Some("http"), Some(_)) => Ok(endpoint),
        (Some(scheme), Some(_)) => Err(format!("scheme {scheme:?} is not supported, use http")),
        _ => Err("scheme or host is missing".to_owned()),
    }
}

/// Connects.
pub(crate) async fn dial(url: String, within: Duration) -> Result<Channel, String> {
    let endpoint = endpoint(&url)?.connect_timeout(within).tcp_nodelay(true);
    match tokio::time::timeout(within, endpoint.connect()).await {
        Ok(connected) => connected.map_err(|error| in_full(&error)),
        Err(_) => Err(format!("no connection within {within:?}")),
    }
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
    channel: Channel,
    messages: mpsc::Receiver<ClientMessage>,
) -> Result<Inbox, String> {
    let mut client = LeaseholdClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let answer = client.session(ReceiverStream::new(messages)).await;
    answer
        .map(tonic::Response::into_inner)
        .map_err(|status| in_full(&status))
}

/// An error with all its causes.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
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
