//! `/v1/sessions`: gateways that hold leases.

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::StatusCode,
};
use leasehold_ledger::{
    entry::{Command, SessionId},
    outcome::SessionView,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Admin,
    json::millis_up,
    path,
    problem::{Kind, Problem},
};

const PREFIX: &str = "/v1/sessions/";

/// One gateway's session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Session {
    /// 32 hexadecimal digits.
    id: String,
    /// The name that the gateway gave itself.
    holder: String,
    /// Who opened it; empty without authentication.
    identity: String,
    /// Milliseconds of cluster time since it opened.
    age_ms: u64,
    /// Milliseconds until it expires, unless renewed.
    expires_in_ms: u64,
    /// How long it lives without a renewal; fixed when it opened.
    ttl_ms: u64,
    /// It was ended: no grants and no renewal.
    ended: bool,
    /// How many leases it has.
    lease_count: u64,
}

impl Session {
    fn new(view: &SessionView, now_us: u64) -> Self {
        Self {
            id: session_text(view.id),
            holder: view.holder.clone(),
            identity: view.identity.clone(),
            age_ms: now_us.saturating_sub(view.opened_us) / 1_000,
            expires_in_ms: millis_up(view.deadline_us.saturating_sub(now_us)),
            ttl_ms: view.ttl_us / 1_000,
            ended: view.ended,
            lease_count: view.leases,
        }
    }
}

/// How a session id is written: 32 hexadecimal digits.
pub(super) fn session_text(id: SessionId) -> String {
    format!("{:032x}", id.0)
}

fn parse_id(text: &str) -> Result<SessionId, Problem> {
    let good = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    match u128::from_str_radix(text, 16) {
        Ok(id) if good => Ok(SessionId(id)),
        _ => Err(Problem::new(
            Kind::InvalidId,
            format!("a session id is 32 hexadecimal digits, but this one is {text:?}"),
        )),
    }
}

/// Which sessions, and from where.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// How many at most: 1 to 1,000, 100 unless said otherwise.
    limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// One page of sessions, in the order of their ids.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionPage {
    sessions: Vec<Session>,
    /// Pass it as `cursor` for the next page; null: this is the last.
    next_cursor: Option<String>,
}

/// Sessions, page by page.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions", params(Page),
    responses((status = 200, description = "One page", body = SessionPage)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<SessionPage>, Problem> {
    let page: Page = path::query(&uri)?;
    let limit = path::page_size(page.limit.as_deref())?;
    let after = page
        .cursor
        .as_deref()
        .map(parse_id)
        .transpose()
        .map_err(|_| {
            Problem::new(
                Kind::InvalidQuery,
                "cursor must be the next_cursor of the page before",
            )
            .at("cursor")
        })?;
    let mut sessions: Vec<Session> = admin
        .node
        .read(|ledger, now_us| {
            ledger
                .sessions(after, limit + 1)
                .iter()
                .map(|view| Session::new(view, now_us))
                .collect()
        })
        .await?;
    let more = sessions.len() > limit;
    sessions.truncate(limit);
    let next_cursor = sessions
        .last()
        .filter(|_| more)
        .map(|session| session.id.clone());
    Ok(Json(SessionPage {
        sessions,
        next_cursor,
    }))
}

/// One session.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "get_session",
    params(("id" = String, Path, description = "32 hexadecimal digits")),
    responses((status = 200, description = "The session", body = Session)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Session>, Problem> {
    let id = parse_id(&path::segment(&uri, PREFIX)?)?;
    let found = admin
        .node
        .read(|ledger, now_us| ledger.session(id).map(|view| Session::new(&view, now_us)))
        .await?;
    found.map(Json).ok_or_else(|| {
        Problem::new(
            Kind::NoSuchSession,
            format!(
                "no live session is {}; it may have expired",
                session_text(id)
            ),
        )
    })
}

/// Ends a session: no grants and no renewal from now on. Its units stay
/// outstanding until its deadline, because it may still spend them.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "end_session",
    params(("id" = String, Path, description = "32 hexadecimal digits")),
    responses((status = 204, description = "Ended")))]
pub(super) async fn end(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, Problem> {
    let session = parse_id(&path::segment(&uri, PREFIX)?)?;
    admin.submit(Command::EndSession { session }).await?;
    Ok(StatusCode::NO_CONTENT)
}
