//! Policies and budgets as a file states them and as the coordinator answers them, in
//! one form: every field that has a default says it. Knows nothing of requests.

use std::collections::BTreeMap;

use leasehold_key::Pattern;
use serde_json::{Map, Value};

use crate::admin::normal_policy;

/// Policies by name and budgets by pattern.
#[derive(Debug, Default)]
pub(super) struct Declared {
    pub(super) policies: BTreeMap<String, Stated>,
    pub(super) budgets: BTreeMap<String, Stated>,
}

/// What is said of one thing.
#[derive(Debug)]
pub(super) struct Stated {
    /// Without its name.
    pub(super) body: Value,
    /// Of what the coordinator has.
    pub(super) etag: Option<String>,
}

/// Fields of answers that no file has.
const ANSWERED: [&str; 2] = ["version", "etag"];

impl Declared {
    /// Reads a file, YAML or JSON.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_saphyr::from_str(text)
            .map_err(|error| why_unreadable(text, &error.to_string()))?;
        let Value::Object(file) = value else {
            return Err("it must have policies and budgets, as in policies: [...]".to_owned());
        };
        let mut declared = Self::default();
        for (name, list) in file {
            let Value::Array(list) = list else {
                return Err(format!("{name} must be a list"));
            };
            match name.as_str() {
                "policies" => declared.add_policies(list, false)?,
                "budgets" => declared.add_budgets(list, false)?,
                _ => {
                    return Err(format!(
                        "{name} is unknown: a file has policies and budgets"
                    ));
                }
            }
        }
        Ok(declared)
    }

    /// Reads what the coordinator answered.
    pub(super) fn of_answers(policies: &Value, budgets: &Value) -> Result<Self, String> {
        let list = |value: &Value, name: &str| {
            let items = value.get(name).and_then(Value::as_array);
            items.cloned().unwrap_or_default()
        };
        let mut declared = Self::default();
        declared.add_policies(list(policies, "policies"), true)?;
        declared.add_budgets(list(budgets, "budgets"), true)?;
        Ok(declared)
    }

    fn add_policies(&mut self, list: Vec<Value>, answered: bool) -> Result<(), String> {
        for (number, item) in list.into_iter().enumerate() {
            let at = |why: String| format!("policies[{number}].{why}");
            let (name, mut fields) = named(item, "name").map_err(at)?;
            let etag = take_answered(&mut fields, answered);
            let body = normal_policy(&fields.into()).map_err(at)?;
            let stated = Stated { body, etag };
            if self.policies.insert(name.clone(), stated).is_some() {
                return Err(at(format!("name ({name}) is there twice")));
            }
        }
        Ok(())
    }

    fn add_budgets(&mut self, list: Vec<Value>, answered: bool) -> Result<(), String> {
        for (number, item) in list.into_iter().enumerate() {
            let at = |why: String| format!("budgets[{number}].{why}");
            let (pattern, mut fields) = named(item, "pattern").map_err(at)?;
            let etag = take_answered(&mut fields, answered);
            let pattern = Pattern::parse(&pattern)
                .map_err(|error| at(format!("pattern ({pattern}): {error}")))?;
            let pattern = pattern.as_str().to_owned();
            let body = normal_budget(fields).map_err(at)?;
            let stated = Stated { body, etag };
            if self.budgets.insert(pattern.clone(), stated).is_some() {
                return Err(at(format!("pattern ({pattern}) is there twice")));
            }
        }
        Ok(())
    }

    /// As a file that says no more than it has to.
    pub(super) fn shortest(&self) -> Value {
        let policies = self.policies.iter().map(|(name, stated)| {
            let mut item = shortest_policy(&stated.body);
            item.insert("name".to_owned(), name.clone().into());
            Value::from(item)
        });
        let budgets = self.budgets.iter().map(|(pattern, stated)| {
            let mut item = stated.body.as_object().cloned().unwrap_or_default();
            if let Some(own) = item.get("policy").filter(|own| own.is_object()) {
                let own = shortest_policy(own);
                item.insert("policy".to_owned(), own.into());
            }
            item.insert("pattern".to_owned(), pattern.clone().into());
            Value::from(item)
        });
        let mut file = Map::new();
        file.insert("policies".to_owned(), policies.collect());
        file.insert("budgets".to_owned(), budgets.collect());
        file.into()
    }
}

/// What is wrong with a file, in words that do not need its parser's manual.
fn why_unreadable(text: &str, why: &str) -> String {
    if why.contains("from_str_multiple") {
        return "it has several documents (---): put all of it into one".to_owned();
    }
    if let Some(line) = text.lines().position(begins_with_a_star) {
        return format!(
            "line {}: a text that begins with * must be in quotation marks, as in pattern: \"**\"",
            line.saturating_add(1)
        );
    }
    why.to_owned()
}

/// Whether a line has a value that begins with `*`, which means something else in YAML.
fn begins_with_a_star(line: &str) -> bool {
    let line = line.split(" #").next().unwrap_or_default();
    let mut before = ' ';
    let mut is_quoted = None;
    for letter in line.chars() {
        match (is_quoted, letter) {
            (None, '"' | '\'') => is_quoted = Some(letter),
            (Some(quote), letter) if letter == quote => is_quoted = None,
            (None, '*') if matches!(before, ':' | '-' | ',' | '[' | '{') => return true,
            _ => {}
        }
        if !letter.is_whitespace() {
            before = letter;
        }
    }
    false
}

/// An item's name, and its other fields.
fn named(item: Value, name: &str) -> Result<(String, Map<String, Value>), String> {
    let Value::Object(mut fields) = item else {
        return Err(format!("{name} is missing"));
    };
    match fields.remove(name) {
        Some(Value::String(text)) => Ok((text, fields)),
        Some(other) => Err(format!(
            "{name} ({other}) must be a text: put it in quotation marks"
        )),
        None => Err(format!("{name} is missing")),
    }
}

fn take_answered(fields: &mut Map<String, Value>, answered: bool) -> Option<String> {
    if !answered {
        return None;
    }
    let etag = fields
        .get("etag")
        .and_then(Value::as_str)
        .map(str::to_owned);
    for name in ANSWERED {
        fields.remove(name);
    }
    etag
}

fn normal_budget(mut fields: Map<String, Value>) -> Result<Value, String> {
    match fields.get("policy") {
        None => return Err("policy is missing".to_owned()),
        Some(own @ Value::Object(_)) => {
            let own = normal_policy(own).map_err(|why| format!("policy.{why}"))?;
            fields.insert("policy".to_owned(), own);
        }
        Some(Value::String(_)) => {}
        Some(other) => {
            return Err(format!(
                "policy ({other}) must be a policy's name or a policy"
            ));
        }
    }
    fields.retain(|_, value| !value.is_null());
    for name in fields.keys() {
        if !matches!(name.as_str(), "policy" | "accounts_max") {
            return Err(format!(
                "{name} is unknown: a budget has pattern, policy and accounts_max"
            ));
        }
    }
    Ok(fields.into())
}

/// A policy without what is so by default.
fn shortest_policy(policy: &Value) -> Map<String, Value> {
    let whole = policy.as_object().cloned().unwrap_or_default();
    let mut short = whole.clone();
    for name in whole.keys() {
        let mut shorter = short.clone();
        shorter.remove(name);
        if normal_policy(&shorter.clone().into()).as_ref() == Ok(policy) {
            short = shorter;
        }
    }
    short
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    const FILE: &str = r#"
policies:
  - name: free
    kind: sliding_window
    limit: 10
    window_ms: 60000
  - name: pro
    kind: period
    limit: 1000
    period: month
    time_zone: europe/berlin
    lanes: [{name: payment, reserve: 20}, {name: rest}]
budgets:
  - {pattern: "api-key/*/**", policy: free, accounts_max: 1000}
  - pattern: api-key/k1/**
    policy: {kind: total, limit: 5}
"#;

    #[test]
    fn what_a_file_does_not_say_is_the_default() {
        let declared = Declared::parse(FILE).unwrap();
        let free = &declared.policies["free"].body;
        assert_eq!(
            (&free["slice_factor"], &free["reserve"]),
            (&json!(1.5), &json!(0))
        );
        let pro = &declared.policies["pro"].body;
        assert_eq!(
            (&pro["time_zone"], &pro["anchor"]),
            (&json!("Europe/Berlin"), &json!(1))
        );
        let own = &declared.budgets["api-key/k1/**"].body["policy"];
        assert_eq!(own["max_wait_ms"], 250);
    }

    #[test]
    fn the_shortest_file_says_the_same_and_no_more() {
        let declared = Declared::parse(FILE).unwrap();
        let short = declared.shortest();
        assert_eq!(
            short["policies"][0],
            json!({"name": "free", "kind": "sliding_window", "limit": 10, "window_ms": 60_000})
        );
        let again = Declared::parse(&super::super::write::yaml(&short)).unwrap();
        let bodies = |of: &BTreeMap<String, Stated>| -> Vec<(String, Value)> {
            let each = of.iter();
            each.map(|(name, stated)| (name.clone(), stated.body.clone()))
                .collect()
        };
        assert_eq!(bodies(&again.policies), bodies(&declared.policies));
        assert_eq!(bodies(&again.budgets), bodies(&declared.budgets));
        let json = Declared::parse(&short.to_string()).unwrap();
        assert_eq!(bodies(&json.budgets), bodies(&declared.budgets));
    }

    #[test]
    fn what_is_wrong_in_a_file_is_named_with_its_place() {
        for (text, why) in [
            ("- 1", "it must have policies and budgets"),
            ("policy: []", "policy is unknown"),
            ("policies: 7", "policies must be a list"),
            (
                "policies: [{kind: unlimited}]",
                "policies[0].name is missing",
            ),
            (
                "policies: [{name: 7, kind: unlimited}]",
                "policies[0].name (7) must be a text",
            ),
            ("policies: [{name: a, kind: magic}]", "policies[0].kind"),
            (
                "policies: [{name: a, kind: total, limit: -1}]",
                "policies[0].limit",
            ),
            (
                "policies: [{name: a, kind: unlimited}, {name: a, kind: unlimited}]",
                "policies[1].name (a) is there twice",
            ),
            (
                "budgets: [{pattern: a//b, policy: p}]",
                "budgets[0].pattern (a//b)",
            ),
            ("budgets: [{pattern: a}]", "budgets[0].policy is missing"),
            (
                "budgets: [{pattern: a, policy: p, cap: 5}]",
                "budgets[0].cap is unknown",
            ),
            (
                "budgets: [{pattern: a, policy: {kind: period, limit: 1, period: day, time_zone: berlin}}]",
                "did you mean Europe/Berlin?",
            ),
            (
                "budgets: [{pattern: a, policy: p}, {pattern: '%61', policy: p}]",
                "is there twice",
            ),
            ("policies: []\npolicies: []", "duplicate"),
            ("policies: [", "unclosed"),
            (
                "budgets:\n  - pattern: *\n    policy: p",
                "line 2: a text that begins with * must be in quotation marks",
            ),
            (
                "budgets: [{pattern: **, policy: p}]",
                "line 1: a text that begins with * must be in quotation marks",
            ),
            (
                "budgets:\n  - {pattern: \"**\", policy: p}\n  - pattern: */a\n    policy: p",
                "line 3: a text",
            ),
            ("policies: []\n---\npolicies: []", "several documents"),
        ] {
            let said = Declared::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
            assert!(!said.contains("from_str"), "{text}: {said}");
        }
    }
}
