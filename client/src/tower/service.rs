//! The service that the layer puts around another. Knows nothing of budgets.

use std::{
    error::Error,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header, request::Parts};
use http_body_util::{Either, Full};
use tower_service::Service;

use super::layer::Rules;
use crate::http::Answer;

/// The body of a response: a refusal's, or that of the service within.
pub type Body<B> = Either<Full<Bytes>, B>;

/// Spends units for each request before the service within sees it.
#[derive(Clone, Debug)]
pub struct QuotaService<S> {
    inner: S,
    rules: Arc<Rules>,
}

impl<S> QuotaService<S> {
    pub(super) fn new(inner: S, rules: Arc<Rules>) -> Self {
        Self { inner, rules }
    }
}

impl<S, A, B> Service<Request<A>> for QuotaService<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    type Response = Response<Body<B>>;
    type Error = S::Error;
    type Future =
        Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        // The one that was found ready serves this request; a clone is not ready yet.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let rules = Arc::clone(&self.rules);
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let answer = rules.judge(&parts).await;
            if let Some(answer) = answer.as_ref().filter(|answer| !answer.is_allowed) {
                return Ok(refusal(&parts, answer));
            }
            let request = Request::from_parts(parts, body);
            let mut response = inner.call(request).await?;
            if let Some(answer) = answer {
                answer.add_to(response.headers_mut());
            }
            Ok(response.map(Either::Right))
        })
    }
}

/// The content type of a request over gRPC, also from browsers.
fn grpc_type(request: &Parts) -> Option<&HeaderValue> {
    let stated = request.headers.get(header::CONTENT_TYPE)?;
    let rest = stated.as_bytes().strip_prefix(b"application/grpc")?;
    matches!(rest.first(), None | Some(b'+' | b';' | b'-')).then_some(stated)
}

fn refusal<B>(request: &Parts, answer: &Answer) -> Response<Body<B>> {
    let over_grpc = grpc_type(request).zip(answer.grpc_status());
    let Some((content_type, status)) = over_grpc else {
        return answer
            .clone()
            .into_response::<Full<Bytes>>()
            .map(Either::Left);
    };
    // Status and header fields in one block, and no body: "trailers only".
    let mut response: Response<Full<Bytes>> = status.into_http();
    answer.add_to(response.headers_mut());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type.clone());
    response.map(Either::Left)
}
