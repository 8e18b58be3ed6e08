//! `leasehold account reset`, `adjust` and `corrections`: support's button.

use serde_json::{Value, json};

use super::{
    Answer, CliError, Remote,
    accounts::one_account,
    http::{get, post},
    table::table,
    text::{field, items, key_path, moment_field},
};

const ACCOUNTS: &str = "/v1/accounts/";

pub(super) async fn reset(
    remote: &Remote,
    key: &str,
    reason: &str,
    id: Option<&str>,
) -> Result<Answer, CliError> {
    let mut body = json!({ "reason": reason });
    if let Some(id) = id {
        body["id"] = id.into();
    }
    correct(remote, key, "reset", &body).await
}

pub(super) async fn adjust(
    remote: &Remote,
    key: &str,
    units: i64,
    id: &str,
    reason: &str,
) -> Result<Answer, CliError> {
    let body = json!({ "id": id, "units": units, "reason": reason });
    correct(remote, key, "adjust", &body).await
}

async fn correct(
    remote: &Remote,
    key: &str,
    action: &str,
    body: &Value,
) -> Result<Answer, CliError> {
    let path = format!("{}/{action}", key_path(ACCOUNTS, key)?);
    let value = post(remote, &path, body).await?.body;
    Ok(Answer {
        text: done(&value),
        value,
    })
}

fn done(value: &Value) -> String {
    let effect = value.get("effect").and_then(Value::as_i64).unwrap_or(0);
    let account = value.get("account").filter(|account| account.is_object());
    let below_zero = account.and_then(|account| account.get("below_zero")?.as_u64());
    let what = match (effect, below_zero) {
        (effect, Some(below_zero)) => {
            format!(
                "{effect:+} units, and it still stands {below_zero} below zero: nothing is free"
            )
        }
        (effect, None) => effect_text(effect),
    };
    let when = match value.get("repeated").and_then(Value::as_bool) {
        Some(true) => " (it was done before: nothing changed now)",
        _ => "",
    };
    let mut text = format!("correction {}: {what}{when}", field(value, "id"));
    if let Some(account) = account {
        text.push_str("\n\n");
        text.push_str(&one_account(account));
    }
    text
}

fn effect_text(effect: i64) -> String {
    match effect {
        0 => "nothing was counted".to_owned(),
        1.. => format!("{effect} more units are free"),
        _ => format!("{} fewer units are free", effect.unsigned_abs()),
    }
}

pub(super) async fn list(
    remote: &Remote,
    key: &str,
    limit: u32,
    cursor: Option<&str>,
) -> Result<Answer, CliError> {
    let mut path = format!("{}/corrections?limit={limit}", key_path(ACCOUNTS, key)?);
    if let Some(cursor) = cursor {
        path.push_str(&format!("&cursor={}", super::text::encoded(cursor)));
    }
    let value = get(remote, &path).await?;
    Ok(Answer {
        text: history(&value),
        value,
    })
}

/// A table of corrections, the newest first.
pub(super) fn history(value: &Value) -> String {
    let rows: Vec<Vec<String>> = items(value, "corrections")
        .iter()
        .map(|correction| {
            let change = match correction.get("units").and_then(Value::as_i64) {
                Some(units) => format!("{units:+}"),
                None => field(correction, "change"),
            };
            vec![
                moment_field(correction, "at_unix_ms"),
                field(correction, "id"),
                change,
                correction
                    .get("effect")
                    .and_then(Value::as_i64)
                    .map_or_else(|| "-".to_owned(), |effect| format!("{effect:+}")),
                field(correction, "by"),
                field(correction, "reason"),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "nothing was corrected".to_owned();
    }
    let mut text = table(&["WHEN", "ID", "CHANGE", "EFFECT", "BY", "REASON"], &rows);
    if let Some(cursor) = value.get("next_cursor").and_then(Value::as_str) {
        text.push_str(&format!("\nolder: --cursor {cursor}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_says_when_what_by_whom_and_why() {
        let value = json!({"key": "a", "next_cursor": "1", "corrections": [
            {"id": "o-2", "change": "adjust", "units": -20, "effect": -20, "reason": "refunded",
             "by": "zoe", "at_unix_ms": 1_774_738_800_123_i64},
            {"id": "o-1", "change": "reset", "effect": 7, "reason": "ticket 4711", "by": "",
             "at_unix_ms": 0},
        ]});
        let text = history(&value);
        let expected = "\
WHEN                  ID   CHANGE  EFFECT  BY   REASON
2026-03-28T23:00:00Z  o-2  -20     -20     zoe  refunded
1970-01-01T00:00:00Z  o-1  reset   +7      -    ticket 4711
older: --cursor 1";
        assert_eq!(text, expected);
        assert_eq!(history(&json!({})), "nothing was corrected");
    }

    #[test]
    fn what_was_done_is_said_in_words() {
        let said = |effect: i64, repeated: bool| {
            done(&json!({"id": "x", "effect": effect, "repeated": repeated}))
        };
        assert_eq!(said(0, false), "correction x: nothing was counted");
        assert_eq!(said(5, false), "correction x: 5 more units are free");
        let below_zero = json!({"id": "x", "effect": 5, "repeated": false,
                                "account": {"key": "a", "below_zero": 13, "lifetime": {}}});
        let text = done(&below_zero);
        let first = "correction x: +5 units, and it still stands 13 below zero: nothing is free\n";
        assert!(text.starts_with(first), "{text}");
        let row = "below zero    13 units have to be added before anything is free\n";
        assert!(text.contains(row), "{text}");
        assert_eq!(
            said(-5, true),
            "correction x: 5 fewer units are free (it was done before: nothing changed now)"
        );
    }
}
