//! `/v1/budgets`: which keys follow which policy.

use std::fmt;

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::StatusCode,
};
use leasehold_ledger::{
    entry::{Command, Rule},
    policy::Policy,
};
use serde::{Deserialize, Deserializer, Serialize, de};
use utoipa::ToSchema;

use super::{
    Admin,
    json::{self, Body},
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
}

/// A policy's name, or a policy of the budget's own.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum RuleBody {
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
        .and_then(|body| Rule::try_from(body.policy))
        .is_ok()
}

/// A budget and its pattern, in canonical encoding.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Budget {
    pattern: String,
    policy: RuleBody,
}

/// All budgets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetList {
    budgets: Vec<Budget>,
}

/// Binds a pattern to a policy. The most specific pattern wins, segment by
/// segment from the left: literal, longest prefix, `*`, `**`.
#[utoipa::path(put, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "put_budget",
    params(("pattern" = String, Path, description = "A key whose segments may be * or end in *, and whose last may be **")),
    request_body = BudgetBody, responses((status = 200, description = "The budget in force", body = Budget)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    Body(body): Body<BudgetBody>,
) -> Result<Json<Budget>, Problem> {
    let pattern = path::pattern(&uri, PREFIX)?;
    let rule = Rule::try_from(body.policy)?;
    let policy = RuleBody::from(&rule);
    let shown = pattern.as_str().to_owned();
    admin
        .submit(Command::PutBudget { pattern, rule })
        .await
        .map_err(|problem| problem.at_if(Kind::NoSuchPolicy, "policy"))?;
    Ok(Json(Budget {
        pattern: shown,
        policy,
    }))
}

/// One budget, by its exact pattern.
#[utoipa::path(get, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "get_budget",
    params(("pattern" = String, Path, description = "The budget's pattern")),
    responses((status = 200, description = "The budget", body = Budget)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<Budget>, Problem> {
    let pattern = path::pattern(&uri, PREFIX)?;
    let found = admin
        .node
        .read(|ledger, _| ledger.budget(&pattern).map(RuleBody::from))
        .await?;
    let policy = found.ok_or_else(|| {
        Problem::new(
            Kind::NoSuchBudget,
            format!("no budget has the pattern {}", pattern.as_str()),
        )
    })?;
    Ok(Json(Budget {
        pattern: pattern.as_str().to_owned(),
        policy,
    }))
}

/// Unbinds a pattern: no more grants by it. What is counted or outstanding stays
/// so until its normal expiry.
#[utoipa::path(delete, path = "/v1/budgets/{*pattern}", tag = "budgets", operation_id = "delete_budget",
    params(("pattern" = String, Path, description = "The budget's pattern")),
    responses((status = 204, description = "Deleted")))]
pub(super) async fn delete(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<StatusCode, Problem> {
    let pattern = path::pattern(&uri, PREFIX)?;
    admin.submit(Command::DeleteBudget { pattern }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All budgets.
#[utoipa::path(get, path = "/v1/budgets", tag = "budgets", operation_id = "list_budgets",
    responses((status = 200, description = "All budgets", body = BudgetList)))]
pub(super) async fn list(State(admin): State<Admin>) -> Result<Json<BudgetList>, Problem> {
    let budgets = admin
        .node
        .read(|ledger, _| {
            ledger
                .budgets()
                .into_iter()
                .map(|(pattern, rule)| Budget {
                    pattern: pattern.as_str().to_owned(),
                    policy: rule.into(),
                })
                .collect()
        })
        .await?;
    Ok(Json(BudgetList { budgets }))
}
