//! The last versions of policies and budgets: what they said, by whom and when. Does not
//! know who may read that.

use axum::{
    Json,
    extract::{OriginalUri, State},
};
use leasehold_ledger::Version;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Admin,
    budgets::{self, BudgetBody},
    path,
    policies::{self, check_name},
    policy_body::PolicyBody,
    problem::Problem,
};

/// Who made a version, and when.
#[derive(Debug, Serialize, ToSchema)]
struct Made {
    /// Counted from 1.
    version: u64,
    /// What `Leasehold-By` said, which nobody checked; null: it was not said.
    by: Option<String>,
    /// What the leader's wall clock said, in milliseconds since 1970; null: it was made
    /// before there were versions.
    at_unix_ms: Option<i64>,
}

impl Made {
    fn new<T>(version: &Version<T>) -> Self {
        Self {
            version: version.number,
            by: (!version.by.is_empty()).then(|| version.by.clone()),
            at_unix_ms: (version.wall_unix_us != 0).then(|| version.wall_unix_us.div_euclid(1_000)),
        }
    }
}

/// One version of a policy.
#[derive(Debug, Serialize, ToSchema)]
struct PolicyVersion {
    #[serde(flatten)]
    made: Made,
    policy: PolicyBody,
}

/// The last 32 versions of a policy, the newest first: that one is in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PolicyVersions {
    name: String,
    versions: Vec<PolicyVersion>,
}

/// The last versions of a policy, with who made them and when. A policy that was deleted
/// has none, and begins anew with 1.
#[utoipa::path(get, path = "/v1/policies/{name}/versions", tag = "policies", operation_id = "list_policy_versions",
    params(("name" = String, Path, description = "The policy's name")),
    responses((status = 200, description = "Its versions", body = PolicyVersions)))]
pub(super) async fn of_policy(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<PolicyVersions>, Problem> {
    let name = path::segment_before(&uri, "/v1/policies/", "/versions")?.into_owned();
    check_name(&name)?;
    let found = admin
        .node
        .read(|ledger, _| ledger.policy_versions(&name))
        .await?;
    let found = found.ok_or_else(|| policies::no_such(&name))?;
    let versions = found.iter().rev().map(|version| PolicyVersion {
        made: Made::new(version),
        policy: (&*version.value).into(),
    });
    Ok(Json(PolicyVersions {
        versions: versions.collect(),
        name,
    }))
}

/// One version of a budget.
#[derive(Debug, Serialize, ToSchema)]
struct BudgetVersion {
    #[serde(flatten)]
    made: Made,
    #[serde(flatten)]
    budget: BudgetBody,
}

/// The last 32 versions of a budget, the newest first: that one is in force.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetVersions {
    pattern: String,
    versions: Vec<BudgetVersion>,
}

/// The last versions of a budget, with who made them and when. An edit of the policy that
/// it names is a version of that policy alone.
#[utoipa::path(get, path = "/v1/budget-versions/{*pattern}", tag = "budgets", operation_id = "list_budget_versions",
    params(("pattern" = String, Path, description = "The budget's pattern")),
    responses((status = 200, description = "Its versions", body = BudgetVersions)))]
pub(super) async fn of_budget(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<BudgetVersions>, Problem> {
    let pattern = path::pattern(&uri, "/v1/budget-versions/")?;
    let found = admin
        .node
        .read(|ledger, _| ledger.budget_versions(&pattern))
        .await?;
    let found = found.ok_or_else(|| budgets::no_such(&pattern))?;
    let versions = found.iter().rev().map(|version| BudgetVersion {
        made: Made::new(version),
        budget: (&version.value).into(),
    });
    Ok(Json(BudgetVersions {
        versions: versions.collect(),
        pattern: pattern.as_str().to_owned(),
    }))
}
