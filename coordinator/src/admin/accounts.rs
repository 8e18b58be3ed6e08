//! `/v1/accounts`: the books of one key, and all of them page by page.

use axum::{
    Json,
    extract::{OriginalUri, State},
    response::{IntoResponse, Response},
};
use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    outcome::{AccountView, Lifetime, PeriodView},
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Admin, corrections,
    json::millis_up,
    path,
    policy_body::PolicyBody,
    problem::{Kind, Problem},
    sessions::session_text,
};
use crate::shadowed::Shadowed;

pub(super) const PREFIX: &str = "/v1/accounts/";
/// A page is read in parts, since a reader holds up the next entry.
pub(super) const ACCOUNTS_PER_LOCK: usize = 100;

/// An account: `limit + debt = counted + outstanding + free`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Account {
    key: String,
    /// The pattern of the budget that it follows; null: its budget is gone.
    budget: Option<String>,
    /// The policy's name; null for one of the budget's own.
    policy: Option<String>,
    /// The rule in force.
    rule: PolicyBody,
    /// The limit, or a bucket's capacity, with what was carried over or added.
    limit: u64,
    /// Units that still use up the limit because they were spent.
    counted: u64,
    /// Units in leases, neither reported spent nor handed back.
    outstanding: u64,
    /// Units that can be granted now.
    free: u64,
    /// What is counted and outstanding above the limit.
    debt: u64,
    /// Of a total: how many units have to be added before anything is free, because more
    /// was used or taken by hand than there was; absent: it does not stand below zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    below_zero: Option<u64>,
    /// Milliseconds until time alone frees more units; null: nothing is due.
    next_free_ms: Option<u64>,
    /// The period that it is charged to now.
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<PeriodBody>,
    /// Milliseconds for which nothing is granted, because it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    cooling_ms: Option<u64>,
    /// Units that were freed by hand in all, or fewer; absent: none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    corrected: Option<i64>,
    /// How many leases it has.
    lease_count: usize,
    /// Totals over the account's life.
    lifetime: LifetimeBody,
}

/// An account and its leases.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AccountWithLeases {
    #[serde(flatten)]
    account: Account,
    /// Of a `shadow` policy: requests that it would have refused, since the present leader
    /// took over; it keeps them in memory, for 100,000 keys. Gateways tell of theirs with
    /// their reports. Absent: there were none, and the policy is no shadow.
    #[serde(skip_serializing_if = "Option::is_none")]
    shadowed: Option<u64>,
    /// Who holds what.
    leases: Vec<Lease>,
}

/// A calendar's present period.
#[derive(Debug, Serialize, ToSchema)]
struct PeriodBody {
    /// Grows by one with each period.
    number: u64,
    /// When it began by the clocks, in milliseconds since 1970.
    start_unix_ms: i64,
    /// When the next one begins by the clocks, in milliseconds since 1970.
    end_unix_ms: i64,
    /// Units beyond the limit that it has: carried over, or given by hand.
    carried: u64,
}

impl From<PeriodView> for PeriodBody {
    fn from(period: PeriodView) -> Self {
        Self {
            number: period.number,
            start_unix_ms: period.start_unix_us.div_euclid(1_000),
            end_unix_ms: period.end_unix_us.div_euclid(1_000),
            carried: period.carried,
        }
    }
}

/// Totals over an account's life.
#[derive(Debug, Serialize, ToSchema)]
struct LifetimeBody {
    /// Units granted to leases.
    granted: u64,
    /// Units reported spent.
    spent: u64,
    /// Units handed back unspent.
    returned: u64,
    /// Units of dead holders, presumed spent.
    presumed_spent: u64,
    /// Units spent by `POST /v1/spend`.
    central: u64,
    /// Units that reservations used beyond what they had reserved, and that were
    /// charged because they were free.
    extra: u64,
    /// Units that reservations used beyond what they had reserved, and that nothing
    /// was free for.
    overrun: u64,
}

/// One holder's lease.
#[derive(Debug, Serialize, ToSchema)]
struct Lease {
    holder: String,
    session: String,
    /// The log index that opened it.
    generation: u64,
    granted: u64,
    spent: u64,
    returned: u64,
    /// What the holder may still spend, as far as it has reported.
    outstanding: u64,
    /// Grants continue in this generation.
    current: bool,
    /// Milliseconds until its session expires, unless renewed.
    expires_in_ms: u64,
}

impl From<Lifetime> for LifetimeBody {
    fn from(lifetime: Lifetime) -> Self {
        let Lifetime {
            granted,
            spent,
            returned,
            presumed_spent,
            central,
            extra,
            overrun,
        } = lifetime;
        Self {
            granted,
            spent,
            returned,
            presumed_spent,
            central,
            extra,
            overrun,
        }
    }
}

impl Account {
    pub(super) fn new(view: &AccountView) -> Self {
        Self {
            key: view.key.as_str().to_owned(),
            budget: view.pattern.clone(),
            policy: view.policy_name.clone(),
            rule: (&view.policy).into(),
            limit: view.limit,
            counted: view.counted,
            outstanding: view.outstanding,
            free: view.free,
            debt: view.debt,
            below_zero: view.below_zero,
            next_free_ms: view.next_free_us.map(millis_up),
            period: view.period.map(PeriodBody::from),
            cooling_ms: view.cooling_us.map(millis_up),
            corrected: (view.corrections > 0).then_some(view.corrected),
            lease_count: view.leases.len(),
            lifetime: view.lifetime.into(),
        }
    }
}

impl AccountWithLeases {
    pub(super) fn new(view: &AccountView, now_us: u64, shadowed: &Shadowed) -> Self {
        let leases = view
            .leases
            .iter()
            .map(|lease| Lease {
                holder: lease.holder.clone(),
                session: session_text(lease.session),
                generation: lease.generation,
                granted: lease.granted_total,
                spent: lease.spent_total,
                returned: lease.returned_total,
                outstanding: lease
                    .granted_total
                    .saturating_sub(lease.spent_total)
                    .saturating_sub(lease.returned_total),
                current: lease.current,
                expires_in_ms: millis_up(lease.deadline_us.saturating_sub(now_us)),
            })
            .collect();
        let count = shadowed.of(&view.key);
        Self {
            account: Account::new(view),
            shadowed: (count > 0 || view.policy.shadow).then_some(count),
            leases,
        }
    }
}

/// What a key's account would follow once it is used.
enum Unused {
    NoBudget,
    Budget { pattern: String, policy: String },
}

/// The books of one key. One whose last segment is `corrections` is written with an escape
/// in it, as `a/%63orrections`: `/v1/accounts/a/corrections` is about the key `a`.
#[utoipa::path(get, path = "/v1/accounts/{*key}", tag = "accounts", operation_id = "get_account",
    params(("key" = String, Path, description = "The key; a slash within a segment is %2F")),
    responses((status = 200, description = "The account", body = AccountWithLeases)))]
pub(super) async fn get(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Response, Problem> {
    if corrections::is_asked_for(&uri) {
        return corrections::list(&admin, &uri).await;
    }
    let key = path::key(&uri, PREFIX)?;
    let found = admin
        .node
        .read(|ledger, now_us| match ledger.account(&key) {
            Some(view) => Ok(AccountWithLeases::new(&view, now_us, admin.node.shadowed())),
            None => Err(match ledger.resolve(&key) {
                None => Unused::NoBudget,
                Some((pattern, policy, _)) => Unused::Budget {
                    pattern: pattern.to_owned(),
                    policy: policy.unwrap_or("its own policy").to_owned(),
                },
            }),
        })
        .await?;
    found.map(|account| Json(account).into_response()).map_err(|unused| {
        let detail = match unused {
            Unused::NoBudget => format!("nothing of {key} is counted or outstanding, and no budget matches it"),
            Unused::Budget { pattern, policy } => format!(
                "nothing of {key} is counted or outstanding; its account appears with its next use, by budget \
                 {pattern} ({policy})"
            ),
        };
        Problem::new(Kind::NoSuchAccount, detail)
    })
}

/// Which accounts, and from where.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// Only keys that begin with this text, in canonical encoding.
    pub(super) prefix: Option<String>,
    /// How many at most: 1 to 1,000, 100 unless said otherwise.
    pub(super) limit: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

impl Page {
    /// The last key of the page before.
    pub(super) fn after(&self) -> Result<Option<Key>, Problem> {
        let after = self.cursor.as_deref().map(Key::parse).transpose();
        after.map_err(|error| {
            Problem::new(Kind::InvalidQuery, format!("cursor: {error}")).at("cursor")
        })
    }
}

/// One page of accounts, in the order of their keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AccountPage {
    accounts: Vec<Account>,
    /// Pass it as `cursor` for the next page; null: this is the last.
    next_cursor: Option<String>,
}

/// Accounts, page by page.
#[utoipa::path(get, path = "/v1/accounts", tag = "accounts", operation_id = "list_accounts", params(Page),
    responses((status = 200, description = "One page", body = AccountPage)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
) -> Result<Json<AccountPage>, Problem> {
    let page: Page = path::query(&uri)?;
    let limit = path::page_size(page.limit.as_deref())?;
    let after = page.after()?;
    let prefix = page.prefix.unwrap_or_default();
    // One more than asked for, to know whether there is a next page.
    let wanted = limit + 1;
    let take = |ledger: &Ledger, after: Option<&Key>, some: usize| -> Vec<AccountView> {
        ledger.accounts(&prefix, after, some.min(ACCOUNTS_PER_LOCK))
    };
    let mut views = admin
        .node
        .read(|ledger, _| take(ledger, after.as_ref(), wanted))
        .await?;
    let mut accounts: Vec<Account> = Vec::with_capacity(wanted);
    // The barrier above holds for what is read later, too.
    while let Some(last) = views.last().map(|view| view.key.clone()) {
        accounts.extend(views.iter().map(Account::new));
        views = admin
            .node
            .local(|ledger| take(ledger, Some(&last), wanted - accounts.len()));
    }
    let more = accounts.len() > limit;
    accounts.truncate(limit);
    let next_cursor = accounts
        .last()
        .filter(|_| more)
        .map(|account| account.key.clone());
    Ok(Json(AccountPage {
        accounts,
        next_cursor,
    }))
}
