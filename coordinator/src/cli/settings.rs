//! `leasehold settings`.

use clap::Subcommand;
use serde_json::{Map, Value};

use super::{
    Answer, CliError, Remote,
    http::{get, put},
    table::facts,
    text::plain,
};

#[derive(Debug, Subcommand)]
pub(super) enum SettingsCommand {
    /// The settings in force
    Get,
    /// Change settings, as in session_ttl_ms=10000 or default_policy=none
    Set {
        /// What to change; the rest stays as it is
        #[arg(required = true, value_name = "NAME=VALUE")]
        changes: Vec<String>,
    },
}

impl SettingsCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        let value = match self {
            Self::Get => get(remote, "/v1/settings").await?,
            Self::Set { changes } => put(remote, "/v1/settings", &edit(&changes)?).await?,
        };
        let empty = Map::new();
        let pairs: Vec<(&str, String)> = value
            .as_object()
            .unwrap_or(&empty)
            .iter()
            .map(|(name, value)| (name.as_str(), plain(value)))
            .collect();
        Ok(Answer {
            text: facts(&pairs),
            value,
        })
    }
}

fn edit(changes: &[String]) -> Result<Value, CliError> {
    let mut body = Map::new();
    for change in changes {
        let Some((name, text)) = change.split_once('=') else {
            return Err(CliError::Usage(format!(
                "{change}: write NAME=VALUE, as in session_ttl_ms=10000"
            )));
        };
        // The coordinator judges names and ranges; here only the JSON type is chosen.
        let value = match (name, text) {
            ("default_policy" | "preferred_leader_region", "none" | "") => Value::Null,
            ("default_policy" | "preferred_leader_region", name) => name.into(),
            (_, number) => number
                .parse::<u64>()
                .map_or_else(|_| number.into(), Value::from),
        };
        body.insert(name.to_owned(), value);
    }
    Ok(body.into())
}
