//! One request to a running node. Knows nothing of resources.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use leasehold_credentials::{Credentials, CredentialsError};
use serde_json::Value;

use super::{CliError, Remote, credentials};

const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
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
    let mut exchange = Exchange::new(remote, method, path, body)?;
    match condition {
        Condition::Anything => {}
        Condition::Absent => {
            let any = HeaderValue::from_static("*");
            let headers = exchange.request.headers_mut();
            headers.insert(header::IF_NONE_MATCH, any);
        }
        Condition::Still(etag) => {
            let value = HeaderValue::try_from(format!("\"{etag}\""))
                .map_err(|_| CliError::Usage(format!("{etag:?} is no etag")))?;
            let headers = exchange.request.headers_mut();
            headers.insert(header::IF_MATCH, value);
        }
    }
    exchange.run().await.map(|reply| reply.body)
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
    let mut exchange = Exchange::new(remote, Method::POST, path, Some(body))?;
    let value = HeaderValue::from_str(value).map_err(|_| {
        CliError::Usage(format!("{value:?} has characters that no header can have"))
    })?;
    exchange.request.headers_mut().insert(name, value);
    exchange.run().await
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
    Exchange::new(remote, method, path, body)?.run().await
}

/// Fetches a body of any length, piece by piece.
pub(super) async fn download(
    remote: &Remote,
    path: &str,
    mut take: impl FnMut(&[u8]) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let Exchange {
        called,
        client,
        request,
    } = Exchange::new(remote, Method::GET, path, None)?;
    let answer = match tokio::time::timeout(ANSWER_WITHIN, client.request(request)).await {
        Err(_) => return Err(called.silent()),
        Ok(Err(error)) => return Err(called.unreachable(&error)),
        Ok(Ok(answer)) => answer,
    };
    let (parts, mut body) = answer.into_parts();
    if !parts.status.is_success() {
        let bytes = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        let bytes = bytes.map_err(|error| called.unreachable(error.as_ref()))?;
        return called.understand(parts, &bytes.to_bytes()).map(drop);
    }
    loop {
        match tokio::time::timeout(ANSWER_WITHIN, body.frame()).await {
            Err(_) => return Err(called.silent()),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(called.unreachable(&error)),
            Ok(Some(Ok(frame))) => {
                if let Some(bytes) = frame.data_ref() {
                    take(bytes)?;
                }
            }
        }
    }
}

/// One request, with all that it is asked with.
struct Exchange {
    called: Called,
    client: Client<HttpsConnector<HttpConnector>, Full<axum::body::Bytes>>,
    request: Request<Full<axum::body::Bytes>>,
}

impl Exchange {
    fn new(
        remote: &Remote,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Self, CliError> {
        let endpoint = remote.endpoint.trim_end_matches('/');
        let uri: Uri = format!("{endpoint}{path}")
            .parse()
            .map_err(|_| credentials::refused(endpoint, &CredentialsError::NoUrl))?;
        let credentials = remote.credentials.credentials()?;
        let refused = |error| credentials::refused(endpoint, &error);
        let ready = credentials.for_url(&uri).map_err(refused)?;
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
        if let Some(authorization) = &ready.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
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
            .map_err(|_| refused(CredentialsError::NoUrl))?;
        let connector = ready.connector(CONNECT_WITHIN).map_err(refused)?;
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let called = Called {
            endpoint: endpoint.to_owned(),
            uri,
            credentials,
        };
        Ok(Self {
            called,
            client,
            request,
        })
    }

    async fn run(self) -> Result<Reply, CliError> {
        let Self {
            called,
            client,
            request,
        } = self;
        let exchange = async {
            let (parts, body) = client.request(request).await?.into_parts();
            let bytes = Limited::new(body, ANSWER_BYTES_MAX)
                .collect()
                .await?
                .to_bytes();
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parts, bytes))
        };
        match tokio::time::timeout(ANSWER_WITHIN, exchange).await {
            Err(_) => Err(called.silent()),
            Ok(Err(error)) => Err(called.unreachable(error.as_ref())),
            Ok(Ok((parts, bytes))) => called.understand(parts, &bytes),
        }
    }
}

/// Who the system says that it is; an odd name is nobody's.
fn user() -> Option<HeaderValue> {
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty())?;
    HeaderValue::from_bytes(user.as_bytes()).ok()
}

/// Who was asked, and as whom: what an answer is understood by.
struct Called {
    endpoint: String,
    uri: Uri,
    credentials: Credentials,
}

impl Called {
    fn silent(&self) -> CliError {
        CliError::Unreachable(format!(
            "{} did not answer within {} s",
            self.endpoint,
            ANSWER_WITHIN.as_secs()
        ))
    }

    /// A success, or the problem that the answer states.
    fn understand(
        &self,
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
            let advice = match problem.get("code").and_then(Value::as_str) {
                Some("unauthenticated") => Some(self.credentials.unknown_caller()),
                Some("forbidden") => Some(self.credentials.forbidden_caller()),
                _ => None,
            };
            if let Some(advice) = advice {
                problem.insert("advice".to_owned(), advice.into());
            }
            return Err(CliError::Refused(problem.into()));
        }
        Err(CliError::Unreachable(format!(
            "{} answered {} and no problem+json: is that a Leasehold node?",
            self.endpoint, parts.status
        )))
    }

    fn unreachable(&self, error: &(dyn std::error::Error + 'static)) -> CliError {
        let endpoint = &self.endpoint;
        if let Some(why) = self.credentials.explain(&self.uri, error) {
            return CliError::Failed {
                code: "tls_failed",
                detail: format!("{endpoint} was not asked: {why}"),
            };
        }
        // The innermost cause is the one that says something.
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let legacy = error.downcast_ref::<hyper_util::client::legacy::Error>();
        if legacy.is_some_and(|error| !error.is_connect()) {
            return CliError::Unreachable(format!(
                "{endpoint} is there and does not answer ({cause}): is that a Leasehold node, and does it speak TLS \
                 (https://) or not (http://)?"
            ));
        }
        CliError::Unreachable(format!(
            "nobody answers at {endpoint} ({cause}): start a node with `leasehold serve`, or name another one with \
             --endpoint or LEASEHOLD_ENDPOINT"
        ))
    }
}
