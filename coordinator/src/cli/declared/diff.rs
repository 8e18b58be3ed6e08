//! What has to be changed so that the coordinator has what a file says. Knows nothing of
//! requests.

use serde_json::{Map, Value, json};

use super::{
    super::{
        http::Condition,
        text::{plain, rule},
    },
    file::{Declared, Stated},
};

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Policy,
    Budget,
}

impl Thing {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Budget => "budget",
        }
    }
}

/// One change.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) thing: Thing,
    /// The policy's name, or the budget's pattern.
    pub(super) name: String,
    pub(super) deed: Deed,
    /// It is made only if this is still so.
    pub(super) condition: Condition,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Deed {
    Put {
        body: Value,
        /// Field by field, from what to what; none: it is new.
        fields: Option<Vec<(String, Value, Value)>>,
    },
    Delete,
}

/// Everything that has to be changed; without `prune` nothing is deleted.
pub(super) fn changes(declared: &Declared, present: &Declared, prune: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    let both = [
        (Thing::Policy, &declared.policies, &present.policies),
        (Thing::Budget, &declared.budgets, &present.budgets),
    ];
    for (thing, wanted, there) in both {
        for (name, stated) in wanted {
            let old = there.get(name);
            if old.is_some_and(|old| old.body == stated.body) {
                continue;
            }
            changes.push(Change {
                thing,
                name: name.clone(),
                deed: Deed::Put {
                    body: stated.body.clone(),
                    fields: old.map(|old| differences("", &old.body, &stated.body)),
                },
                condition: condition(old),
            });
        }
        if prune {
            let gone = there.iter().filter(|(name, _)| !wanted.contains_key(*name));
            changes.extend(gone.map(|(name, old)| Change {
                thing,
                name: name.clone(),
                deed: Deed::Delete,
                condition: condition(Some(old)),
            }));
        }
    }
    changes
}

/// What was seen must still be so.
fn condition(seen: Option<&Stated>) -> Condition {
    match seen {
        None => Condition::Absent,
        Some(Stated {
            etag: Some(etag), ..
        }) => Condition::Still(etag.clone()),
        Some(_) => Condition::Anything,
    }
}

/// What the coordinator has and the file has not.
pub(super) fn not_in_file(declared: &Declared, present: &Declared) -> Vec<String> {
    let policies = present.policies.keys();
    let policies = policies.filter(|name| !declared.policies.contains_key(*name));
    let budgets = present.budgets.keys();
    let budgets = budgets.filter(|pattern| !declared.budgets.contains_key(*pattern));
    policies
        .map(|name| format!("policy {name}"))
        .chain(budgets.map(|pattern| format!("budget {pattern}")))
        .collect()
}

/// Field by field, those of a rule within a budget with their path.
fn differences(outer: &str, old: &Value, new: &Value) -> Vec<(String, Value, Value)> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return vec![(outer.to_owned(), old.clone(), new.clone())];
    };
    let path = |name: &str| match outer {
        "" => name.to_owned(),
        outer => format!("{outer}.{name}"),
    };
    let field = |of: &Map<String, Value>, name: &str| of.get(name).cloned().unwrap_or(Value::Null);
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = Vec::new();
    for name in names {
        let (old, new) = (field(old, name), field(new, name));
        if old != new {
            found.extend(differences(&path(name), &old, &new));
        }
    }
    found
}

impl Change {
    /// For people: `~ policy free  limit 10 -> 20`.
    pub(super) fn line(&self) -> String {
        let (sign, what) = match &self.deed {
            Deed::Delete => ("-", String::new()),
            Deed::Put { body, fields: None } => ("+", phrase(self.thing, body)),
            Deed::Put {
                fields: Some(fields),
                ..
            } => {
                let shown = |value: &Value| match value {
                    Value::Object(_) if value.get("kind").is_some() => rule(value),
                    value => plain(value),
                };
                let each = fields
                    .iter()
                    .map(|(name, old, new)| format!("{name} {} -> {}", shown(old), shown(new)));
                ("~", each.collect::<Vec<_>>().join(", "))
            }
        };
        let line = format!("{sign} {} {}  {what}", self.thing.name(), self.name);
        line.trim_end().to_owned()
    }

    /// For machines.
    pub(super) fn value(&self) -> Value {
        let mut value = json!({ "kind": self.thing.name(), "name": self.name });
        match &self.deed {
            Deed::Delete => value["change"] = "delete".into(),
            Deed::Put { fields: None, body } => {
                value["change"] = "add".into();
                value["to"] = body.clone();
            }
            Deed::Put {
                fields: Some(fields),
                ..
            } => {
                value["change"] = "edit".into();
                let fields = fields.iter();
                value["fields"] = fields
                    .map(|(name, old, new)| json!({ "field": name, "from": old, "to": new }))
                    .collect();
            }
        }
        value
    }
}

fn phrase(thing: Thing, body: &Value) -> String {
    let own = match thing {
        Thing::Policy => body,
        Thing::Budget => body.get("policy").unwrap_or(&Value::Null),
    };
    match body.get("accounts_max") {
        Some(most) => format!("{}, {most} accounts at most", rule(own)),
        None => rule(own),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn declared(text: &str) -> Declared {
        Declared::parse(text).unwrap()
    }

    fn lines(wanted: &str, there: &str, prune: bool) -> Vec<String> {
        let changes = changes(&declared(wanted), &declared(there), prune);
        changes.iter().map(Change::line).collect()
    }

    const THERE: &str = r#"
policies:
  - {name: free, kind: sliding_window, limit: 10, window_ms: 60000}
  - {name: old, kind: unlimited}
budgets:
  - {pattern: a/*, policy: free}
  - {pattern: b/*, policy: {kind: total, limit: 5}}
  - {pattern: c, policy: old}
"#;

    #[test]
    fn a_diff_says_what_is_added_changed_field_by_field_and_deleted() {
        let wanted = r#"
policies:
  - {name: free, kind: sliding_window, limit: 20, window_ms: 60000, shadow: true}
  - {name: pro, kind: total, limit: 100}
budgets:
  - {pattern: a/*, policy: pro, accounts_max: 7}
  - {pattern: b/*, policy: {kind: total, limit: 6}}
  - {pattern: d, policy: free, accounts_max: 3}
"#;
        assert_eq!(
            lines(wanted, THERE, true),
            [
                "~ policy free  limit 10 -> 20, shadow - -> yes",
                "+ policy pro  100 in all",
                "- policy old",
                "~ budget a/*  accounts_max - -> 7, policy free -> pro",
                "~ budget b/*  policy.limit 5 -> 6",
                "+ budget d  free, 3 accounts at most",
                "- budget c",
            ]
        );
        let without = lines(wanted, THERE, false);
        assert_eq!(without.len(), 5);
        assert!(without.iter().all(|line| !line.starts_with('-')));
    }

    #[test]
    fn what_is_as_the_file_says_is_no_change_however_it_is_written() {
        assert_eq!(lines(THERE, THERE, true), Vec::<String>::new());
        let said_in_full = THERE.replace("limit: 10,", "limit: 10, reserve: 0, slice_factor: 1.5,");
        assert_eq!(lines(&said_in_full, THERE, true), Vec::<String>::new());
    }

    #[test]
    fn what_was_not_there_must_not_be_there_yet() {
        let changes = changes(&declared(THERE), &Declared::default(), false);
        assert!(changes.iter().all(|one| one.condition == Condition::Absent));
    }
}
