//! The policies and budgets that a coordinator needs for the rules. Does not know what it
//! has, nor how it is asked.

use std::fmt;

use leasehold_key::Pattern;
use serde_json::{Map, Value};

use super::{
    Place,
    descriptor::{Descriptor, Domain, Limit, Rate, Unit},
    name::policy_name,
    wording::can_be_shown,
};

/// Policies and budgets, one of each for every limit, in the order of the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    domains: Vec<String>,
    planned: Vec<Planned>,
}

/// A policy, and the budget that binds it to the keys of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The file that the rule is in.
    pub file: String,
    /// Where its limit stands.
    pub at: Place,
    /// The budget's pattern: all keys that are counted by the rule.
    pub pattern: Pattern,
    /// The policy's name.
    pub name: String,
    /// What the policy states, as the coordinator's API takes it.
    pub policy: Map<String, Value>,
}

impl Plan {
    pub(super) fn new(domains: &[Domain]) -> Self {
        let mut plan = Self::default();
        for domain in domains {
            plan.domains.push(domain.name.clone());
            plan.add(&domain.file, &domain.descriptors);
        }
        plan
    }

    fn add(&mut self, file: &str, descriptors: &[Descriptor]) {
        for descriptor in descriptors {
            if let Some(limit) = &descriptor.limit {
                self.planned.push(Planned {
                    file: file.to_owned(),
                    at: limit.at,
                    pattern: limit.pattern.clone(),
                    name: policy_name(&limit.pattern),
                    policy: policy(limit),
                });
            }
            self.add(file, &descriptor.descriptors);
        }
    }

    /// The domains that it is about, each the first segment of its budgets.
    #[must_use]
    pub fn domains(&self) -> &[String] {
        &self.domains
    }

    /// Every policy with its budget.
    #[must_use]
    pub fn planned(&self) -> &[Planned] {
        &self.planned
    }
}

/// As a file that `leasehold apply` takes, with the places that it comes from.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.planned.is_empty() {
            return f.write_str("policies: []\nbudgets: []\n");
        }
        f.write_str("policies:\n")?;
        for planned in &self.planned {
            let file = planned.file.escape_debug();
            writeln!(f, "  # {file}:{}", planned.at.line)?;
            writeln!(f, "  - name: {}", text(&planned.name))?;
            for (name, value) in &planned.policy {
                writeln!(f, "    {name}: {value}")?;
            }
        }
        f.write_str("budgets:\n")?;
        for planned in &self.planned {
            writeln!(f, "  - pattern: {}", text(planned.pattern.as_str()))?;
            writeln!(f, "    policy: {}", text(&planned.name))?;
        }
        Ok(())
    }
}

/// As JSON writes it, which is YAML too, whatever it looks like.
fn text(text: &str) -> Value {
    text.into()
}

fn policy(limit: &Limit) -> Map<String, Value> {
    let mut policy = Map::new();
    let mut set = |name: &str, value: Value| policy.insert(name.to_owned(), value);
    match limit.rate {
        Rate::Unlimited => {
            set("kind", "unlimited".into());
        }
        Rate::Per { requests, unit } => {
            match length(unit) {
                Length::Window(window_ms) => {
                    set("kind", "sliding_window".into());
                    set("window_ms", window_ms.into());
                }
                Length::Period(period) => {
                    set("kind", "period".into());
                    set("period", period.into());
                    set("time_zone", "UTC".into());
                }
            }
            set("limit", requests.into());
        }
    }
    if limit.shadow && limit.rate != Rate::Unlimited {
        set("shadow", true.into());
    }
    if let Some(name) = limit.name.as_deref().filter(|name| can_be_shown(name)) {
        set("public_name", name.into());
    }
    policy
}

/// What a unit of time is here.
enum Length {
    /// Any interval of so many milliseconds.
    Window(u64),
    /// A period of the calendar.
    Period(&'static str),
}

/// Windows are at most 31 days long: what is longer is the calendar's.
const fn length(unit: Unit) -> Length {
    const SECOND_MS: u64 = 1_000;
    const DAY_MS: u64 = 24 * 3_600 * SECOND_MS;
    match unit {
        Unit::Second => Length::Window(SECOND_MS),
        Unit::Minute => Length::Window(60 * SECOND_MS),
        Unit::Hour => Length::Window(3_600 * SECOND_MS),
        Unit::Day => Length::Window(DAY_MS),
        Unit::Week => Length::Window(7 * DAY_MS),
        Unit::Month => Length::Period("month"),
        Unit::Year => Length::Period("year"),
    }
}
