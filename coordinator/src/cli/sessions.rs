//! `leasehold session`.

use clap::Subcommand;
use serde_json::Value;

use super::{
    Answer, CliError, Remote,
    http::{delete, get},
    table::table,
    text::{duration_field, encoded, field, items},
};

#[derive(Debug, Subcommand)]
pub(super) enum SessionCommand {
    /// Sessions, page by page
    List {
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: u32,
        /// next_cursor of the page before
        #[arg(long)]
        cursor: Option<String>,
    },
    /// One session
    Get {
        /// 32 hexadecimal digits
        id: String,
    },
    /// End a session: no grants and no renewal; its units expire as usual
    End {
        /// 32 hexadecimal digits
        id: String,
    },
}

impl SessionCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::List { limit, cursor } => {
                let mut path = format!("/v1/sessions?limit={limit}");
                if let Some(cursor) = cursor {
                    path.push_str(&format!("&cursor={}", encoded(&cursor)));
                }
                let value = get(remote, &path).await?;
                let mut text = session_table(items(&value, "sessions"));
                if let Some(cursor) = value.get("next_cursor").and_then(Value::as_str) {
                    text.push_str(&format!("\nmore: --cursor {cursor}"));
                }
                Ok(Answer { text, value })
            }
            Self::Get { id } => {
                let value = get(remote, &format!("/v1/sessions/{}", encoded(&id))).await?;
                Ok(Answer {
                    text: session_table(std::slice::from_ref(&value)),
                    value,
                })
            }
            Self::End { id } => {
                let value = delete(remote, &format!("/v1/sessions/{}", encoded(&id))).await?;
                let text =
                    format!("session {id} is ended; its units stay outstanding until its deadline");
                Ok(Answer { text, value })
            }
        }
    }
}

fn session_table(sessions: &[Value]) -> String {
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|session| {
            vec![
                field(session, "id"),
                field(session, "holder"),
                duration_field(session, "age_ms"),
                duration_field(session, "expires_in_ms"),
                field(session, "lease_count"),
                field(session, "ended"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "no sessions: none of the gateways is connected".to_owned();
    }
    table(
        &["ID", "HOLDER", "AGE", "EXPIRES IN", "LEASES", "ENDED"],
        &rows,
    )
}
