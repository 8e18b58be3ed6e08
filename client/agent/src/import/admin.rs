//! Requests to a coordinator's admin API. Knows nothing of what they change.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use leasehold_credentials::{Credentials, CredentialsError};
use serde_json::{Value, json};

use super::{ImportError, changes::Change};

const ANSWER_WITHIN: Duration = Duration::from_secs(20);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// What must be in force for a change to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    /// What has this etag.
    Still(String),
    /// Nothing.
    Absent,
}

/// A coordinator that answered.
pub(super) struct Admin {
    url: String,
    uri: Uri,
    by: Option<HeaderValue>,
    credentials: Credentials,
    authorization: Option<HeaderValue>,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Admin {
    /// The first of several that answers.
    pub(super) async fn reach(
        urls: &[String],
        by: Option<&str>,
        credentials: &Credentials,
    ) -> Result<Self, ImportError> {
        let by = by_whom(by)?;
        let mut silent = Vec::new();
        for url in urls {
            let uri = checked(url)?;
            let refused = |error| refused(url, error);
            let ready = credentials.for_url(&uri).map_err(refused)?;
            let authorization = ready.authorization.clone();
            let connector = ready.connector(CONNECT_WITHIN).map_err(refused)?;
            let admin = Self {
                url: url.trim_end_matches('/').to_owned(),
                uri,
                by: by.clone(),
                credentials: credentials.clone(),
                authorization,
                client: Client::builder(TokioExecutor::new()).build(connector),
            };
            match admin.get("/readyz").await {
                Err(ImportError::Unreachable(why)) => silent.push(why),
                // Whoever that is, it is not to be passed over in silence.
                Err(error @ ImportError::Tls(_)) => return Err(error),
                // Whatever else it says, it is there; the next request is told why not.
                _ => return Ok(admin),
            }
        }
        silent.push(
            "start a coordinator with `leasehold serve`, or name another one with --coordinator or LEASEHOLD_ENDPOINT"
                .to_owned(),
        );
        Err(ImportError::Unreachable(silent.join("; ")))
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, ImportError> {
        self.call(Method::GET, path, None, HeaderMap::new()).await
    }

    pub(super) async fn put(
        &self,
        path: &str,
        body: &Value,
        condition: &Condition,
    ) -> Result<Value, ImportError> {
        let headers = conditional(condition)?;
        self.call(Method::PUT, path, Some(body), headers).await
    }

    /// Sets many budgets at once, all or none.
    pub(super) async fn put_many(&self, budgets: &[&Change]) -> Result<Value, ImportError> {
        let items: Vec<Value> = budgets.iter().map(|change| change.bulk_item()).collect();
        let body = json!({ "budgets": items });
        let headers = HeaderMap::new();
        self.call(Method::PUT, "/v1/budgets", Some(&body), headers)
            .await
    }

    pub(super) async fn delete(
        &self,
        path: &str,
        condition: &Condition,
    ) -> Result<Value, ImportError> {
        let headers = conditional(condition)?;
        self.call(Method::DELETE, path, None, headers).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: HeaderMap,
    ) -> Result<Value, ImportError> {
        let url = &self.url;
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{url}{path}"))
            .body(Full::from(body))
            .map_err(|_| bad_url(url))?;
        *request.headers_mut() = headers;
        let headers = request.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let agent = concat!("leasehold-agent/", env!("CARGO_PKG_VERSION"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
        if let Some(by) = &self.by {
            headers.insert("leasehold-by", by.clone());
        }
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let exchange = async {
            let (parts, body) = self.client.request(request).await?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>((parts, body.to_bytes()))
        };
        match tokio::time::timeout(ANSWER_WITHIN, exchange).await {
            Err(_) => Err(ImportError::Unreachable(format!(
                "{url} did not answer within {} s",
                ANSWER_WITHIN.as_secs()
            ))),
            Ok(Err(error)) => Err(self.unreachable(error.as_ref())),
            Ok(Ok((parts, body))) => self.understand(parts.status, &parts.headers, &body),
        }
    }

    fn understand(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Value, ImportError> {
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        if status.is_success() {
            return Ok(body);
        }
        if body.get("code").is_some() {
            let retry = headers.get(header::RETRY_AFTER);
            let retry = retry.and_then(|value| value.to_str().ok()?.parse().ok());
            return Err(ImportError::of_problem(&body, retry, &self.credentials));
        }
        Err(ImportError::Unreachable(format!(
            "{} answered {status} and no problem+json: is that a coordinator?",
            self.url
        )))
    }

    fn unreachable(&self, error: &(dyn std::error::Error + 'static)) -> ImportError {
        let url = &self.url;
        if let Some(why) = self.credentials.explain(&self.uri, error) {
            return ImportError::Tls(format!("{url} was not asked: {why}"));
        }
        // The innermost cause is the one that says something.
        let mut cause = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        ImportError::Unreachable(format!("nobody answers at {url} ({cause})"))
    }
}

fn conditional(condition: &Condition) -> Result<HeaderMap, ImportError> {
    let mut headers = HeaderMap::new();
    match condition {
        Condition::Absent => {
            headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
        }
        Condition::Still(etag) => {
            let value = HeaderValue::try_from(format!("\"{etag}\""));
            let value = value.map_err(|_| {
                ImportError::Unintelligible(format!("the etag {etag:?} is no header"))
            })?;
            headers.insert(header::IF_MATCH, value);
        }
    }
    Ok(headers)
}

/// An odd name that the system gives is nobody's; one that was stated is an error.
fn by_whom(by: Option<&str>) -> Result<Option<HeaderValue>, ImportError> {
    if let Some(by) = by {
        let value = HeaderValue::from_bytes(by.as_bytes());
        return value.map(Some).map_err(|_| {
            ImportError::Usage(format!(
                "--by {by:?} has characters that no header can have"
            ))
        });
    }
    let user = std::env::var("USER").ok().filter(|user| !user.is_empty());
    Ok(user.and_then(|user| HeaderValue::from_bytes(user.as_bytes()).ok()))
}

fn checked(url: &str) -> Result<Uri, ImportError> {
    let trimmed = url.trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| bad_url(url))?;
    if uri.path() != "/" {
        return Err(bad_url(url));
    }
    Ok(uri)
}

fn refused(url: &str, error: CredentialsError) -> ImportError {
    match error {
        CredentialsError::NoUrl | CredentialsError::OtherScheme { .. } => bad_url(url),
        CredentialsError::NoAuthority { .. } | CredentialsError::TokenInTheClear { .. } => {
            ImportError::Usage(format!("--coordinator {url}: {error}"))
        }
        error => ImportError::Credentials(error),
    }
}

fn bad_url(url: &str) -> ImportError {
    ImportError::Usage(format!(
        "--coordinator {url} must be a URL like http://127.0.0.1:7070 or https://node1.internal:7070"
    ))
}
