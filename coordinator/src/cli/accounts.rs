//! `leasehold account` and `leasehold spend`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Answer, CliError, Remote, corrections,
    http::{get, post, post_with},
    table::{facts, table},
    text::{duration_field, encoded, field, items, key_path, moment_field, rule, wait_field},
};

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Accounts, page by page
    List {
        /// Only keys that begin with this
        #[arg(long)]
        prefix: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// next_cursor of the page before
        #[arg(long)]
        cursor: Option<String>,
    },
    /// The books of one key, with who holds what
    Get {
        /// The key; a slash within a segment is %2F
        key: String,
    },
    /// Unblock a customer now: count nothing of the key any more. What is outstanding stays so
    Reset {
        /// The key; a slash within a segment is %2F
        key: String,
        /// Why, for whoever reads the history
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Names this reset: the same again changes nothing [default: drawn at random]
        #[arg(long)]
        id: Option<String>,
    },
    /// Free units, as in 500, or count more, as in -500. Of a total: top it up, or take from it
    Adjust {
        /// The key; a slash within a segment is %2F
        key: String,
        /// How many units to free; below 0: to count
        #[arg(allow_negative_numbers = true)]
        units: i64,
        /// Names this adjustment: the same again changes nothing
        #[arg(long)]
        id: String,
        /// Why, for whoever reads the history
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// What was corrected by hand: when, what, by whom and why, the newest first
    Corrections {
        /// The key; a slash within a segment is %2F
        key: String,
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// next_cursor of the page before
        #[arg(long)]
        cursor: Option<String>,
    },
}

impl AccountCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::List {
                prefix,
                limit,
                cursor,
            } => {
                let mut path = format!("/v1/accounts?limit={limit}");
                for (name, value) in [("prefix", prefix), ("cursor", cursor)] {
                    if let Some(value) = value {
                        path.push_str(&format!("&{name}={}", encoded(&value)));
                    }
                }
                let value = get(remote, &path).await?;
                Ok(Answer {
                    text: account_table(&value),
                    value,
                })
            }
            Self::Get { key } => {
                let value = get(remote, &account_path(&key)?).await?;
                Ok(Answer {
                    text: one_account(&value),
                    value,
                })
            }
            Self::Reset { key, reason, id } => {
                corrections::reset(remote, &key, &reason, id.as_deref()).await
            }
            Self::Adjust {
                key,
                units,
                id,
                reason,
            } => corrections::adjust(remote, &key, units, &id, &reason).await,
            Self::Corrections { key, limit, cursor } => {
                corrections::list(remote, &key, limit, cursor.as_deref()).await
            }
        }
    }
}

/// Where an account is read: a last segment `corrections` would mean its history.
fn account_path(key: &str) -> Result<String, CliError> {
    let path = key_path("/v1/accounts/", key)?;
    Ok(match path.strip_suffix("/corrections") {
        Some(before) => format!("{before}/%63orrections"),
        None => path,
    })
}

fn account_table(page: &Value) -> String {
    let rows: Vec<Vec<String>> = items(page, "accounts")
        .iter()
        .map(|account| {
            vec![
                field(account, "key"),
                rule(account.get("rule").unwrap_or(&Value::Null)),
                field(account, "counted"),
                field(account, "outstanding"),
                field(account, "free"),
                field(account, "lease_count"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no accounts: one appears when a key is first used".to_owned();
    }
    let mut text = table(
        &["KEY", "RULE", "COUNTED", "OUTSTANDING", "FREE", "LEASES"],
        &rows,
    );
    if let Some(cursor) = page.get("next_cursor").and_then(Value::as_str) {
        text.push_str(&format!("\nmore: --cursor {cursor}"));
    }
    text
}

/// The books of one key.
pub(super) fn one_account(account: &Value) -> String {
    let lifetime = account.get("lifetime").unwrap_or(&Value::Null);
    let mut pairs = vec![
        ("key", field(account, "key")),
        ("budget", field(account, "budget")),
        ("policy", field(account, "policy")),
        ("rule", rule(account.get("rule").unwrap_or(&Value::Null))),
        ("limit", field(account, "limit")),
        ("counted", field(account, "counted")),
        ("outstanding", field(account, "outstanding")),
        ("free", field(account, "free")),
        ("debt", field(account, "debt")),
        ("more free in", wait_field(account, "next_free_ms")),
    ];
    if let Some(period) = account.get("period") {
        pairs.push((
            "period",
            format!(
                "{} to {}, {} carried over or added",
                moment_field(period, "start_unix_ms"),
                moment_field(period, "end_unix_ms"),
                field(period, "carried"),
            ),
        ));
    }
    if account.get("below_zero").is_some() {
        let below_zero = field(account, "below_zero");
        let what = format!("{below_zero} units have to be added before anything is free");
        pairs.push(("below zero", what));
    }
    if account.get("shadowed").is_some() {
        let shadowed = field(account, "shadowed");
        let what =
            format!("{shadowed} requests would have been refused since the leader took over");
        pairs.push(("shadow", what));
    }
    if account.get("cooling_ms").is_some() {
        let cooling = wait_field(account, "cooling_ms");
        pairs.push(("cooling down", format!("refused for {cooling}")));
    }
    if let Some(corrected) = account.get("corrected").and_then(Value::as_i64) {
        pairs.push(("corrected", format!("{corrected:+} by hand")));
    }
    let beyond = |name: &str| lifetime.get(name).and_then(Value::as_u64).unwrap_or(0);
    if beyond("overrun") > 0 || beyond("extra") > 0 {
        pairs.push((
            "overrun",
            format!(
                "{} used beyond reservations and never admitted, {} that were free and charged",
                beyond("overrun"),
                beyond("extra"),
            ),
        ));
    }
    pairs.extend([(
        "lifetime",
        format!(
            "granted {}, spent {}, returned {}, presumed spent {}, central {}",
            field(lifetime, "granted"),
            field(lifetime, "spent"),
            field(lifetime, "returned"),
            field(lifetime, "presumed_spent"),
            field(lifetime, "central"),
        ),
    )]);
    let mut text = facts(&pairs);
    let rows: Vec<Vec<String>> = items(account, "leases")
        .iter()
        .map(|lease| {
            vec![
                field(lease, "holder"),
                field(lease, "session"),
                field(lease, "generation"),
                field(lease, "granted"),
                field(lease, "spent"),
                field(lease, "returned"),
                field(lease, "outstanding"),
                duration_field(lease, "expires_in_ms"),
            ]
        })
        .collect();
    if !rows.is_empty() {
        text.push_str("\n\n");
        text.push_str(&table(
            &[
                "HOLDER",
                "SESSION",
                "GENERATION",
                "GRANTED",
                "SPENT",
                "RETURNED",
                "OUTSTANDING",
                "EXPIRES IN",
            ],
            &rows,
        ));
    }
    text
}

/// Spends centrally; a denial is an error, so that scripts can test for it.
pub(super) async fn spend(
    remote: &Remote,
    key: &str,
    units: u64,
    once: Option<&str>,
) -> Result<Answer, CliError> {
    let body = json!({ "key": key, "units": units });
    let reply = match once {
        None => post(remote, "/v1/spend", &body).await?,
        Some(once) => post_with(remote, "/v1/spend", &body, ("idempotency-key", once)).await?,
    };
    let header = |name: &str| {
        reply
            .headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let flag = |name: &str| reply.body.get(name).is_some_and(|value| !value.is_null());
    let remark = match reply.body.get("shadowed") {
        Some(shadowed) => format!(
            "\nonly counted, since the policy is a shadow: {} ({})",
            field(shadowed, "detail"),
            field(shadowed, "code")
        ),
        None if flag("repeated") => "\nit was admitted before: nothing was charged now".to_owned(),
        None => String::new(),
    };
    let text = format!(
        "admitted {} of {}, {} free ({}){remark}",
        field(&reply.body, "units"),
        field(&reply.body, "key"),
        field(&reply.body, "free"),
        header("ratelimit-policy"),
    );
    Ok(Answer {
        text,
        value: reply.body,
    })
}
