//! Streams to a coordinator, message by message, by the wire schema alone: what a
//! client can say that no honest client would. Knows no lease.

use std::{net::SocketAddr, time::Duration};

use leasehold_proto::v1::{
    ClientMessage, Close, CoordinatorMessage, Open, Opened, client_message, coordinator_message,
    leasehold_client::LeaseholdClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// A stream with an open session.
pub(super) struct LightClient {
    outbox: mpsc::Sender<ClientMessage>,
    inbox: Streaming<CoordinatorMessage>,
    pub(super) opened: Opened,
}

pub(super) async fn channel(to: SocketAddr) -> Result<Channel, String> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{to}"))
        .map_err(|error| error.to_string())?;
    endpoint
        .connect_timeout(Duration::from_secs(2))
        .connect()
        .await
        .map_err(|error| error.to_string())
}

impl LightClient {
    /// Opens a session, or says why there is none.
    pub(super) async fn open(
        channel: Channel,
        holder: &str,
        resume: &[u8],
    ) -> Result<Self, String> {
        let (outbox, messages) = mpsc::channel(64);
        let open = Open {
            holder: holder.to_owned(),
            instance: rand::random::<[u8; 16]>().to_vec(),
            resume: resume.to_vec(),
        };
        let first = ClientMessage {
            kind: Some(client_message::Kind::Open(open)),
        };
        outbox.try_send(first).map_err(|error| error.to_string())?;
        let begun = async {
            let mut client = LeaseholdClient::new(channel);
            let answer = client.session(ReceiverStream::new(messages)).await;
            let mut inbox = answer.map_err(|status| status.to_string())?.into_inner();
            let first = inbox.message().await.map_err(|status| status.to_string())?;
            match first.and_then(|message| message.kind) {
                Some(coordinator_message::Kind::Opened(opened)) => Ok((inbox, opened)),
                other => Err(format!("{other:?}")),
            }
        };
        let (inbox, opened) = tokio::time::timeout(ANSWER_WITHIN, begun)
            .await
            .map_err(|_| "no answer".to_owned())??;
        Ok(Self {
            outbox,
            inbox,
            opened,
        })
    }

    /// Says something; false: the stream is over.
    pub(super) async fn say(&self, kind: client_message::Kind) -> bool {
        self.outbox
            .send(ClientMessage { kind: Some(kind) })
            .await
            .is_ok()
    }

    /// The next thing that it is told; none: nothing in time, or the end.
    pub(super) async fn hear(&mut self, within: Duration) -> Option<coordinator_message::Kind> {
        let message = tokio::time::timeout(within, self.inbox.message()).await;
        message.ok()?.ok()??.kind
    }

    /// Ends the session in good order.
    pub(super) async fn close(self) {
        let close = Close {
            seq: u64::MAX >> 1,
            reports: Vec::new(),
        };
        self.say(client_message::Kind::Close(close)).await;
    }
}
