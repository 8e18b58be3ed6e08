//! What this node says to its peers. Knows nothing of elections or of the log; it
//! carries the core's messages.
//!
//! A peer that cannot be reached is `Unreachable`, never a network error: the core
//! backs off from the first and retries the second at once. Replication runs over
//! one stream per peer, kept alive by HTTP/2 pings, since a slow disk must not
//! look like a dead peer. Heartbeats and snapshots have connections of their own.

use std::{
    future::Future,
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{
    FutureExt, Stream, StreamExt,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use http::Uri;
use hyper_util::rt::TokioIo;
use leasehold_doors::{Kept, Secured};
use leasehold_proto::v1::{RaftMessage, peer_client::PeerClient};
use openraft::{
    OptionalSend,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, RaftNetworkFactory, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint},
};

use super::{
    addresses::Addresses,
    api::{Member, PeerTls},
    own_cluster::OwnCluster,
    types::{Snapshot, Types, Vote},
    wire,
};
use crate::store::SnapshotFile;

/// The largest message; a snapshot is sent in pieces, an append is cut far below.
pub(super) const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// What may be under way unacknowledged: an append should not wait for a round
/// trip in its middle.
pub(super) const WINDOW_BYTES: u32 = 4 << 20;
/// It is dialled many times a second.
const SAY_AGAIN_AFTER: Duration = Duration::from_secs(10);
const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;

type RpcError = RPCError<Types>;

/// Says to a peer what this node has to say, and to which cluster it belongs.
pub(super) type Client = PeerClient<InterceptedService<Channel, OwnCluster>>;

/// How connections to peers are kept.
#[derive(Clone)]
pub(super) struct Links {
    pub(super) tls: Option<Kept<PeerTls>>,
    pub(super) own_cluster: OwnCluster,
    /// When it was last complained about certificates.
    pub(super) said: Arc<Mutex<Option<Instant>>>,
    pub(super) connect_timeout: Duration,
    pub(super) ping_every: Duration,
    pub(super) ping_timeout: Duration,
}

impl Links {
    /// A connection to be opened when it is first used.
    pub(super) fn client(&self, peer_addr: &str) -> Result<Client, String> {
        let endpoint = Endpoint::from_shared(format!("http://{peer_addr}"))
            .map_err(|error| format!("{peer_addr} is not an address: {error}"))?
            .tcp_nodelay(true)
            .connect_timeout(self.connect_timeout)
            .http2_keep_alive_interval(self.ping_every)
            .keep_alive_timeout(self.ping_timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(Some(WINDOW_BYTES))
            .initial_connection_window_size(Some(2 * WINDOW_BYTES));
        let channel = match self.tls.clone() {
            None => endpoint.connect_lazy(),
            // By the certificates of the moment in which it is dialled.
            Some(tls) => {
                let said = Arc::clone(&self.said);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |uri| {
                    let (tls, said) = (tls.clone(), Arc::clone(&said));
                    async move { dial(&tls, &uri, &said).await.map(TokioIo::new) }
                }))
            }
        };
        let said = InterceptedService::new(channel, self.own_cluster.clone());
        Ok(Client::new(said)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }
}

/// Dials a peer, which has to show a certificate for its name.
async fn dial(
    tls: &Kept<PeerTls>,
    uri: &Uri,
    said: &Mutex<Option<Instant>>,
) -> io::Result<Secured> {
    let host = uri.host().unwrap_or_default();
    let port = uri.port_u16().unwrap_or_default();
    let dialled = tls.now().dialer.dial(host, port).await;
    if let Err(error) = &dialled
        && leasehold_doors::is_distrust(error)
        && said.lock().is_none_or(|at| at.elapsed() >= SAY_AGAIN_AFTER)
    {
        *said.lock() = Some(Instant::now());
        tracing::warn!(
            peer_addr = %uri.authority().map(ToString::to_string).unwrap_or_default(),
            code = "peer_distrusted",
            "a coordinator and this node do not trust each other's certificates: {error}"
        );
    }
    dialled
}

/// Makes connections for the core.
pub(super) struct Network {
    pub(super) links: Links,
    pub(super) addresses: Addresses,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Peer;

    async fn new_client(&mut self, _: u64, member: &Member) -> Peer {
        Peer {
            links: self.links.clone(),
            addresses: self.addresses.clone(),
            member: member.clone(),
            dialed: String::new(),
            client: Err("never dialed".to_owned()),
        }
    }

    async fn new_heartbeat_client(&mut self, target: u64, member: &Member) -> Peer {
        self.new_client(target, member).await
    }

    async fn new_snapshot_client(&mut self, target: u64, member: &Member) -> Peer {
        self.new_client(target, member).await
    }
}

/// One connection to one peer.
pub(super) struct Peer {
    links: Links,
    addresses: Addresses,
    member: Member,
    /// The address that the client is for.
    dialed: String,
    client: Result<Client, String>,
}

impl Peer {
    fn client(&mut self) -> Result<Client, RpcError> {
        let peer_addr = self
            .addresses
            .now(self.member.node_id, &self.member.peer_addr);
        if self.dialed != peer_addr {
            self.client = self.links.client(&peer_addr);
            self.dialed = peer_addr;
        }
        self.client.clone().map_err(unreachable)
    }

    fn message(member: &Member, payload: Bytes) -> RaftMessage {
        RaftMessage {
            group_id: 0,
            payload,
            to_node: member.node_id,
            to_disk: Bytes::copy_from_slice(&member.disk_id.to_le_bytes()),
        }
    }

    async fn call<Q, A, F>(
        &mut self,
        question: &Q,
        option: &RPCOption,
        send: impl FnOnce(Client, RaftMessage) -> F,
    ) -> Result<A, RpcError>
    where
        Q: Serialize,
        A: DeserializeOwned,
        F: Future<Output = Result<Response<RaftMessage>, Status>>,
    {
        let message = Self::message(&self.member, wire::encode(question).map_err(unreachable)?);
        let answer = tokio::time::timeout(option.soft_ttl(), send(self.client()?, message)).await;
        let answer = answer.map_err(|_| unreachable("no answer in time"))?;
        let answer = answer.map_err(|status| unreachable(status.to_string()))?;
        wire::decode(&answer.into_inner().payload).map_err(unreachable)
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RpcError> {
        self.call(&request, &option, |mut client, message| async move {
            client.append(message).await
        })
        .await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<Types>, RpcError>>, RpcError>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        // Setting up may take a connection and a round trip, more than a heartbeat.
        let patience = option.hard_ttl().max(Duration::from_secs(1));
        let answers = open_stream(self.client(), self.member.clone(), input, patience);
        // The stream is opened from within the answers, after the first request was
        // taken: that is where the core waits out its backoff. A failure returned
        // from here would be retried at once, thousands of times a second.
        std::future::ready(Ok(answers.flatten_stream().boxed())).boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.call(&request, &option, |mut client, message| async move {
            client.vote(message).await
        })
        .await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RpcError> {
        self.call(&request, &option, |mut client, message| async move {
            client.pre_vote(message).await
        })
        .await
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RpcError> {
        self.call(&request, &option, |mut client, message| async move {
            client.transfer_leader(message).await
        })
        .await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let mut client = self.client()?;
        let head = wire::encode(&(&vote, &snapshot.meta)).map_err(unreachable)?;
        let length = snapshot
            .snapshot
            .length()
            .map_err(|error| unreachable(error.to_string()))?;
        let bytes = snapshot
            .snapshot
            .bytes()
            .map_err(|error| unreachable(error.to_string()))?;
        // One second more for every MiB: slower than that is not worth waiting for.
        let patience = option
            .soft_ttl()
            .saturating_add(Duration::from_secs(length >> 20));
        let (pieces, stream) = mpsc::channel(4);
        let head = Self::message(&self.member, head);
        let member = self.member.clone();
        tokio::task::spawn_blocking(move || send_pieces(bytes, head, &member, &pieces));
        let sent = tokio::time::timeout(patience, client.snapshot(ReceiverStream::new(stream)));
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            answer = sent => {
                let answer = answer.map_err(|_| unreachable("the snapshot was not installed in time"))?;
                let answer = answer.map_err(|status| unreachable(status.to_string()))?;
                Ok(wire::decode(&answer.into_inner().payload).map_err(unreachable)?)
            }
        }
    }
}

/// Opens a replication stream once there is something to send.
async fn open_stream<S>(
    client: Result<Client, RpcError>,
    member: Member,
    mut input: S,
    patience: Duration,
) -> BoxStream<'static, Result<StreamAppendResult<Types>, RpcError>>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
{
    let Some(first) = input.next().await else {
        return stream::empty().boxed();
    };
    // Encoding the core's own types cannot fail; if it did, the stream would end
    // here, and the core would try again.
    let messages = stream::iter([first])
        .chain(input)
        .map(move |request| {
            wire::encode(&request)
                .ok()
                .map(|payload| Peer::message(&member, payload))
        })
        .take_while(|message| std::future::ready(message.is_some()))
        .filter_map(std::future::ready);
    let opened = async {
        let mut client = client?;
        let answers = tokio::time::timeout(patience, client.append_stream(Request::new(messages)));
        let answers = answers
            .await
            .map_err(|_| unreachable("no stream in time"))?;
        answers.map_err(|status| unreachable(status.to_string()))
    };
    match opened.await {
        Ok(answers) => answers
            .into_inner()
            .map(|answer| match answer {
                Ok(message) => wire::decode(&message.payload).map_err(unreachable),
                Err(status) => Err(unreachable(status.to_string())),
            })
            .boxed(),
        Err(error) => stream::iter([Err(error)]).boxed(),
    }
}

/// Reads a snapshot and queues its pieces. A receiver that is gone, or a file that
/// cannot be read, ends the stream early: the other side finds it incomplete.
fn send_pieces(
    mut bytes: impl Read,
    head: RaftMessage,
    member: &Member,
    pieces: &mpsc::Sender<RaftMessage>,
) {
    if pieces.blocking_send(head).is_err() {
        return;
    }
    loop {
        let mut piece = Vec::with_capacity(SNAPSHOT_PIECE_BYTES);
        let limit = SNAPSHOT_PIECE_BYTES as u64;
        match bytes.by_ref().take(limit).read_to_end(&mut piece) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "a snapshot cannot be read");
                return;
            }
        }
        if pieces
            .blocking_send(Peer::message(member, piece.into()))
            .is_err()
        {
            return;
        }
    }
}

fn unreachable(reason: impl ToString) -> RpcError {
    RPCError::Unreachable(Unreachable::from_string(reason))
}
