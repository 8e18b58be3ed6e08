//! What has to be changed so that a coordinator has what a plan needs. Knows nothing of
//! how requests are made.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_key::{Key, Pattern};
use serde_json::{Map, Value};

use super::{
    ImportError,
    admin::{Admin, Condition},
};
use crate::ratelimit::{Plan, policy_name};

/// Budgets that one request sets, in one step.
const BUDGETS_PER_REQUEST: usize = 10_000;

/// Fields of answers that no request has.
const ANSWERED: [&str; 2] = ["version", "etag"];

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thing {
    Policy,
    Budget,
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
    /// What there was.
    old: Option<Map<String, Value>>,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Deed {
    Put(Value),
    Delete,
}

/// What a coordinator has.
#[derive(Debug, Default)]
pub(super) struct Present {
    policies: BTreeMap<String, Stated>,
    budgets: BTreeMap<String, Stated>,
}

/// One policy or budget, without its name.
#[derive(Debug)]
struct Stated {
    fields: Map<String, Value>,
    etag: String,
}

impl Present {
    /// Asks for it.
    pub(super) async fn of(admin: &Admin) -> Result<Self, ImportError> {
        let policies = admin.get("/v1/policies").await?;
        let budgets = admin.get("/v1/budgets").await?;
        Self::read(&policies, &budgets)
            .ok_or_else(|| ImportError::Unintelligible("its policies and budgets".to_owned()))
    }

    fn read(policies: &Value, budgets: &Value) -> Option<Self> {
        let stated = |item: &Value, name: &str| {
            let mut fields = item.as_object()?.clone();
            let etag = fields.get("etag")?.as_str()?.to_owned();
            for answered in ANSWERED {
                fields.remove(answered);
            }
            let Some(Value::String(name)) = fields.remove(name) else {
                return None;
            };
            Some((name, Stated { fields, etag }))
        };
        let policies = policies.get("policies")?.as_array()?.iter();
        let budgets = budgets.get("budgets")?.as_array()?.iter();
        Some(Self {
            policies: policies
                .map(|item| stated(item, "name"))
                .collect::<Option<_>>()?,
            budgets: budgets
                .map(|item| stated(item, "pattern"))
                .collect::<Option<_>>()?,
        })
    }

    /// What has to be put.
    pub(super) fn changes(&self, plan: &Plan) -> Vec<Change> {
        let policies = plan.planned().iter().filter_map(|planned| {
            let old = self.policies.get(&planned.name);
            let wanted = match old {
                Some(old) => overlaid(&old.fields, &planned.policy),
                None => planned.policy.clone(),
            };
            put(Thing::Policy, &planned.name, wanted, old)
        });
        let budgets = plan.planned().iter().filter_map(|planned| {
            let pattern = planned.pattern.as_str();
            let old = self.budgets.get(pattern);
            let mut wanted = old.map(|old| old.fields.clone()).unwrap_or_default();
            wanted.insert("policy".to_owned(), planned.name.clone().into());
            put(Thing::Budget, pattern, wanted, old)
        });
        policies.chain(budgets).collect()
    }

    /// Budgets below the plan's domains that the plan does not have, and the policies that
    /// an import made for them; to be deleted.
    pub(super) fn others(&self, plan: &Plan) -> Vec<Change> {
        let own: BTreeSet<&str> = plan
            .planned()
            .iter()
            .map(|planned| planned.pattern.as_str())
            .collect();
        let domains = plan
            .domains()
            .iter()
            .filter_map(|domain| Key::new([domain]).ok());
        let domains: BTreeSet<String> = domains.map(|key| key.to_string()).collect();
        let is_other = |pattern: &str| {
            let domain = pattern.split('/').next().unwrap_or_default();
            domains.contains(domain) && !own.contains(pattern)
        };
        let budgets = self.budgets.iter().filter(|(name, _)| is_other(name));
        let deleted = budgets
            .clone()
            .map(|(name, old)| delete(Thing::Budget, name, old));
        let named = |fields: &Map<String, Value>| {
            let policy = fields.get("policy").and_then(Value::as_str);
            policy.map(str::to_owned)
        };
        let mut needed: BTreeSet<String> =
            plan.planned().iter().map(|one| one.name.clone()).collect();
        let kept = self.budgets.iter().filter(|(name, _)| !is_other(name));
        needed.extend(kept.filter_map(|(_, budget)| named(&budget.fields)));
        // A policy is an import's own if it has the name that an import gives.
        let policies = budgets.filter_map(|(pattern, budget)| {
            let name = named(&budget.fields)?;
            let given = policy_name(&Pattern::parse(pattern).ok()?);
            let old = self.policies.get(&name)?;
            let goes = name == given && !needed.contains(&name);
            goes.then(|| delete(Thing::Policy, &name, old))
        });
        deleted.chain(policies).collect()
    }
}

/// A policy with what a plan states; what a plan says nothing of stays as it is.
fn overlaid(old: &Map<String, Value>, planned: &Map<String, Value>) -> Map<String, Value> {
    let differs = |name: &str| old.get(name) != planned.get(name);
    if differs("kind") {
        return planned.clone();
    }
    let mut wanted = old.clone();
    if differs("period") {
        wanted.remove("anchor");
        wanted.remove("anchor_month");
    }
    // Of these a plan says that they are as they are by default.
    wanted.remove("shadow");
    if wanted.contains_key("public_name") {
        wanted.insert("public_name".to_owned(), "default".into());
    }
    wanted.extend(planned.clone());
    wanted
}

fn put(
    thing: Thing,
    name: &str,
    wanted: Map<String, Value>,
    old: Option<&Stated>,
) -> Option<Change> {
    if old.is_some_and(|old| old.fields == wanted) {
        return None;
    }
    Some(Change {
        thing,
        name: name.to_owned(),
        deed: Deed::Put(wanted.into()),
        condition: old.map_or(Condition::Absent, |old| Condition::Still(old.etag.clone())),
        old: old.map(|old| old.fields.clone()),
    })
}

fn delete(thing: Thing, name: &str, old: &Stated) -> Change {
    Change {
        thing,
        name: name.to_owned(),
        deed: Deed::Delete,
        condition: Condition::Still(old.etag.clone()),
        old: Some(old.fields.clone()),
    }
}

impl Change {
    /// Where the thing is.
    pub(super) fn path(&self) -> String {
        // A policy's name needs no escapes, and a pattern has its own.
        match self.thing {
            Thing::Policy => format!("/v1/policies/{}", self.name),
            Thing::Budget => format!("/v1/budgets/{}", self.name),
        }
    }

    /// What it is about.
    pub(super) fn title(&self) -> String {
        let thing = match self.thing {
            Thing::Policy => "policy",
            Thing::Budget => "budget",
        };
        format!("{thing} {}", self.name)
    }

    /// For people: `~ policy api.user  limit 10 -> 20`.
    pub(super) fn line(&self) -> String {
        let (sign, what) = match (&self.deed, &self.old) {
            (Deed::Delete, _) => ("-", String::new()),
            (Deed::Put(body), None) => ("+", phrase(body)),
            (Deed::Put(body), Some(old)) => ("~", differences(old, body)),
        };
        let line = format!("{sign} {}  {what}", self.title());
        line.trim_end().to_owned()
    }

    /// As one of many budgets: with the etag that it must still have.
    pub(super) fn bulk_item(&self) -> Value {
        let Deed::Put(body) = &self.deed else {
            return Value::Null;
        };
        let mut item = body.clone();
        item["pattern"] = self.name.clone().into();
        item["etag"] = match &self.condition {
            Condition::Still(etag) => etag.clone().into(),
            Condition::Absent => Value::Null,
        };
        item
    }
}

/// Budgets for one request each; with the longest patterns and names they are below 8 MiB.
pub(super) fn parts<'a>(budgets: &'a [&'a Change]) -> impl Iterator<Item = &'a [&'a Change]> {
    budgets.chunks(BUDGETS_PER_REQUEST)
}

/// What a new policy or budget says.
fn phrase(body: &Value) -> String {
    let field = |name: &str| plain(body.get(name).unwrap_or(&Value::Null));
    let rule = match body.get("kind").and_then(Value::as_str) {
        None => return field("policy"),
        Some("sliding_window") => match body.get("window_ms").and_then(Value::as_u64) {
            Some(window_ms) => format!("{} in any {} s", field("limit"), window_ms / 1_000),
            None => field("limit"),
        },
        Some("period") => format!(
            "{} per {}, {}",
            field("limit"),
            field("period"),
            field("time_zone")
        ),
        Some(kind) => kind.to_owned(),
    };
    match body.get("shadow") {
        Some(Value::Bool(true)) => format!("{rule}, shadow"),
        _ => rule,
    }
}

fn differences(old: &Map<String, Value>, new: &Value) -> String {
    let empty = Map::new();
    let new = new.as_object().unwrap_or(&empty);
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let each = names.into_iter().filter_map(|name| {
        let field = |of: &Map<String, Value>| of.get(name).cloned().unwrap_or(Value::Null);
        let (old, new) = (field(old), field(new));
        (old != new).then(|| format!("{name} {} -> {}", plain(&old), plain(&new)))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// A value as people write it; `-` for nothing.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}
