//! The gRPC service that gateways talk to: one stream per holder. Knows nothing
//! of the ledger's rules; it checks and translates messages, bounds what one
//! stream may have under way, and hands everything to the sequencer.

mod convert;
mod key_ids;
mod reader;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::{Stream, StreamExt, stream::BoxStream};
use leasehold_proto::v1::{
    ClientMessage, CoordinatorMessage,
    leasehold_server::{Leasehold, LeaseholdServer},
};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    access::{Access, Taken, Vigil, Visitor},
    sequencer::item::{Item, Link, StreamId},
};

/// The longest message from a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Streams that may be open at once on one node.
const STREAMS_MAX: usize = 32_768;
/// Messages that wait for a client to read them before its stream is dropped.
const EVENTS_MAX: usize = 256;

/// Reads bytes as messages of one stream, each behind its length in two bytes, as
/// the stream does before it asks anybody, and says how many made sense. For fuzzing.
#[doc(hidden)]
#[must_use]
pub fn messages_that_read(mut bytes: &[u8]) -> usize {
    use leasehold_proto::v1::client_message::Kind;
    use prost::Message as _;

    let mut key_ids = key_ids::KeyIds::new(8);
    let mut made_sense = 0;
    while let Some((length, rest)) = bytes.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(rest.len());
        let (message, rest) = rest.split_at(length);
        bytes = rest;
        let kind = ClientMessage::decode(message).ok().and_then(|it| it.kind);
        made_sense += usize::from(match kind {
            None => false,
            Some(Kind::Open(open)) => convert::open(open, String::new()).is_ok(),
            Some(Kind::Sync(sync)) => convert::sync(sync, &mut key_ids).is_ok(),
            Some(Kind::Settle(settle)) => convert::settle(settle).is_ok(),
            Some(Kind::Close(close)) => convert::close(close, &mut key_ids).is_ok(),
        });
    }
    made_sense
}

/// Serves `leasehold.v1.Leasehold`.
#[derive(Clone)]
pub struct Service {
    queue: mpsc::Sender<Item>,
    streams: Arc<Semaphore>,
    next_stream: Arc<AtomicU64>,
    stop: CancellationToken,
    access: Access,
}

impl Service {
    pub(crate) fn new(queue: mpsc::Sender<Item>, stop: CancellationToken) -> Self {
        Self {
            queue,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            next_stream: Arc::new(AtomicU64::new(1)),
            stop,
            access: Access::for_everybody(),
        }
    }

    /// The same, for whom a gate before it lets in.
    pub(crate) fn behind(self, access: &Access) -> Self {
        Self {
            access: access.clone(),
            ..self
        }
    }

    pub(crate) fn into_server(self) -> LeaseholdServer<Self> {
        LeaseholdServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Serves one stream: reads `messages` in a task, and gives what the holder is
    /// told.
    fn serve<S>(
        &self,
        visitor: &Visitor,
        counted: Option<Arc<Taken>>,
        messages: S,
    ) -> Result<impl Stream<Item = Result<CoordinatorMessage, Status>> + Send + use<S>, Status>
    where
        S: Stream<Item = Result<ClientMessage, Status>> + Send + Unpin + 'static,
    {
        let place = Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("this node has too many streams"))?;
        // Only distinct, never compared with anything else: no ordering is needed.
        let stream = StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed));
        let (events, told) = mpsc::channel(EVENTS_MAX);
        let vigil = Vigil::over(visitor);
        let link = Link {
            events,
            end: self.stop.child_token(),
            sight: vigil.sight(),
            spender: visitor.spender(),
        };
        let identity = visitor.name().to_owned();
        let reader = reader::Reader::new(stream, identity, self.queue.clone(), link);
        tokio::spawn(async move {
            reader.run(messages, vigil).await;
            drop((place, counted));
        });
        Ok(ReceiverStream::new(told).map(|event| Ok(convert::event(event))))
    }
}

#[tonic::async_trait]
impl Leasehold for Service {
    type SessionStream = BoxStream<'static, Result<CoordinatorMessage, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<ClientMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        // Whoever came by no gate is nobody, where there should be one.
        let visitor = self
            .access
            .visitor(request.extensions())
            .ok_or_else(|| Status::unauthenticated("nobody said who asks"))?;
        let counted = request.extensions().get::<Arc<Taken>>().cloned();
        let told = self.serve(&visitor, counted, request.into_inner())?;
        Ok(Response::new(told.boxed()))
    }
}
