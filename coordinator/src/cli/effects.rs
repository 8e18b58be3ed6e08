//! What a dry run says, for people. Knows nothing of what is tried.

use serde_json::Value;

use super::text::{field, items};

/// What a change would do.
pub(super) fn effects(foreseen: &Value) -> String {
    let number = |name: &str| foreseen.get(name).and_then(Value::as_u64).unwrap_or(0);
    if number("changes") == 0 {
        return "nothing would change".to_owned();
    }
    let accounts = |many: u64| match many {
        1 => "1 account".to_owned(),
        many => format!("{many} accounts"),
    };
    let mut lines = vec![format!(
        "nothing was changed; the change would concern {}",
        accounts(number("accounts"))
    )];
    let mut say = |many: u64, line: String| {
        if many > 0 {
            lines.push(line);
        }
    };
    let new = number("new_generations");
    say(
        new,
        format!(
            "{} would begin anew: leases end, what counts is carried over at its worst",
            accounts(new)
        ),
    );
    let left = number("without_budget");
    say(
        left,
        format!(
            "{} would have no budget any more: nothing is granted",
            accounts(left)
        ),
    );
    let freed = number("freed");
    say(freed, format!("{freed} units would be free at once"));
    let debt = number("debt");
    say(debt, format!("debts would grow by {debt} units:"));
    for worst in items(foreseen, "worst") {
        lines.push(format!(
            "  {:>12}  {}",
            field(worst, "debt"),
            field(worst, "key")
        ));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_would_happen_is_said() {
        let quiet = json!({"changes": 1, "accounts": 1, "new_generations": 0, "debt": 0});
        assert_eq!(
            effects(&quiet),
            "nothing was changed; the change would concern 1 account"
        );
        assert_eq!(effects(&json!({"changes": 0})), "nothing would change");
        let loud = json!({
            "changes": 1, "accounts": 3, "new_generations": 2, "without_budget": 1,
            "freed": 5, "debt": 70, "worst": [{"key": "a/x", "debt": 70}]
        });
        let text = effects(&loud);
        assert_eq!(text.lines().count(), 6, "{text}");
        assert!(text.ends_with("70  a/x"), "{text}");
    }
}
