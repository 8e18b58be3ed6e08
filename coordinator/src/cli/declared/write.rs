//! A file of policies and budgets in YAML. Texts are written as JSON writes them, which
//! is YAML too, unless they are plain words. Knows nothing of what the fields mean.

use std::fmt::Write as _;

use serde_json::Value;

/// What comes first; the rest is in the order of the alphabet.
const FIRST: [&str; 3] = ["name", "pattern", "kind"];

/// Lists of things under their headings.
pub(super) fn yaml(file: &Value) -> String {
    let mut text = String::new();
    for heading in ["policies", "budgets"] {
        let items = file.get(heading).and_then(Value::as_array);
        let items = items.map_or(&[][..], Vec::as_slice);
        if items.is_empty() {
            let _ = writeln!(text, "{heading}: []");
            continue;
        }
        let _ = writeln!(text, "{heading}:");
        for item in items {
            for (place, (name, value)) in fields(item).into_iter().enumerate() {
                let start = if place == 0 { "  - " } else { "    " };
                let _ = writeln!(text, "{start}{name}: {}", flow(value));
            }
        }
    }
    text
}

/// Fields in the order in which people read them.
fn fields(item: &Value) -> Vec<(&str, &Value)> {
    let mut fields: Vec<(&str, &Value)> = item
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| (name.as_str(), value))
        .collect();
    let rank = |name: &str| {
        let first = FIRST.iter().position(|first| *first == name);
        first.unwrap_or(FIRST.len())
    };
    fields.sort_by_key(|(name, _)| rank(name));
    fields
}

/// A value on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(_) => {
            let fields = fields(value);
            let fields = fields
                .iter()
                .map(|(name, value)| format!("{name}: {}", flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// A word that nobody takes for anything else.
fn is_plain(text: &str) -> bool {
    const OTHERS: [&str; 8] = ["true", "false", "yes", "no", "on", "off", "null", "y"];
    let lower = text.to_ascii_lowercase();
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic());
    let goes_on = text
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'/' | b'.'));
    // `n` and its like, and what reads as a number, such as `inf`.
    begins
        && goes_on
        && text.len() > 1
        && !OTHERS.contains(&lower.as_str())
        && text.parse::<f64>().is_err()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_a_text_is_it_reads_back_as_the_same_text() {
        for text in [
            "free",
            "a/*",
            "**",
            "yes",
            "No",
            "null",
            "~",
            "1e3",
            "0x10",
            "inf",
            ".inf",
            "nan",
            "-",
            "a: b",
            "a #b",
            "\"q\"",
            "'q'",
            "%41",
            "[x]",
            "{x}",
            "&a",
            "*a",
            "!t",
            "é",
            "",
            "2026-01-01",
            "1_000",
            "n",
            "a,b",
            "0o17",
            "+1",
            "Europe/Berlin",
            "a\\b",
            "a\tb",
        ] {
            let file = json!({"policies": [{"name": text, "lanes": [{"name": text}]}]});
            let written = yaml(&file);
            let read: Value = serde_saphyr::from_str(&written).unwrap();
            assert_eq!(read["policies"], file["policies"], "{written}");
        }
    }

    #[test]
    fn a_file_reads_well() {
        let file = json!({
            "policies": [{"kind": "total", "limit": 5, "name": "p", "lanes": [{"reserve": 1, "name": "aa"}]}],
            "budgets": [{"policy": "free", "pattern": "a/*", "accounts_max": 7}]
        });
        assert_eq!(
            yaml(&file),
            "policies:\n  - name: \"p\"\n    kind: total\n    lanes: [{name: aa, reserve: 1}]\n    limit: 5\n\
             budgets:\n  - pattern: \"a/*\"\n    accounts_max: 7\n    policy: free\n"
        );
        assert_eq!(yaml(&json!({})), "policies: []\nbudgets: []\n");
    }
}
