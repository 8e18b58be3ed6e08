//! `/v1/budgets`: which keys follow which policy.

use std::fmt;

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::HeaderMap,
    response::Response,
};
use leasehold_key::Pattern;
use leasehold_ledger::{
    RuleView,
    edit::{RuleChange, Terms},
    entry::Rule,
    policy::Policy,
};
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use super::{
    Admin,
    edit::{Circumstances, ConditionHeaders, Foreseen, PutAnswer, Tagged, Trial, shown_tag},
    json::{self, Body, Whole},
    path,
    policies::check_name,
    policy_body::PolicyBody,
    problem::{Kind, Problem},
};

const PREFIX: &str = "/v1/budgets/";

/// What the keys of a pattern follow.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"policy": "orders-read"}))]
pub(super) struct BudgetBody {
    policy: RuleBody,
    /// Accounts alive at once, up to 10,000,000; what the settings say unless said
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    accounts_max: Option<Whole>,
}

impl TryFrom<BudgetBody> for Terms {
    type Error = Problem;

    fn try_from(body: BudgetBody) -> Result<Self, Problem> {
        Ok(Self {
            rule: body.policy.try_into()?,
            accounts_max: body.accounts_max.map(|Whole(most)| most),
        })
    }
}

impl From<&Terms> for BudgetBody {
    fn from(terms: &Terms) -> Self {
        Self {
            policy: (&terms.rule).into(),
            accounts_max: terms.accounts_max.map(Whole),
        }
    }
}

/// A policy's name, or a policy of the budget's own.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum RuleBody {
    Named(String),
    Inline(Box<PolicyBody>),
}

impl<'de> Deserialize<'de> for RuleBody {
    // By hand, so that an error within an inline policy keeps its field's name.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = RuleBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a policy's name or a policy")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<RuleBody, E> {
                Ok(RuleBody::Named(name.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RuleBody, A::Error> {
                PolicyBody::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(|policy| RuleBody::Inline(Box::new(policy)))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl From<&Rule> for RuleBody {
    fn from(rule: &Rule) -> Self {
        match rule {
            Rule::Named(name) => Self::Named(name.clone()),
            Rule::Inline(policy) => Self::Inline(Box::new(policy.into())),
        }
    }
}

impl TryFrom<RuleBody> for Rule {
    type Error = Problem;

    fn try_from(body: RuleBody) -> Result<Self, Problem> {
        match body {
            RuleBody::Named(name) => {
                check_name(&name).map_err(|problem| problem.at("policy"))?;
                Ok(Self::Named(name))
            }
            RuleBody::Inline(policy) => Policy::try_from(*policy)
                .map(Self::Inline)
                .map_err(|p: Problem| p.within("policy")),
        }
    }
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<BudgetBody>(bytes)
        .and_then(Terms::try_from)
        .is_ok()
}

/// A budget and its pattern, in canonical encoding.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Budget {
    pattern: String,
    #[serde(flatten)]
    body: BudgetBody,
    /// Counted from 1; see `/v1/budget-versions/{pattern}`.
    version: u64,
    /// What `ETag` says of it, without quotation marks: for `If-Match`.
    #[schema(example = "00c0ffee00c0ffee")]
    etag: String,
}

impl Budget {
    fn new(pattern: &Pattern, view: RuleView<'_, Terms>) -> Self {
        Self {
            pattern: pattern.as_str().to_owned(),
            body: view.value.into(),
            version: view.version,
            etag: shown_tag(view.tag),
        }
    }
}

/// All budgets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetList {
    budgets: Vec<Budget>,
}

/// Binds a pattern to a policy. The most specific pattern wins, segment by
/// segment from the left: literal, longest prefix, `*`, `**`.
#[utoipa::path(put, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "put_budget",
    params(("pattern" = String, Path, description = "A key whose segments may be * or end in *, and whose last may be **"), Trial, ConditionHeaders),
    request_body = BudgetBody, responses((status = 200, description = "The budget in force", body = PutAnswer<Budget>)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body<BudgetBody>,
) -> Result<Response, Problem> {
    let pattern = path::pattern_with_query(&uri, PREFIX)?;
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let circumstances = Circumstances::of(&headers)?;
    let terms = Terms::try_from(body)?;
    let body = BudgetBody::from(&terms);
    let shown = pattern.as_str().to_owned();
    let change = RuleChange::PutBudget { pattern, terms };
    let outcome = admin
        .change(change, circumstances, dry_run)
        .await
        .map_err(|problem| problem.at_if(Kind::NoSuchPolicy, "policy"))?;
    Ok(outcome.of_put(|version, tag| Budget {
        pattern: shown,
        body,
        version,
        etag: shown_tag(tag),
    }))
}

/// One budget, by its exact pattern.
#[utoipa::path(get, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "get_budget",
    params(("pattern" = String, Path, description = "The budget's pattern")),
    responses((status = 200, description = "The budget", body = Budget)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Tagged<Budget>, Problem> {
    let pattern = path::pattern(&uri, PREFIX)?;
    let found = admin
        .node
        .read(|ledger, _| {
            let view = ledger.budget_view(&pattern)?;
            Some(Tagged(view.tag, Budget::new(&pattern, view)))
        })
        .await?;
    found.ok_or_else(|| no_such(&pattern))
}

pub(super) fn no_such(pattern: &Pattern) -> Problem {
    Problem::new(
        Kind::NoSuchBudget,
        format!("no budget has the pattern {}", pattern.as_str()),
    )
}

/// Unbinds a pattern: no more grants by it. What is counted or outstanding stays
/// so until its normal expiry.
#[utoipa::path(delete, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "delete_budget",
    params(("pattern" = String, Path, description = "The budget's pattern"), Trial, ConditionHeaders),
    responses((status = 204, description = "Deleted"), (status = 200, description = "With dry_run=true", body = Foreseen)))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let pattern = path::pattern_with_query(&uri, PREFIX)?;
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let circumstances = Circumstances::of(&headers)?;
    let change = RuleChange::DeleteBudget { pattern };
    let outcome = admin.change(change, circumstances, dry_run).await?;
    Ok(outcome.of_delete())
}

/// All budgets.
#[utoipa::path(get, path = "/v1/budgets", tag = "budgets", operation_id = "list_budgets",
    responses((status = 200, description = "All budgets", body = BudgetList)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<BudgetList>, Problem> {
    path::no_query(&uri)?;
    let budgets = admin
        .node
        .read(|ledger, _| {
            let views = ledger.budget_views();
            views
                .map(|(pattern, view)| Budget::new(pattern, view))
                .collect()
        })
        .await?;
    Ok(Json(BudgetList { budgets }))
}
