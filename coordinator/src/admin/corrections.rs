//! Support's button: an account is corrected by hand, with a reason, and says so for
//! good. Does not know what a correction does to the books.
//!
//! What is done is the last segment of the request's path, and the key is all that is
//! before it: `/v1/accounts/a/reset/reset` resets the key `a/reset`.

use axum::{
    Json,
    body::Bytes,
    extract::{OriginalUri, State},
    http::{HeaderMap, HeaderName},
    response::{IntoResponse, Response},
};
use leasehold_key::Key;
use leasehold_ledger::{
    correction::{Change, Correction},
    entry::Command,
    outcome::CommandOutcome,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Admin,
    accounts::{AccountWithLeases, PREFIX},
    header,
    json::{self, Signed},
    path,
    problem::{Kind, Problem},
};
use crate::sequencer::draw_id;

/// Who corrects: in their own words, or their identity where the node knows them.
pub(crate) const BY: HeaderName = HeaderName::from_static("leasehold-by");
const RESET: &str = "reset";
const ADJUST: &str = "adjust";
const CORRECTIONS: &str = "corrections";

/// Why an account is reset.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "ticket 4711: their retry loop is fixed"}))]
pub(super) struct ResetBody {
    /// For whoever reads the history; 1 to 500 bytes.
    reason: String,
    /// Names this correction within the account, 1 to 64 visible ASCII characters: the
    /// same again changes nothing. Drawn at random unless said otherwise; then a
    /// request whose outcome is unknown must not simply be repeated.
    #[serde(default)]
    id: Option<String>,
}

/// By how much an account is adjusted, and why.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"id": "order-1093", "units": 500, "reason": "bought 500 more"}))]
pub(super) struct AdjustBody {
    /// Names this correction within the account, 1 to 64 visible ASCII characters: the
    /// same again changes nothing, and another amount under the same id is refused.
    id: String,
    /// Above 0: so many units become free. Below: so many more are counted.
    units: Signed,
    /// For whoever reads the history; 1 to 500 bytes.
    reason: String,
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<ResetBody>(bytes).is_ok() || json::parse::<AdjustBody>(bytes).is_ok()
}

/// A correction that was made, now or before.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Corrected {
    /// Its name within the account.
    id: String,
    /// How many units became free by it, or fewer; less than asked for when no more
    /// were counted.
    effect: i64,
    /// It was made before: nothing changed now.
    repeated: bool,
    /// The account as it is now.
    account: Option<AccountWithLeases>,
}

/// What a correction does.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ChangeName {
    /// Frees so many units, or counts so many more.
    Adjust,
    /// Nothing is counted any more.
    Reset,
}

/// One correction of an account.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CorrectionBody {
    /// Its name within the account.
    id: String,
    change: ChangeName,
    /// Of an adjustment: what was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<i64>,
    /// How many units became free by it, or fewer.
    effect: i64,
    /// Why.
    reason: String,
    /// Who, as they said.
    by: String,
    /// When, by the leader's wall clock, in milliseconds since 1970.
    at_unix_ms: i64,
}

impl From<&Correction> for CorrectionBody {
    fn from(correction: &Correction) -> Self {
        let (change, units) = match correction.change {
            Change::Adjust(units) => (ChangeName::Adjust, Some(units)),
            Change::Reset => (ChangeName::Reset, None),
        };
        Self {
            id: correction.id.clone(),
            change,
            units,
            effect: correction.effect,
            reason: correction.reason.clone(),
            by: correction.by.clone(),
            at_unix_ms: correction.wall_unix_us.div_euclid(1_000),
        }
    }
}

/// What was corrected in an account by hand, the newest first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct History {
    key: String,
    corrections: Vec<CorrectionBody>,
    /// Pass it as `cursor` for older ones; null: there are none.
    next_cursor: Option<String>,
}

/// Which corrections, and from where.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryPage {
    /// How many at most: 1 to 1,000, 100 unless said otherwise.
    limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Does what the last segment of the path says.
pub(super) async fn post(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Corrected>, Problem> {
    match path::action(&uri, PREFIX) {
        Some((key, RESET)) => reset(&admin, key, &headers, &body).await,
        Some((key, ADJUST)) => adjust(&admin, key, &headers, &body).await,
        _ => Err(Problem::new(
            Kind::NotFound,
            format!(
                "what is done with an account is the path's last segment: POST {PREFIX}KEY/{RESET} or \
                 {PREFIX}KEY/{ADJUST}"
            ),
        )),
    }
}

/// Counts nothing of a key any more: unblocks it now. What is outstanding stays so, and
/// a total or permits are not reset.
#[utoipa::path(post, path = "/v1/accounts/{key}/reset", tag = "accounts", operation_id = "reset_account",
    params(("key" = String, Path, description = "The key: all of the path before its last segment"),
        ("Leasehold-By" = Option<String>, Header, description = "Who corrects; up to 128 bytes, not checked")),
    request_body = ResetBody,
    responses((status = 200, description = "Done, now or before", body = Corrected)))]
pub(super) async fn reset(
    admin: &Admin,
    key: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Json<Corrected>, Problem> {
    let key = Key::parse(key).map_err(|error| Problem::key(&error))?;
    let ResetBody { reason, id } = json::parse(body)?;
    let id = match id {
        Some(id) => id,
        None => draw_id()
            .map(|id| format!("{id:032x}"))
            .ok_or_else(no_randomness)?,
    };
    correct(admin, key, Change::Reset, id, reason, headers).await
}

/// Frees units of a key, or counts more. Of a total, adds to what there is to spend, or
/// takes from it. Opens the account of a key that was never used. Permits and unlimited
/// budgets have nothing to adjust.
#[utoipa::path(post, path = "/v1/accounts/{key}/adjust", tag = "accounts", operation_id = "adjust_account",
    params(("key" = String, Path, description = "The key: all of the path before its last segment"),
        ("Leasehold-By" = Option<String>, Header, description = "Who corrects; up to 128 bytes, not checked")),
    request_body = AdjustBody,
    responses((status = 200, description = "Done, now or before", body = Corrected)))]
pub(super) async fn adjust(
    admin: &Admin,
    key: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Json<Corrected>, Problem> {
    let key = Key::parse(key).map_err(|error| Problem::key(&error))?;
    let AdjustBody { id, units, reason } = json::parse(body)?;
    correct(admin, key, Change::Adjust(units.0), id, reason, headers).await
}

async fn correct(
    admin: &Admin,
    key: Key,
    change: Change,
    id: String,
    reason: String,
    headers: &HeaderMap,
) -> Result<Json<Corrected>, Problem> {
    let by = header::text(headers, &BY)?.unwrap_or_default();
    // For people: it decides nothing.
    let wall_unix_us = (admin.node.config().replica.wall_unix_us)();
    let outcome = admin
        .submit(Command::Correct {
            key: key.clone(),
            id: id.clone(),
            change,
            reason,
            by,
            wall_unix_us: i64::try_from(wall_unix_us).unwrap_or(i64::MAX),
        })
        .await?;
    let CommandOutcome::Corrected { effect, repeated } = outcome else {
        return Err(Problem::new(
            Kind::Internal,
            format!("a correction led to {outcome:?}"),
        ));
    };
    // It is done: that the account cannot be read now changes nothing of that.
    let account = admin
        .node
        .read(|ledger, now_us| {
            let view = ledger.account(&key)?;
            Some(AccountWithLeases::new(&view, now_us, admin.node.shadowed()))
        })
        .await
        .unwrap_or_default();
    Ok(Json(Corrected {
        id,
        effect,
        repeated,
        account,
    }))
}

fn no_randomness() -> Problem {
    Problem::new(
        Kind::Internal,
        "the operating system has no randomness for an id now; state an id, or try again; nothing was changed",
    )
}

/// Whether a GET is for the history: then a key is before the last segment.
pub(super) fn is_asked_for(uri: &axum::http::Uri) -> bool {
    matches!(path::action(uri, PREFIX), Some((_, CORRECTIONS)))
}

/// What was corrected by hand in an account, the newest first. The account of a key that
/// itself ends in `corrections` is read with an escape in that segment:
/// `/v1/accounts/a/%63orrections`.
#[utoipa::path(get, path = "/v1/accounts/{key}/corrections", tag = "accounts", operation_id = "list_corrections",
    params(("key" = String, Path, description = "The key: all of the path before its last segment"), HistoryPage),
    responses((status = 200, description = "One page", body = History)))]
pub(super) async fn list(admin: &Admin, uri: &axum::http::Uri) -> Result<Response, Problem> {
    let (key, _) = path::action(uri, PREFIX).unwrap_or_default();
    let key = Key::parse(key).map_err(|error| Problem::key(&error))?;
    let page: HistoryPage = path::query(uri)?;
    let limit = path::page_size(page.limit.as_deref())?;
    let before = page.cursor.as_deref().map(str::parse::<u64>).transpose();
    let before = before.map_err(|_| {
        Problem::new(Kind::InvalidQuery, "cursor is none that a page gave").at("cursor")
    })?;
    let found = admin
        .node
        .read(|ledger, _| ledger.corrections_before(&key, before, limit))
        .await?;
    let Some(corrections) = found else {
        return Err(Problem::new(
            Kind::NoSuchAccount,
            format!("nothing of {key} is counted, outstanding or corrected"),
        ));
    };
    let oldest = corrections.last().map(|(place, _)| *place);
    let history = History {
        key: key.as_str().to_owned(),
        corrections: corrections
            .iter()
            .map(|(_, correction)| correction.into())
            .collect(),
        next_cursor: oldest
            .filter(|place| *place > 0)
            .map(|place| place.to_string()),
    };
    Ok(Json(history).into_response())
}
