//! `/v1/policies`: rules by name, and the JSON form of a rule that budgets and
//! accounts share.

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::StatusCode,
};
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry},
    outcome::CommandOutcome,
    policy::{FailureMode, Kind as PolicyKind, Policy},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Admin,
    json::{self, Body, Milli, Whole, micros, millis_up},
    path,
    problem::{Kind, Problem},
};

const PREFIX: &str = "/v1/policies/";

/// A rule. A `sliding_window` has `limit` and `window_ms`, a `token_bucket` has
/// `capacity`, `refill` and `refill_period_ms`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"kind": "sliding_window", "limit": 100, "window_ms": 60000}))]
pub(super) struct PolicyBody {
    kind: KindName,
    /// Units in any interval of `window_ms`; 0 refuses everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<Whole>,
    /// 100 ms to 31 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window_ms: Option<Whole>,
    /// Units that a full bucket holds; 0 refuses everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capacity: Option<Whole>,
    /// Units that come back in one `refill_period_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill: Option<Whole>,
    /// 100 ms to 31 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refill_period_ms: Option<Whole>,
    /// A lease holds so many times the recent demand of its gateway; 1.5 unless
    /// said otherwise. More: fewer messages, and more units that lie idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice_factor: Option<Milli>,
    /// How long `spend` waits for units; 250 unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<Whole>,
    /// Free units kept back for requests that wait, rather than given to gateways
    /// that ask ahead of need; less than the limit or capacity, 0 unless said
    /// otherwise. A reserve of 1 costs some points of waiting at 32 gateways and
    /// saves messages and mean latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reserve: Option<Whole>,
    /// The time over which a gateway measures its demand, 10 to 10,000; unless said
    /// otherwise a sixth of the window or of the time in which an empty bucket
    /// fills, 10 seconds at most. All times of the lease policy follow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demand_horizon_ms: Option<Whole>,
    /// What gateways do while no coordinator answers; `closed` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure_mode: Option<FailureModeName>,
    /// The name that end users see in `RateLimit`; `default` unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_name: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum KindName {
    SlidingWindow,
    TokenBucket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum FailureModeName {
    /// Refuse.
    Closed,
    /// Allow, marked as degraded.
    Open,
}

impl From<&Policy> for PolicyBody {
    fn from(policy: &Policy) -> Self {
        let mut body = Self {
            kind: KindName::SlidingWindow,
            limit: None,
            window_ms: None,
            capacity: None,
            refill: None,
            refill_period_ms: None,
            slice_factor: Some(Milli(policy.slice_factor_milli)),
            max_wait_ms: Some(Whole(millis_up(policy.max_wait_us))),
            reserve: Some(Whole(policy.reserve)),
            demand_horizon_ms: policy.horizon_us.map(millis_up).map(Whole),
            failure_mode: Some(match policy.failure_mode {
                FailureMode::Closed => FailureModeName::Closed,
                FailureMode::Open => FailureModeName::Open,
            }),
            public_name: Some(policy.public_name.clone()),
        };
        match policy.kind {
            PolicyKind::SlidingWindow { limit, window_us } => {
                body.limit = Some(Whole(limit));
                body.window_ms = Some(Whole(millis_up(window_us)));
            }
            PolicyKind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            } => {
                body.kind = KindName::TokenBucket;
                body.capacity = Some(Whole(capacity));
                body.refill = Some(Whole(refill));
                body.refill_period_ms = Some(Whole(millis_up(refill_period_us)));
            }
        }
        body
    }
}

impl TryFrom<PolicyBody> for Policy {
    type Error = Problem;

    fn try_from(body: PolicyBody) -> Result<Self, Problem> {
        let mut policy = Self::new(body.kind()?);
        if let Some(Milli(factor)) = body.slice_factor {
            policy.slice_factor_milli = factor;
        }
        if let Some(max_wait) = body.max_wait_ms {
            policy.max_wait_us = micros("max_wait_ms", max_wait)?;
        }
        if let Some(Whole(reserve)) = body.reserve {
            policy.reserve = reserve;
        }
        if let Some(horizon) = body.demand_horizon_ms {
            policy.horizon_us = Some(micros("demand_horizon_ms", horizon)?);
        }
        if let Some(mode) = body.failure_mode {
            policy.failure_mode = match mode {
                FailureModeName::Open => FailureMode::Open,
                FailureModeName::Closed => FailureMode::Closed,
            };
        }
        if let Some(name) = body.public_name {
            policy.public_name = name;
        }
        policy.validate().map_err(Problem::from_validation)?;
        Ok(policy)
    }
}

impl PolicyBody {
    fn kind(&self) -> Result<PolicyKind, Problem> {
        let window = [("limit", self.limit), ("window_ms", self.window_ms)];
        let bucket = [
            ("capacity", self.capacity),
            ("refill", self.refill),
            ("refill_period_ms", self.refill_period_ms),
        ];
        let (own, other, name): (&[_], &[_], _) = match self.kind {
            KindName::SlidingWindow => (&window, &bucket, "sliding_window"),
            KindName::TokenBucket => (&bucket, &window, "token_bucket"),
        };
        if let Some((field, _)) = other.iter().find(|(_, value)| value.is_some()) {
            let names: Vec<&str> = own.iter().map(|(name, _)| *name).collect();
            return Err(Problem::field(
                *field,
                format!(
                    "{field} does not belong to a {name}, which has {}",
                    names.join(", ")
                ),
            ));
        }
        let need = |field: &'static str, value: Option<Whole>| {
            value.ok_or_else(|| {
                Problem::field(field, format!("missing field `{field}`: a {name} needs it"))
            })
        };
        Ok(match self.kind {
            KindName::SlidingWindow => PolicyKind::SlidingWindow {
                limit: need("limit", self.limit)?.0,
                window_us: micros("window_ms", need("window_ms", self.window_ms)?)?,
            },
            KindName::TokenBucket => PolicyKind::TokenBucket {
                capacity: need("capacity", self.capacity)?.0,
                refill: need("refill", self.refill)?.0,
                refill_period_us: micros(
                    "refill_period_ms",
                    need("refill_period_ms", self.refill_period_ms)?,
                )?,
            },
        })
    }
}

/// Reads a body as far as nobody has to be asked. What a policy is shown as reads
/// back as the same policy, and so does what the log keeps of it; the ledger takes it.
pub(super) fn reads(bytes: &[u8]) -> bool {
    let read = |bytes: &[u8]| json::parse::<PolicyBody>(bytes).and_then(Policy::try_from);
    let Ok(policy) = read(bytes) else {
        return false;
    };
    let shown = serde_json::to_vec(&PolicyBody::from(&policy)).unwrap_or_default();
    assert!(
        read(&shown).is_ok_and(|again| again == policy),
        "{policy:?} reads back as another"
    );
    let entry = Entry {
        commands: vec![Command::PutPolicy {
            name: "orders".to_owned(),
            policy,
        }],
        ..Entry::default()
    };
    assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry));
    let taken = Ledger::new().apply(1, &entry);
    let refused = |outcome: &_| matches!(outcome, CommandOutcome::Refused(_));
    assert!(
        !taken.commands.iter().any(refused),
        "{entry:?}: {:?}",
        taken.commands
    );
    true
}

/// A policy and its name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NamedPolicy {
    name: String,
    #[serde(flatten)]
    policy: PolicyBody,
}

/// All policies, in the order of their names.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PolicyList {
    policies: Vec<NamedPolicy>,
}

/// A policy's name: 1 to 64 of `a-z A-Z 0-9 . _ -`.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    let good = (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    if good {
        return Ok(());
    }
    Err(Problem::new(
        Kind::InvalidName,
        format!(
            "a policy name is 1 to 64 of a-z, A-Z, 0-9, '.', '_' and '-', but this one is {name:?}"
        ),
    ))
}

fn name_in(uri: &axum::http::Uri) -> Result<String, Problem> {
    let name = path::segment(uri, PREFIX)?.into_owned();
    check_name(&name)?;
    Ok(name)
}

/// Creates or replaces a policy. Accounts that follow it change at once; what is
/// counted or outstanding is never freed by an edit.
#[utoipa::path(put, path = "/v1/policies/{name}", tag = "policies", operation_id = "put_policy",
    params(("name" = String, Path, description = "1 to 64 of a-z A-Z 0-9 . _ -")),
    request_body = PolicyBody, responses((status = 200, description = "The policy in force", body = NamedPolicy)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    Body(body): Body<PolicyBody>,
) -> Result<Json<NamedPolicy>, Problem> {
    let name = name_in(&uri)?;
    let policy = Policy::try_from(body)?;
    let shown = PolicyBody::from(&policy);
    admin
        .submit(Command::PutPolicy {
            name: name.clone(),
            policy,
        })
        .await?;
    Ok(Json(NamedPolicy {
        name,
        policy: shown,
    }))
}

/// One policy.
#[utoipa::path(get, path = "/v1/policies/{name}", tag = "policies", operation_id = "get_policy",
    params(("name" = String, Path, description = "The policy's name")),
    responses((status = 200, description = "The policy", body = NamedPolicy)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<NamedPolicy>, Problem> {
    let name = name_in(&uri)?;
    let found = admin
        .node
        .read(|ledger, _| ledger.policy(&name).map(PolicyBody::from))
        .await?;
    let policy = found
        .ok_or_else(|| Problem::new(Kind::NoSuchPolicy, format!("no policy is called {name}")))?;
    Ok(Json(NamedPolicy { name, policy }))
}

/// Deletes a policy that no budget uses.
#[utoipa::path(delete, path = "/v1/policies/{name}", tag = "policies", operation_id = "delete_policy",
    params(("name" = String, Path, description = "The policy's name")),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, Problem> {
    let name = name_in(&uri)?;
    admin.submit(Command::DeletePolicy { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All policies.
#[utoipa::path(get, path = "/v1/policies", tag = "policies", operation_id = "list_policies",
    responses((status = 200, description = "All policies", body = PolicyList)))]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<PolicyList>, Problem> {
    let policies = admin
        .node
        .read(|ledger, _| {
            ledger
                .policies()
                .into_iter()
                .map(|(name, policy)| NamedPolicy {
                    name: name.to_owned(),
                    policy: policy.into(),
                })
                .collect()
        })
        .await?;
    Ok(Json(PolicyList { policies }))
}
