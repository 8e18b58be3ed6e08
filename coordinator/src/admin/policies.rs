//! `/v1/policies`: rules by name.

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::{HeaderMap, Uri},
    response::Response,
};
use leasehold_ledger::{
    Ledger, RuleView,
    edit::RuleChange,
    entry::{Command, Entry},
    outcome::CommandOutcome,
    policy::Policy,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Admin,
    edit::{Circumstances, ConditionHeaders, Foreseen, PutAnswer, Tagged, Trial, shown_tag},
    json::{self, Body},
    path,
    policy_body::PolicyBody,
    problem::{Kind, Problem},
};

const PREFIX: &str = "/v1/policies/";

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

/// A policy with every field that has a default, as it is shown; for files that are
/// compared with what is shown.
///
/// # Errors
/// What is wrong with it; the text begins with the field's name.
pub(crate) fn normal_policy(policy: &serde_json::Value) -> Result<serde_json::Value, String> {
    let bytes = serde_json::to_vec(policy).map_err(|error| error.to_string())?;
    let policy = json::parse::<PolicyBody>(&bytes).and_then(Policy::try_from);
    let policy = policy.map_err(|problem| problem.in_words())?;
    serde_json::to_value(PolicyBody::from(&policy)).map_err(|error| error.to_string())
}

/// A policy and its name.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NamedPolicy {
    name: String,
    #[serde(flatten)]
    policy: PolicyBody,
    /// Counted from 1; see `/v1/policies/{name}/versions`.
    version: u64,
    /// What `ETag` says of it, without quotation marks: for `If-Match`.
    #[schema(example = "00c0ffee00c0ffee")]
    etag: String,
}

impl NamedPolicy {
    fn new(name: &str, view: RuleView<'_, Policy>) -> Self {
        Self {
            name: name.to_owned(),
            policy: view.value.into(),
            version: view.version,
            etag: shown_tag(view.tag),
        }
    }
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

fn name_in(uri: &Uri) -> Result<String, Problem> {
    let name = path::segment_with_query(uri, PREFIX)?.into_owned();
    check_name(&name)?;
    Ok(name)
}

/// Creates or replaces a policy. Accounts that follow it change at once; what is
/// counted or outstanding is never freed by an edit.
#[utoipa::path(put, path = "/v1/policies/{name}", tag = "policies", operation_id = "put_policy",
    params(("name" = String, Path, description = "1 to 64 of a-z A-Z 0-9 . _ -"), Trial, ConditionHeaders),
    request_body = PolicyBody, responses((status = 200, description = "The policy in force", body = PutAnswer<NamedPolicy>)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body<PolicyBody>,
) -> Result<Response, Problem> {
    let name = name_in(&uri)?;
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let circumstances = Circumstances::of(&headers)?;
    let policy = Policy::try_from(body)?;
    let shown = PolicyBody::from(&policy);
    let change = RuleChange::PutPolicy {
        name: name.clone(),
        policy,
    };
    let outcome = admin.change(change, circumstances, dry_run).await?;
    Ok(outcome.of_put(|version, tag| NamedPolicy {
        name,
        policy: shown,
        version,
        etag: shown_tag(tag),
    }))
}

/// One policy.
#[utoipa::path(get, path = "/v1/policies/{name}", tag = "policies", operation_id = "get_policy",
    params(("name" = String, Path, description = "The policy's name")),
    responses((status = 200, description = "The policy", body = NamedPolicy)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Tagged<NamedPolicy>, Problem> {
    let name = path::segment(&uri, PREFIX)?.into_owned();
    check_name(&name)?;
    let found = admin
        .node
        .read(|ledger, _| {
            let view = ledger.policy_view(&name)?;
            Some(Tagged(view.tag, NamedPolicy::new(&name, view)))
        })
        .await?;
    found.ok_or_else(|| no_such(&name))
}

pub(super) fn no_such(name: &str) -> Problem {
    Problem::new(Kind::NoSuchPolicy, format!("no policy is called {name}"))
}

/// Deletes a policy that no budget uses.
#[utoipa::path(delete, path = "/v1/policies/{name}", tag = "policies", operation_id = "delete_policy",
    params(("name" = String, Path, description = "The policy's name"), Trial, ConditionHeaders),
    responses((status = 204, description = "Deleted"), (status = 200, description = "With dry_run=true", body = Foreseen)))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let name = name_in(&uri)?;
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let circumstances = Circumstances::of(&headers)?;
    let change = RuleChange::DeletePolicy { name };
    let outcome = admin.change(change, circumstances, dry_run).await?;
    Ok(outcome.of_delete())
}

/// All policies.
#[utoipa::path(get, path = "/v1/policies", tag = "policies", operation_id = "list_policies",
    responses((status = 200, description = "All policies", body = PolicyList)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<PolicyList>, Problem> {
    path::no_query(&uri)?;
    let policies = admin
        .node
        .read(|ledger, _| {
            let views = ledger.policy_views();
            views
                .map(|(name, view)| NamedPolicy::new(name, view))
                .collect()
        })
        .await?;
    Ok(Json(PolicyList { policies }))
}
