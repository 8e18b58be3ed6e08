//! `PUT /v1/budgets`: many budgets in one request, all of them or none. Does not know
//! how a budget is followed.

use std::collections::{BTreeMap, BTreeSet};

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use leasehold_key::Pattern;
use leasehold_ledger::{
    edit::{CHANGES_MAX, Expect, Guarded, RuleChange, Terms},
    outcome::CommandRefusal,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{
    Admin,
    budgets::RuleBody,
    edit::{self, Circumstances, ConditionHeaders, Outcome, PutAnswer, Trial, parse_tag},
    json::{self, Body, Whole},
    path,
    problem::{Kind, Problem},
};

/// Up to 10,000 budgets.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"budgets": [{"pattern": "api-key/*/**", "policy": "free"}, {"pattern": "api-key/k1/**", "policy": "pro"}]}))]
pub(super) struct BudgetsBody {
    budgets: Vec<BulkBudget>,
}

/// One of many budgets.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct BulkBudget {
    pattern: String,
    policy: RuleBody,
    /// Accounts alive at once, up to 10,000,000; what the settings say unless said
    /// otherwise.
    #[serde(default)]
    accounts_max: Option<Whole>,
    /// The etag that it must still have; null: it must not be there yet; absent: whatever
    /// there is.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "00c0ffee00c0ffee")]
    etag: Option<Option<String>>,
}

/// Tells `null` from absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

/// What became of many budgets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BudgetsPut {
    /// All of them are in force.
    budgets: usize,
    /// Those of them that were otherwise before.
    changed: usize,
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<BudgetsBody>(bytes).and_then(changes).is_ok()
}

/// Which of the budgets it is about.
fn place(number: usize) -> String {
    format!("budgets[{number}]")
}

fn changes(body: BudgetsBody) -> Result<Vec<Guarded>, Problem> {
    let many = body.budgets.len();
    if many > CHANGES_MAX {
        return Err(Problem::field(
            "budgets",
            format!("budgets ({many}) must be at most {CHANGES_MAX} in one request: split them"),
        ));
    }
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    let budgets = body.budgets.into_iter().enumerate();
    budgets
        .map(|(number, budget)| {
            let guarded = change(budget).map_err(|problem| problem.within(&place(number)))?;
            if let RuleChange::PutBudget { pattern, .. } = &guarded.change
                && let Some(first) = places.insert(pattern.as_str().to_owned(), number)
            {
                let text = format!(
                    "pattern ({}) is that of {} too",
                    pattern.as_str(),
                    place(first)
                );
                return Err(Problem::field("pattern", text).within(&place(number)));
            }
            Ok(guarded)
        })
        .collect()
}

fn change(budget: BulkBudget) -> Result<Guarded, Problem> {
    let pattern =
        Pattern::parse(&budget.pattern).map_err(|error| Problem::pattern(&error).at("pattern"))?;
    let expect = match budget.etag {
        None => Expect::Anything,
        Some(None) => Expect::Absent,
        Some(Some(text)) => {
            let tag = parse_tag(&text).ok_or_else(|| {
                let what = format!("etag ({text}) must be 16 hexadecimal digits, or null");
                Problem::field("etag", what)
            })?;
            Expect::OneOf(vec![tag])
        }
    };
    let terms = Terms {
        rule: budget.policy.try_into()?,
        accounts_max: budget.accounts_max.map(|Whole(most)| most),
    };
    Ok(Guarded {
        change: RuleChange::PutBudget { pattern, terms },
        expect,
    })
}

/// The ledger's refusal of one of them.
fn refused(refusal: CommandRefusal, news: &BTreeSet<usize>) -> Problem {
    let (number, why) = match refusal {
        CommandRefusal::OneOfMany { place, why } => (place, *why),
        why => (0, why),
    };
    let problem = edit::refused(why, news.contains(&number)).at_if(Kind::NoSuchPolicy, "policy");
    problem
        .at_if(Kind::PreconditionFailed, "etag")
        .within(&place(number))
}

/// Binds up to 10,000 patterns at once, in one step: all of them or, when one cannot be,
/// none; `field` says which one. Budgets that are not named stay as they are.
#[utoipa::path(put, path = "/v1/budgets", tag = "budgets", operation_id = "put_budgets", params(Trial, ConditionHeaders),
    request_body = BudgetsBody, responses((status = 200, description = "All are in force", body = PutAnswer<BudgetsPut>)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(body): Body<BudgetsBody>,
) -> Result<Response, Problem> {
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let Circumstances { by, .. } = Circumstances::of_many(&headers)?;
    let changes = changes(body)?;
    let news = (0..)
        .zip(&changes)
        .filter(|(_, change)| change.expect == Expect::Absent);
    let news: BTreeSet<usize> = news.map(|(number, _)| number).collect();
    let done = admin.edit(changes, by, dry_run).await?;
    let answer = match done.map_err(|refusal| refused(refusal, &news))? {
        Outcome::Foreseen(foreseen) => PutAnswer::Foreseen(foreseen),
        Outcome::Made(edited) => PutAnswer::Made(BudgetsPut {
            budgets: edited.len(),
            changed: edited.iter().filter(|one| one.changed).count(),
        }),
    };
    Ok(Json(answer).into_response())
}
