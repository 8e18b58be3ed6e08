//! Which connections nobody uses. Knows neither what is asked on them nor what it is told.
//!
//! Each connection takes a place that another one does not have, so a connection on which
//! nothing is asked is closed: soon if nothing ever was (it is silent, stops within the
//! first words of a protocol, or sends a head without an end), after minutes if it was.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{Router, response::Response};
use bytes::Bytes;
use http::Request;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tonic::codegen::Service;

/// What is asked on one connection, and when it was asked last.
#[derive(Clone, Debug)]
pub(crate) struct Use(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    at_work: usize,
    /// When the connection came, or its last request was answered.
    since: Instant,
    was_asked: bool,
}

/// How long a connection is kept that nobody uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) before_the_first: Duration,
    pub(crate) between: Duration,
}

/// A request at work.
struct AtWork(Use);

impl Use {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            at_work: 0,
            since: Instant::now(),
            was_asked: false,
        })))
    }

    fn begin(&self) -> AtWork {
        let mut state = self.0.lock();
        state.at_work += 1;
        state.was_asked = true;
        AtWork(self.clone())
    }

    /// When to close the connection, if nothing is asked until then.
    fn ends(&self, patience: Patience) -> Instant {
        let state = self.0.lock();
        let since = if state.at_work > 0 {
            Instant::now()
        } else {
            state.since
        };
        let kept_for = if state.was_asked {
            patience.between
        } else {
            patience.before_the_first
        };
        since + kept_for
    }

    /// Returns once nobody has used the connection for as long as it is kept.
    pub(crate) async fn ended(&self, patience: Patience) {
        loop {
            let ends = self.ends(patience);
            if ends <= Instant::now() {
                return;
            }
            sleep_until(ends).await;
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.at_work = state.at_work.saturating_sub(1);
        state.since = Instant::now();
    }
}

/// Serves one connection's requests, and notes that it is used.
#[derive(Clone)]
pub(crate) struct Noted {
    router: Router,
    used: Use,
}

impl Noted {
    pub(crate) fn new(router: Router, used: Use) -> Self {
        Self { router, used }
    }
}

impl<B> Service<Request<B>> for Noted
where
    B: axum::body::HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.router, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let at_work = self.used.begin();
        let answer = self.router.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(at_work);
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const PATIENCE: Patience = Patience {
        before_the_first: Duration::from_secs(10),
        between: Duration::from_secs(300),
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
        let at_work = used.begin();
        advance(Duration::from_secs(1_000)).await;
        assert!(!has_ended(&used));
        drop(at_work);
        advance(Duration::from_secs(299)).await;
        assert!(!has_ended(&used));
        advance(Duration::from_secs(1)).await;
        assert!(has_ended(&used));
        used.ended(PATIENCE).await;
    }
}
