//! One request to a running node. Knows nothing of resources.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::Value;

use super::{CliError, Remote};

const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// An answer that is a success.
pub(super) struct Reply {
    pub(super) headers: HeaderMap,
    /// Null for an empty body.
    pub(super) body: Value,
}

/// What must be in force for a change to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// Whatever there is.
    Anything,
    /// What has this etag.
    Still(String),
    /// Nothing.
    Absent,
}

pub(super) async fn put_if(
    remote: &Remote,
    path: &str,
    body: &Value,
    condition: &Condition,
) -> Result<Value, CliError> {
    call_if(remote, Method::PUT, path, Some(body), condition).await
}

pub(super) async fn delete_if(
    remote: &Remote,
    path: &str,
    condition: &Condition,
) -> Result<Value, CliError> {
    call_if(remote, Method::DELETE, path, None, condition).await
}

async fn call_if(
    remote: &Remote,
    method: Method,
    path: &str,
    body: Option<&Value>,
    condition: &Condition,
) -> Result<Value, CliError> {
    let endpoint = remote.endpoint.trim_end_matches('/');
    let (client, mut request) = request(remote, method, path, body)?;
    match condition {
        Condition::Anything => {}
        Condition::Absent => {
            let any = HeaderValue::from_static("*");
            request.headers_mut().insert(header::IF_NONE_MATCH, any);
        }
        Condition::Still(etag) => {
            let value = HeaderValue::try_from(format!("\"{etag}\""))
                .map_err(|_| CliError::Usage(format!("{etag:?} is no etag")))?;
            request.headers_mut().insert(header::IF_MATCH, value);
        }
    }
    exchange(endpoint, client, request)
        .await
        .map(|reply| reply.body)
}

pub(super) async fn get(remote: &Remote, path: &str) -> Result<Value, CliError> {
    call(remote, Method::GET, path, None)
        .await
        .map(|reply| reply.body)
}

pub(super) async fn put(remote: &Remote, path: &str, body: &Value) -> Result<Value, CliError> {
    call(remote, Method::PUT, path, Some(body))
        .await
        .map(|reply| reply.body)
}

pub(super) async fn post(remote: &Remote, path: &str, body: &Value) -> Result<Reply, CliError> {
    call(remote, Method::POST, path, Some(body)).await
}

/// Posts with one header more.
pub(super) async fn post_with(
    remote: &Remote,
    path: &str,
    body: &Value,
    (name, value): (&'static str, &str),
) -> Result<Reply, CliError> {
    let endpoint = remote.endpoint.trim_end_matches('/');
    let (client, mut request) = request(remote, Method::POST, path, Some(body))?;
    let value = HeaderValue::from_str(value).map_err(|_| {
        CliError::Usage(format!("{value:?} has characters that no header can have"))
    })?;
    request.headers_mut().insert(name, value);
    exchange(endpoint, client, request).await
}

pub(super) async fn delete(remote: &Remote, path: &str) -> Result<Value, CliError> {
    call(remote, Method::DELETE, path, None)
        .await
        .map(|reply| reply.body)
}

async fn call(
    remote: &Remote,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Reply, CliError> {
    let endpoint = remote.endpoint.trim_end_matches('/');
    let (client, request) = request(remote, method, path, body)?;
    exchange(endpoint, client, request).await
}

async fn exchange(
    endpoint: &str,
    client: HttpClient,
    request: Request<Full<axum::body::Bytes>>,
) -> Result<Reply, CliError> {
    let exchange = async {
        let (parts, body) = client.request(request).await?.into_parts();
        let bytes = Limited::new(body, ANSWER_BYTES_MAX)
            .collect()
            .await?
            .to_bytes();
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parts, bytes))
    };
    let (parts, bytes) = match tokio::time::timeout(ANSWER_WITHIN, exchange).await {
        Err(_) => return Err(silent(endpoint)),
        Ok(Err(error)) => return Err(unreachable(endpoint, error.as_ref())),
        Ok(Ok(answer)) => answer,
    };
    understand(endpoint, parts, &bytes)
}

/// Fetches a body of any length, piece by piece.
pub(super) async fn download(
    remote: &Remote,
    path: &str,
    mut take: impl FnMut(&[u8]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let endpoint = remote.endpoint.trim_end_matches('/');
    let (client, request) = request(remote, Method::GET, path, None)?;
    let answer = match tokio::time::timeout(ANSWER_WITHIN, client.request(request)).await {
        Err(_) => return Err(silent(endpoint)),
        Ok(Err(error)) => return Err(unreachable(endpoint, &error)),
        Ok(Ok(answer)) => answer,
    };
    let (parts, mut body) = answer.into_parts();
    if !parts.status.is_success() {
        let bytes = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let bytes = bytes.map_err(|error| unreachable(endpoint, error.as_ref()))?;
        return understand(endpoint, parts, &bytes.to_bytes()).map(drop);
    }
    loop {
        match tokio::time::timeout(ANSWER_WITHIN, body.frame()).await {
            Err(_) => return Err(silent(endpoint)),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(unreachable(endpoint, &error)),
            Ok(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    take(bytes)?;
                }
            }
        }
    }
}

type HttpClient = Client<HttpConnector, Full<axum::body::Bytes>>;

fn request(
    remote: &Remote,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(HttpClient, Request<Full<axum::body::Bytes>>), CliError> {
    let endpoint = remote.endpoint.trim_end_matches('/');
    if endpoint.starts_with("https://") {
        return Err(CliError::Usage(format!(
            "--endpoint {endpoint}: TLS is not supported yet, use http://"
        )));
    }
    let uri = format!("{endpoint}{path}");
    let mut request = Request::builder();
    if let Some(by) = &remote.by {
        let by = HeaderValue::from_bytes(by.as_bytes()).map_err(|_| {
            CliError::Usage(format!(
                "--by {by:?} has characters that no header can have"
            ))
        })?;
        request = request.header("leasehold-by", by);
    } else if let Some(user) = user() {
        request = request.header("leasehold-by", user);
    }
    let request = request
        .method(method)
        .uri(&uri)
        .header(header::CONTENT_TYPE, "application/json")
        .header(
            header::USER_AGENT,
            concat!("leasehold/", env!("CARGO_PKG_VERSION")),
        )
        .body(Full::from(body.map(Value::to_string).unwrap_or_default()))
        .map_err(|_| bad_endpoint(endpoint))?;
    if request.uri().scheme_str() != Some("http") || request.uri().host().is_none() {
        return Err(bad_endpoint(endpoint));
    }
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(Duration::from_secs(3)));
    Ok((
        Client::builder(TokioExecutor::new()).build(connector),
        request,
    ))
}

/// Who the system says that it is; an odd name is nobody's.
fn user() -> Option<HeaderValue> {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty())?;
    HeaderValue::from_bytes(user.as_bytes()).ok()
}

fn silent(endpoint: &str) -> CliError {
    CliError::Unreachable(format!(
        "{endpoint} did not answer within {} s",
        ANSWER_WITHIN.as_secs()
    ))
}

/// A success, or the problem that the answer states.
fn understand(
    endpoint: &str,
    parts: axum::http::response::Parts,
    bytes: &[u8],
) -> Result<Reply, CliError> {
    let body = if bytes.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(bytes).unwrap_or(Value::Null)
    };
    if parts.status.is_success() {
        return Ok(Reply {
            headers: parts.headers,
            body,
        });
    }
    if let Value::Object(mut problem) = body
        && problem.contains_key("code")
    {
        let retry = parts
            .headers
            .get(header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok());
        if let Some(seconds) = retry.and_then(|text| text.parse::<u64>().ok()) {
            problem.insert("retry_after_s".to_owned(), seconds.into());
        }
        return Err(CliError::Refused(problem.into()));
    }
    Err(CliError::Unreachable(format!(
        "{endpoint} answered {} and no problem+json: is that a Leasehold node?",
        parts.status
    )))
}

fn bad_endpoint(endpoint: &str) -> CliError {
    CliError::Usage(format!(
        "--endpoint {endpoint} must be a URL like http://127.0.0.1:7070"
    ))
}

fn unreachable(endpoint: &str, error: &(dyn std::error::Error + 'static)) -> CliError {
    // The innermost cause is the one that says something.
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    CliError::Unreachable(format!(
        "nobody answers at {endpoint} ({cause}): start a node with `leasehold serve`, or name another one with \
         --endpoint or LEASEHOLD_ENDPOINT"
    ))
}
