//! `leasehold account` and `leasehold spend`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Answer, CliError, Remote,
    http::{get, post},
    table::{facts, table},
    text::{duration_field, encoded, field, items, key_path, rule},
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
                let value = get(remote, &key_path("/v1/accounts/", &key)?).await?;
                Ok(Answer {
                    text: one_account(&value),
                    value,
                })
            }
        }
    }
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

fn one_account(account: &Value) -> String {
    let lifetime = account.get("lifetime").unwrap_or(&Value::Null);
    let mut text = facts(&[
        ("key", field(account, "key")),
        ("budget", field(account, "budget")),
        ("policy", field(account, "policy")),
        ("rule", rule(account.get("rule").unwrap_or(&Value::Null))),
        ("limit", field(account, "limit")),
        ("counted", field(account, "counted")),
        ("outstanding", field(account, "outstanding")),
        ("free", field(account, "free")),
        ("debt", field(account, "debt")),
        ("more free in", duration_field(account, "next_free_ms")),
        (
            "lifetime",
            format!(
                "granted {}, spent {}, returned {}, presumed spent {}, central {}",
                field(lifetime, "granted"),
                field(lifetime, "spent"),
                field(lifetime, "returned"),
                field(lifetime, "presumed_spent"),
                field(lifetime, "central"),
            ),
        ),
    ]);
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
pub(super) async fn spend(remote: &Remote, key: &str, units: u64) -> Result<Answer, CliError> {
    let reply = post(remote, "/v1/spend", &json!({ "key": key, "units": units })).await?;
    let header = |name: &str| {
        reply
            .headers
            .get(name)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let text = format!(
        "admitted {} of {}, {} free ({})",
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
