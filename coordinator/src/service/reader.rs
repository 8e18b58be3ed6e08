//! The reading half of one stream. Knows the order in which messages may come;
//! what becomes of them is the sequencer's.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use leasehold_proto::v1::{ClientMessage, client_message::Kind};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::{
    MESSAGE_BYTES_MAX,
    convert::{self, BadMessage},
    key_ids::KeyIds,
};
use crate::{
    access::{Change, Vigil},
    sequencer::{
        event::{Event, StreamCode, StreamRefusal},
        item::{Item, Link, Message, StreamId},
    },
};

/// How long a stream may take to say its first word.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Messages of one stream that may be under way; more are not read.
const MESSAGES_UNDER_WAY_MAX: usize = 32;

/// Reads one stream until either side ends it.
pub(super) struct Reader {
    stream: StreamId,
    /// Who speaks, as the gate found.
    identity: String,
    queue: mpsc::Sender<Item>,
    events: mpsc::Sender<Event>,
    end: CancellationToken,
    link: Option<Link>,
}

impl Reader {
    pub(super) fn new(
        stream: StreamId,
        identity: String,
        queue: mpsc::Sender<Item>,
        link: Link,
    ) -> Self {
        Self {
            stream,
            identity,
            queue,
            events: link.events.clone(),
            end: link.end.clone(),
            link: Some(link),
        }
    }

    pub(super) async fn run<S>(mut self, mut messages: S, mut vigil: Vigil)
    where
        S: Stream<Item = Result<ClientMessage, Status>> + Send + Unpin,
    {
        let end = self.end.clone();
        let events = self.events.clone();
        let (stream, queue) = (self.stream, self.queue.clone());
        let read = async {
            self.read(&mut messages)
                .await
                .map_err(|BadMessage(detail)| StreamRefusal {
                    code: StreamCode::BadMessage,
                    detail,
                })
        };
        let told = tokio::select! {
            biased;
            // The sequencer ended it, the process stops, or the client is gone:
            // nothing is left to say.
            () = end.cancelled() => Ok(()),
            () = events.closed() => Ok(()),
            () = watch_over(&mut vigil, stream, &queue) => Err(StreamRefusal {
                code: StreamCode::Unauthenticated,
                detail: "what this stream proved its identity by does not stand any more".to_owned(),
            }),
            told = read => told,
        };
        if let Err(refusal) = told {
            let refusal = Event::Refused(refusal);
            // A full buffer only loses the reason: the stream ends all the same.
            drop(self.events.try_send(refusal));
        }
        self.end.cancel();
        // When the sequencer is gone there is nobody to tell.
        drop(
            self.queue
                .send(Item::Gone {
                    stream: self.stream,
                })
                .await,
        );
    }

    /// Reads until the client ends the stream, or says something that makes no
    /// sense.
    async fn read<S>(&mut self, messages: &mut S) -> Result<(), BadMessage>
    where
        S: Stream<Item = Result<ClientMessage, Status>> + Send + Unpin,
    {
        let first = match tokio::time::timeout(OPEN_WITHIN, messages.next()).await {
            Ok(first) => first,
            Err(_) => return Err(BadMessage("the first message did not come".to_owned())),
        };
        let Some(first) = first.transpose().map_err(unreadable)? else {
            return Ok(());
        };
        let Some(Kind::Open(open)) = first.kind else {
            return Err(BadMessage("the first message must be open".to_owned()));
        };
        let identity = self.identity.clone();
        let open = convert::open(open, identity.clone())?;
        let Some(link) = self.link.take() else {
            return Ok(());
        };
        let (opened, accepted) = oneshot::channel();
        let item = Item::Open {
            stream: self.stream,
            link,
            open,
            opened,
        };
        if self.queue.send(item).await.is_err() {
            return Ok(());
        }
        let Ok(accepted) = accepted.await else {
            // Refused or moved: it was told so.
            return Ok(());
        };

        let mut key_ids = KeyIds::new(accepted.keys_max);
        let under_way = Arc::new(Semaphore::new(MESSAGES_UNDER_WAY_MAX));
        loop {
            let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else {
                return Ok(());
            };
            let Some(message) = messages.next().await.transpose().map_err(unreadable)? else {
                return Ok(());
            };
            let message = match message.kind {
                Some(Kind::Sync(sync)) => Message::Sync(convert::sync(sync, &mut key_ids)?),
                Some(Kind::Close(close)) => Message::Sync(convert::close(close, &mut key_ids)?),
                Some(Kind::Settle(settle)) => {
                    let (session, leases) = convert::settle(settle)?;
                    Message::Settle {
                        session,
                        identity: identity.clone(),
                        leases,
                    }
                }
                Some(Kind::Open(_)) => {
                    return Err(BadMessage("open must be the first message only".to_owned()));
                }
                None => {
                    return Err(BadMessage(
                        "kind must be one of sync, settle, close".to_owned(),
                    ));
                }
            };
            let item = Item::Message {
                stream: self.stream,
                message,
                permit,
            };
            if self.queue.send(item).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Returns once whoever speaks is nobody any more; tells the sequencer whenever they may
/// use other keys than before.
async fn watch_over(vigil: &mut Vigil, stream: StreamId, queue: &mpsc::Sender<Item>) {
    loop {
        match vigil.change().await {
            Change::Gone => return,
            // When the sequencer is gone, so is everything else.
            Change::Keys => drop(queue.send(Item::Sight { stream }).await),
        }
    }
}

/// A transport that fails has nobody left to tell, but a message that is too long
/// or cannot be decoded is the client's to know of.
fn unreadable(status: Status) -> BadMessage {
    // tonic says so of nothing else that is read.
    if status.code() == Code::OutOfRange {
        metrics::counter!("leasehold_refused_total", "limit" => "message_bytes_max").increment(1);
        return BadMessage(format!(
            "a message has more than {MESSAGE_BYTES_MAX} bytes: send less at once"
        ));
    }
    BadMessage(status.message().to_owned())
}
