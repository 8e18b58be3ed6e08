//! `/v1/explain`: why a key is admitted or refused now, who holds what, and when it frees.
//! `/v1/peek`: what is left, without spending. Neither changes anything.

use axum::{
    Json,
    extract::{OriginalUri, State},
    http::HeaderMap,
    response::{IntoResponse, Response},
};
use leasehold_key::Key;
use leasehold_ledger::{
    AfterRestore, Applies, Explanation,
    entry::Rule,
    outcome::{AccountView, Code, Refusal},
    policy::{Kind as PolicyKind, UNITS_MAX},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Admin,
    accounts::AccountWithLeases,
    corrections::CorrectionBody,
    json::millis_up,
    path,
    policy_body::PolicyBody,
    problem::{Kind, Problem},
    spend::{rate_limit, why},
};
use crate::shadowed::Shadowed;

/// What is asked about.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Asked {
    /// The key; a slash within a segment is %2F, and so %252F in a query.
    key: String,
    /// The units of the request; 1 unless said otherwise.
    units: Option<String>,
}

/// What is peeked at.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Peeked {
    /// The key; a slash within a segment is %2F, and so %252F in a query.
    key: String,
}

/// Everything that bears on one key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExplainBody {
    key: String,
    units: u64,
    /// Whether a request of so many units would be admitted now.
    admitted: bool,
    /// Why not, or why it would be refused were the policy no `shadow`; absent when
    /// there are enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<RefusalBody>,
    /// What applies.
    applies: AppliesName,
    /// Every budget whose pattern matches, the most specific first: that one applies.
    matching: Vec<Matching>,
    /// When nothing applies: patterns that match the most of the key's first segments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nearest: Vec<String>,
    /// The account is there; otherwise it appears with its first use, as it is shown.
    exists: bool,
    /// The books, with who holds what; null: no budget matches.
    account: Option<AccountWithLeases>,
    /// The next moments at which time alone frees units, nothing else happening.
    frees: Vec<FreeingBody>,
    /// The last few corrections by hand, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    corrections: Vec<CorrectionBody>,
    /// Nothing is free because the cluster was restored from a backup, and the one before
    /// may have spent it; absent otherwise. The remarks say what helps.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    after_restore: bool,
    /// What people should know of it, in sentences.
    remarks: Vec<String>,
}

/// A budget that matches.
#[derive(Debug, Serialize, ToSchema)]
struct Matching {
    pattern: String,
    /// The policy's name; absent: it has one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// The policy of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<PolicyBody>,
}

/// Where the rule comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum AppliesName {
    /// The most specific budget that matches.
    Budget,
    /// No budget matches: the `default_policy`.
    DefaultPolicy,
    /// No budget matches, and there is no default.
    Nothing,
    /// The budget is gone: what was used runs out by its last rule.
    Gone,
}

/// Why a request is refused.
#[derive(Debug, Serialize, ToSchema)]
struct RefusalBody {
    /// The stable code, as answers carry it.
    #[schema(example = "limit")]
    code: &'static str,
    /// For people.
    detail: String,
    /// When it is worth asking again; absent: time alone does not help.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    /// The policy only counts it: the request is admitted all the same.
    shadowed: bool,
}

/// Units that come free.
#[derive(Debug, Serialize, ToSchema)]
struct FreeingBody {
    /// In how many milliseconds.
    in_ms: u64,
    /// Units that no longer count then.
    units: u64,
    /// Units that are free then, if nothing else happens.
    free: u64,
}

/// What a key has left.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PeekBody {
    key: String,
    /// The limit now, with what was carried over or added; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
    /// Units that would be admitted now; absent: there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    /// Milliseconds until there may be more; 0: there is nothing to wait for.
    reset_ms: u64,
}

/// Why a request would be admitted or refused now, by which pattern and policy, who holds
/// what, and when units come free. Changes nothing.
#[utoipa::path(get, path = "/v1/explain", tag = "accounts", operation_id = "explain", params(Asked),
    responses((status = 200, description = "Everything that bears on the key", body = ExplainBody)))]
pub(super) async fn explain(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<ExplainBody>, Problem> {
    let asked: Asked = path::query(&uri)?;
    let key = key(&asked.key)?;
    let units = match asked
        .units
        .as_deref()
        .map(|text| (text, text.parse::<u64>()))
    {
        None => 1,
        Some((_, Ok(units))) if units <= UNITS_MAX => units,
        Some((text, _)) => {
            let detail = format!("units ({text}) must be a whole number from 0 to {UNITS_MAX}");
            return Err(Problem::new(Kind::InvalidQuery, detail).at("units"));
        }
    };
    let body = admin
        .node
        .read(|ledger, now_us| {
            let told = ledger.explain(&key, units, now_us);
            body(&key, units, &told, now_us, admin.node.shadowed())
        })
        .await?;
    Ok(Json(body))
}

/// What a key has left, and when there is more, without spending: with the headers of
/// `POST /v1/spend`.
#[utoipa::path(get, path = "/v1/peek", tag = "spend", operation_id = "peek", params(Peeked),
    responses((status = 200, description = "What is left", body = PeekBody,
        headers(("RateLimit" = String), ("RateLimit-Policy" = String)))))]
pub(super) async fn peek(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    let asked: Peeked = path::query(&uri)?;
    let key = key(&asked.key)?;
    let peek = admin
        .node
        .read(|ledger, now_us| ledger.peek(&key, now_us))
        .await?;
    let no_budget = || Problem::new(Kind::NoBudget, format!("no budget matches {key}"));
    let mut peek = peek.ok_or_else(no_budget)?;
    let policy = peek.outcome.policy.clone().ok_or_else(no_budget)?;
    if let Some(cooling_us) = peek.cooling_us {
        peek.outcome.free = 0;
        peek.outcome.reset_us = cooling_us;
    }
    let limited = !matches!(policy.kind, PolicyKind::Unlimited);
    let body = PeekBody {
        key: key.as_str().to_owned(),
        limit: limited.then_some(peek.limit),
        remaining: limited.then_some(peek.outcome.free),
        reset_ms: millis_up(peek.outcome.reset_us),
    };
    let headers: HeaderMap = rate_limit(&policy, &peek.outcome).into_iter().collect();
    Ok((headers, Json(body)).into_response())
}

fn key(text: &str) -> Result<Key, Problem> {
    Key::parse(text).map_err(|error| Problem::key(&error).at("key"))
}

fn body(
    key: &Key,
    units: u64,
    told: &Explanation,
    now_us: u64,
    shadowed: &Shadowed,
) -> ExplainBody {
    let refusal = told.outcome.refusal.or(told.outcome.shadowed);
    let why_not = |refusal: Refusal| RefusalBody {
        code: refusal.code.as_str(),
        detail: why(
            key,
            units,
            refusal.code,
            told.outcome.free,
            told.outcome.policy.as_deref(),
        ),
        retry_after_ms: refusal.retry_after_us.map(millis_up),
        shadowed: told.outcome.refusal.is_none(),
    };
    ExplainBody {
        key: key.as_str().to_owned(),
        units,
        admitted: told.outcome.refusal.is_none(),
        refusal: refusal.map(why_not),
        applies: match told.applies {
            Applies::Budget => AppliesName::Budget,
            Applies::DefaultPolicy => AppliesName::DefaultPolicy,
            Applies::Nothing => AppliesName::Nothing,
            Applies::Gone => AppliesName::Gone,
        },
        matching: told
            .matching
            .iter()
            .map(|(pattern, rule)| {
                let (policy, rule) = match rule {
                    Rule::Named(name) => (Some(name.clone()), None),
                    Rule::Inline(policy) => (None, Some(policy.into())),
                };
                let pattern = pattern.as_str().to_owned();
                Matching {
                    pattern,
                    policy,
                    rule,
                }
            })
            .collect(),
        nearest: told
            .nearest
            .iter()
            .map(|pattern| pattern.as_str().to_owned())
            .collect(),
        exists: told.exists,
        account: told
            .account
            .as_ref()
            .map(|view| AccountWithLeases::new(view, now_us, shadowed)),
        frees: told
            .frees
            .iter()
            .map(|freeing| FreeingBody {
                in_ms: millis_up(freeing.after_us),
                units: freeing.units,
                free: freeing.free,
            })
            .collect(),
        corrections: told.corrections.iter().map(CorrectionBody::from).collect(),
        after_restore: told.after_restore.is_some(),
        remarks: remarks(told, refusal, shadowed.of(key)),
    }
}

/// What people should know of it, in sentences.
fn remarks(told: &Explanation, refusal: Option<Refusal>, shadowed: u64) -> Vec<String> {
    let mut said = Vec::new();
    match told.applies {
        Applies::Gone => said.push(
            "its budget is gone: nothing is admitted, and what was used runs out by its last rule"
                .to_owned(),
        ),
        Applies::Nothing => said.push(match told.nearest.first() {
            Some(pattern) => format!(
                "no budget matches it, and there is no default_policy; the nearest pattern is {}",
                pattern.as_str()
            ),
            None => "no budget matches it, and there is no default_policy".to_owned(),
        }),
        Applies::Budget | Applies::DefaultPolicy => {}
    }
    if let Some(account) = &told.account {
        if account.policy.shadow {
            said.push(format!(
                "its policy is a shadow: what would be refused is counted and admitted; {shadowed} requests were \
                 since the present leader took over"
            ));
        }
        of_account(account, refusal, &mut said);
    }
    if let Some(restored) = told.after_restore {
        said.push(of_restore(restored));
    }
    if !told.exists && told.account.is_some() {
        said.push("it was not used lately: its account appears with its first use".to_owned());
    }
    said
}

/// What a restore left of it.
fn of_restore(restored: AfterRestore) -> String {
    let what = match restored {
        AfterRestore::FreesIn(after_us) => format!(
            "what the cluster before may have admitted counts for {} ms more before the first of it is free",
            millis_up(after_us)
        ),
        AfterRestore::UntilNextPeriod => {
            "the cluster before may have spent all of this period; the next one has its units, and a reset frees this one"
                .to_owned()
        }
        AfterRestore::ForGood => {
            "a total has only what was added to it since: adjust it by what it should have left".to_owned()
        }
    };
    format!("this cluster was restored from a backup: {what} (after_restore)")
}

fn of_account(account: &AccountView, refusal: Option<Refusal>, said: &mut Vec<String>) {
    let policy = &account.policy;
    if let Some(cooling_us) = account.cooling_us {
        said.push(format!(
            "it was refused, and cools down for {} ms more: nothing is admitted before, whatever is free",
            millis_up(cooling_us)
        ));
    }
    if policy.kind.limit() == 0 && account.limit == 0 {
        said.push("its limit is 0: everything is refused".to_owned());
    }
    if let Some(below_zero) = account.below_zero {
        said.push(format!(
            "it stands {below_zero} units below zero: so many have to be added before anything is free"
        ));
    } else if account.debt > 0 {
        said.push(format!(
            "{} units are used beyond the limit: nothing is free before they no longer count",
            account.debt
        ));
    }
    match &policy.kind {
        PolicyKind::Period { .. } if account.period.is_none() => said.push(
            "no period of its calendar has begun: one begins once a majority of the members' wall clocks say so"
                .to_owned(),
        ),
        PolicyKind::Period { .. } if account.free == 0 => {
            said.push("its period is used up: it waits for the next one".to_owned());
        }
        PolicyKind::Concurrency { .. } => said.push(
            "it has permits, which are held while they are used: POST /v1/spend does not spend them".to_owned(),
        ),
        PolicyKind::Estimate { .. } => said.push(
            "its gateways count by themselves and tell each other: the figures are what they told".to_owned(),
        ),
        _ => {}
    }
    let held = account.outstanding;
    let starved = refusal.is_some_and(|refusal| refusal.code == Code::Limit);
    if starved && held > 0 && !account.leases.is_empty() {
        said.push(format!(
            "{held} units are held by gateways: they come back as they are spent, handed back, or presumed spent when \
             a session expires"
        ));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use leasehold_key::Pattern;
    use leasehold_ledger::{
        Ledger,
        entry::{Command, Entry, Roll},
        policy::{Calendar, PeriodUnit, Policy},
    };

    use super::*;

    const DAY_US: i64 = 24 * 3_600_000_000;

    /// Budgets of three kinds in a cluster that begins from a backup, in the middle of a
    /// day.
    fn restored() -> Ledger {
        let days = Calendar {
            unit: PeriodUnit::Day,
            time_zone: "UTC".to_owned(),
            anchor: 0,
            anchor_month: 0,
        };
        let kinds = [
            (
                "window",
                PolicyKind::SlidingWindow {
                    limit: 5,
                    window_us: 60_000_000,
                },
            ),
            (
                "period",
                PolicyKind::Period {
                    limit: 5,
                    calendar: days.clone(),
                    carry_over: 0,
                },
            ),
            ("total", PolicyKind::Total { limit: 5 }),
        ];
        let mut ledger = Ledger::new();
        let commands = kinds.map(|(name, kind)| Command::PutBudget {
            pattern: Pattern::parse(name).unwrap(),
            rule: Rule::Inline(Policy::new(kind)),
        });
        let entry = Entry {
            now_us: 1_000_000,
            rolls: vec![Roll {
                calendar: days,
                start_unix_us: DAY_US,
                end_unix_us: 2 * DAY_US,
                ends_in_us: 1_000_000_000,
            }],
            commands: commands.into(),
            ..Entry::default()
        };
        ledger.apply(1, &entry);
        ledger.restored(7, 0).0
    }

    #[test]
    fn what_a_restore_left_is_said_with_what_helps() {
        let ledger = restored();
        for (name, helps) in [
            (
                "window",
                "ms more before the first of it is free (after_restore)",
            ),
            (
                "period",
                "the next one has its units, and a reset frees this one (after_restore)",
            ),
            (
                "total",
                "adjust it by what it should have left (after_restore)",
            ),
        ] {
            let key = Key::parse(name).unwrap();
            let now_us = ledger.now_us();
            let told = ledger.explain(&key, 1, now_us);
            let body = body(&key, 1, &told, now_us, &Shadowed::default());
            assert!(body.after_restore && !body.admitted, "{body:?}");
            assert!(
                body.remarks.iter().any(|remark| remark.ends_with(helps)),
                "{name}: {:?}",
                body.remarks
            );
        }
        let fresh = Ledger::new();
        let key = Key::parse("total").unwrap();
        let told = fresh.explain(&key, 1, 1);
        assert!(!body(&key, 1, &told, 1, &Shadowed::default()).after_restore);
    }
}
