//! Which connections nobody uses. Knows neither what is asked on them nor what it is told.
//!
//! Each connection takes a place that another one does not have, so a connection on which
//! nothing is asked is closed: soon if nothing ever was (it is silent, stops within the
//! first words of a protocol, or sends a head without an end), after minutes if it was.
//! A request is at work until the last byte of its answer was taken: an answer may be a
//! stream that stays open for days, if what is there of it is taken.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Instant, sleep_until},
};
use tower_service::Service;

use crate::caller::{Caller, Connection};

/// What is asked on one connection, and when it was asked last.
#[derive(Clone, Debug)]
pub(crate) struct Use(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The end came nearer.
    nearer: Notify,
}

#[derive(Debug)]
struct State {
    at_work: usize,
    /// When the connection came, or its last request was answered.
    since: Instant,
    /// Of HTTP/1, when the first byte of the next request's head came.
    head_since: Option<Instant>,
    was_asked: bool,
    is_http1: bool,
    /// Answers of which there is more than the other side takes.
    untaken: usize,
    /// When the other side took something last, or there was nothing to take.
    taken: Instant,
}

/// How long a connection is kept that nobody uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Until the first request is there.
    pub(crate) before_the_first: Duration,
    /// Until the next one begins.
    pub(crate) between: Duration,
    /// From the beginning of a request's head to its end.
    pub(crate) head: Duration,
    /// Until more is taken of an answer.
    pub(crate) answer: Duration,
}

/// A request at work.
pub(crate) struct AtWork(Use);

impl Use {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                at_work: 0,
                since: Instant::now(),
                head_since: None,
                was_asked: false,
                is_http1: false,
                untaken: 0,
                taken: Instant::now(),
            }),
            nearer: Notify::new(),
        }))
    }

    fn begin(&self, version: Version) -> AtWork {
        let mut state = self.0.state.lock();
        state.at_work += 1;
        state.was_asked = true;
        state.is_http1 = version < Version::HTTP_2;
        state.head_since = None;
        AtWork(self.clone())
    }

    /// Bytes came. HTTP/2 has words of its own between requests; of HTTP/1 they are the
    /// head of one.
    fn heard(&self) {
        let mut state = self.0.state.lock();
        if state.is_http1 && state.at_work == 0 && state.head_since.is_none() {
            state.head_since = Some(Instant::now());
            drop(state);
            self.0.nearer.notify_one();
        }
    }

    /// When to close the connection, if nothing is asked until then.
    fn ends(&self, patience: Patience) -> Instant {
        let state = self.0.state.lock();
        let since = if state.at_work > 0 {
            Instant::now()
        } else {
            state.since
        };
        if !state.was_asked {
            return since + patience.before_the_first;
        }
        if state.untaken > 0 {
            return state.taken + patience.answer;
        }
        let ends = since + patience.between;
        match state.head_since {
            Some(head_since) => ends.min(head_since + patience.head),
            None => ends,
        }
    }

    /// Returns once nobody has used the connection for as long as it is kept.
    pub(crate) async fn ended(&self, patience: Patience) {
        loop {
            let ends = self.ends(patience);
            if ends <= Instant::now() {
                return;
            }
            tokio::select! {
                () = sleep_until(ends) => {}
                () = self.0.nearer.notified() => {}
            }
        }
    }

    /// There is something of an answer that the other side may take, or not any more.
    fn note(&self, was_untaken: bool, is_untaken: bool) {
        let mut state = self.0.state.lock();
        if state.untaken == 0 || was_untaken {
            state.taken = Instant::now();
        }
        // Nobody is woken for it: it is seen when the end is looked at next.
        state.untaken =
            (state.untaken + usize::from(is_untaken)).saturating_sub(usize::from(was_untaken));
    }

    /// Whether the connection waits for the rest of a request's head.
    pub(crate) fn is_within_a_head(&self) -> bool {
        let state = self.0.state.lock();
        !state.was_asked || state.head_since.is_some()
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut state = self.0.0.state.lock();
        state.at_work = state.at_work.saturating_sub(1);
        state.since = Instant::now();
    }
}

/// Serves one connection's requests, says who calls, and notes that it is used.
#[derive(Clone)]
pub(crate) struct Noted {
    router: Router,
    used: Use,
    caller: Arc<Caller>,
    connection: Connection,
}

impl Noted {
    pub(crate) fn new(router: Router, used: Use, caller: Caller) -> Self {
        Self {
            router,
            used,
            caller: Arc::new(caller),
            connection: Connection::default(),
        }
    }
}

impl<B> Service<Request<B>> for Noted
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.router, cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let at_work = self.used.begin(request.version());
        request.extensions_mut().insert(Caller::clone(&self.caller));
        request.extensions_mut().insert(self.connection.clone());
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            at_work.0.note(false, true);
            Ok(answer.map(|body| Answer {
                body,
                is_untaken: true,
                at_work,
            }))
        })
    }
}

/// What is answered; its request is at work for as long as this is there.
pub(crate) struct Answer {
    body: Body,
    /// What there is of it was not asked for yet.
    is_untaken: bool,
    at_work: AtWork,
}

impl Answer {
    fn note(&mut self, is_untaken: bool) {
        self.at_work.0.note(self.is_untaken, is_untaken);
        self.is_untaken = is_untaken;
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.note(false);
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        // Until it is polled again, the other side has this to take.
        self.note(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection's bytes, of which it is noted that they come.
pub(crate) struct Heard<S> {
    stream: S,
    used: Use,
}

impl<S> Heard<S> {
    pub(crate) fn new(stream: S, used: Use) -> Self {
        Self { stream, used }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.used.heard();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Patience = Patience {
        before_the_first: Duration::from_secs(10),
        between: Duration::from_secs(300),
        head: Duration::from_secs(5),
        answer: Duration::from_secs(300),
    };

    fn has_ended(used: &Use) -> bool {
        used.ends(PATIENCE) <= Instant::now()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_ends_soon_and_one_with_a_request_at_work_never() {
        let used = Use::new();
        advance(Duration::from_secs(9)).await;
        assert!(!has_ended(&used));
        advance(Duration::from_secs(1)).await;
        assert!(has_ended(&used));

        let used = Use::new();
        let at_work = used.begin(Version::HTTP_11);
        advance(Duration::from_secs(1_000)).await;
        assert!(!has_ended(&used));
        drop(at_work);
        advance(Duration::from_secs(299)).await;
        assert!(!has_ended(&used));
        advance(Duration::from_secs(1)).await;
        assert!(has_ended(&used));
        used.ended(PATIENCE).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_that_is_begun_has_an_end_soon_and_words_of_http_2_begin_none() {
        let used = Use::new();
        drop(used.begin(Version::HTTP_11));
        advance(Duration::from_secs(100)).await;
        let waits = tokio::spawn({
            let used = used.clone();
            async move { used.ended(PATIENCE).await }
        });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        used.heard();
        advance(Duration::from_secs(3)).await;
        used.heard();
        // By a clock that goes on by itself.
        assert!(waits.await.is_ok());
        assert_eq!(begun.elapsed().as_secs(), 5);

        let used = Use::new();
        drop(used.begin(Version::HTTP_2));
        used.heard();
        advance(Duration::from_secs(299)).await;
        assert!(!has_ended(&used));
    }
}
