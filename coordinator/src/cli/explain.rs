//! `leasehold policy explain`: why a key is admitted or refused now.

use serde_json::Value;

use super::{
    Answer, CliError, Remote,
    accounts::one_account,
    corrections::history,
    http::get,
    table::table,
    text::{encoded, field, items, plain, rule, wait_field},
};

pub(super) async fn explain(remote: &Remote, key: &str, units: u64) -> Result<Answer, CliError> {
    let path = format!("/v1/explain?key={}&units={units}", encoded(key));
    let value = get(remote, &path).await?;
    Ok(Answer {
        text: told(&value),
        value,
    })
}

fn told(value: &Value) -> String {
    let mut parts = vec![verdict(value)];
    let remarks: Vec<String> = items(value, "remarks").iter().map(plain).collect();
    if !remarks.is_empty() {
        parts.push(remarks.join("\n"));
    }
    parts.push(patterns(value));
    if let Some(account) = value.get("account").filter(|account| account.is_object()) {
        parts.push(one_account(account));
    }
    let frees: Vec<Vec<String>> = items(value, "frees")
        .iter()
        .map(|freeing| {
            vec![
                wait_field(freeing, "in_ms"),
                field(freeing, "units"),
                field(freeing, "free"),
            ]
        })
        .collect();
    if !frees.is_empty() {
        parts.push(table(&["FREES IN", "UNITS", "THEN FREE"], &frees));
    }
    if !items(value, "corrections").is_empty() {
        parts.push(history(value));
    }
    parts.join("\n\n")
}

fn verdict(value: &Value) -> String {
    let (key, units) = (field(value, "key"), field(value, "units"));
    let admitted = value.get("admitted").and_then(Value::as_bool) == Some(true);
    let Some(refusal) = value.get("refusal") else {
        return format!("{key}: {units} would be admitted now");
    };
    let retry = match wait_field(refusal, "retry_after_ms") {
        never if never == "-" => "time alone does not help".to_owned(),
        after => format!("try again in {after}"),
    };
    let what = if admitted {
        "would be refused, and is only counted"
    } else {
        "would be refused now"
    };
    format!(
        "{key}: {units} {what}: {}; {retry} ({})",
        field(refusal, "detail"),
        field(refusal, "code")
    )
}

/// Which patterns match, and which of them applies.
fn patterns(value: &Value) -> String {
    let applies = field(value, "applies");
    let rows: Vec<Vec<String>> = (0..)
        .zip(items(value, "matching"))
        .map(|(place, matching)| {
            let policy = match matching.get("rule") {
                Some(own) => rule(own),
                None => field(matching, "policy"),
            };
            let mark = if place == 0 && applies == "budget" {
                "applies"
            } else {
                "-"
            };
            vec![field(matching, "pattern"), policy, mark.to_owned()]
        })
        .collect();
    if !rows.is_empty() {
        return table(&["MATCHING", "POLICY", ""], &rows);
    }
    let nearest: Vec<String> = items(value, "nearest").iter().map(plain).collect();
    match applies.as_str() {
        "default_policy" => "no pattern matches: the default_policy applies".to_owned(),
        _ if nearest.is_empty() => "no pattern matches".to_owned(),
        _ => format!("no pattern matches; the nearest: {}", nearest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_says_first_whether_and_why_and_what_to_do() {
        let value = json!({
            "key": "acme/orders", "units": 3, "admitted": false,
            "refusal": {"code": "limit", "detail": "acme/orders has 1 units free now, and 3 were asked for",
                        "retry_after_ms": 7_000, "shadowed": false},
            "applies": "budget",
            "matching": [{"pattern": "acme/orders", "policy": "gold"},
                         {"pattern": "**", "rule": {"kind": "sliding_window", "limit": 5, "window_ms": 1_000}}],
            "exists": true, "account": null,
            "frees": [{"in_ms": 7_000, "units": 2, "free": 3}],
            "remarks": ["99 units are held by gateways"],
        });
        let expected = "\
acme/orders: 3 would be refused now: acme/orders has 1 units free now, and 3 were asked for; try again in 7s (limit)

99 units are held by gateways

MATCHING     POLICY
acme/orders  gold         applies
**           5 in any 1s  -

FREES IN  UNITS  THEN FREE
      7s      2          3";
        assert_eq!(told(&value), expected);
    }

    #[test]
    fn a_key_without_a_budget_is_told_what_is_near() {
        let value = json!({
            "key": "acme/ordres", "units": 1, "admitted": false, "applies": "nothing",
            "refusal": {"code": "no_budget", "detail": "no budget matches acme/ordres", "shadowed": false},
            "matching": [], "nearest": ["acme/orders", "acme/users/*"], "frees": [], "remarks": [],
            "account": null,
        });
        let expected = "\
acme/ordres: 1 would be refused now: no budget matches acme/ordres; time alone does not help (no_budget)

no pattern matches; the nearest: acme/orders, acme/users/*";
        assert_eq!(told(&value), expected);
    }
}
