//! Answers in place of the gRPC server where it could not read a question. Knows nothing
//! of why it could not.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt, Full};
use leasehold_client::http::Reason;
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::reply;
use crate::{
    agent::Agent,
    config::Unless,
    metrics::{self, Outcome, Via},
};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const GRPC_STATUS: &str = "grpc-status";

/// Turns errors that callers can bring about into refusals. The service's own error,
/// `UNAVAILABLE`, is one that operators asked for.
pub(crate) async fn refuse_unread(
    State(agent): State<Arc<Agent>>,
    request: Request,
    next: Next,
) -> Response {
    let since = Instant::now();
    let is_question = request.uri().path() == METHOD;
    let response = next.run(request).await;
    // An error without an answer is told in the headers.
    let error = Status::from_header_map(response.headers());
    match error {
        Some(error) if is_question && !matches!(error.code(), Code::Ok | Code::Unavailable) => {
            let what = format!("a question that cannot be read ({})", error.code());
            agent.said.once("", &what, Unless::Deny);
            metrics::answered(Via::Rls, Outcome::Refused, since);
            refusal(&agent)
        }
        _ => response,
    }
}

fn refusal(agent: &Agent) -> Response {
    let answer = agent.answers.refusal(Reason::BadIdentity, None);
    let message = reply::response(Some(&answer), &[]);
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    let body = Full::new(framed(&message))
        .with_trailers(std::future::ready(Some(Ok::<_, Infallible>(trailers))));
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = StatusCode::OK;
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    response
}

/// A message as gRPC sends it: whether it is compressed, its length, itself.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(length.saturating_add(5));
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put(message.encode_to_vec().as_slice());
    frame.freeze()
}
