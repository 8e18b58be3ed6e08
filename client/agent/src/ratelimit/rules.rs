//! Under which key each descriptor of a request is counted. Does not know what a budget
//! says, nor whether there is room.

use std::collections::HashMap;

use leasehold_key::{Key, KeyError, SEGMENTS_MAX};

use super::{
    descriptor::{Descriptor, Domain, Rate},
    segment::{Segment, Value, Wildcard},
};

/// What becomes of one descriptor of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is counted under this key.
    Budget(Key),
    /// A rule says that it is never refused, and counted under this key; none: its values
    /// make no key, and it passes uncounted.
    Unlimited(Option<Key>),
    /// No rule is about it: it is not counted, and not refused for it.
    NoRule,
    /// Another descriptor of the same request has a limit that replaces its own.
    Replaced,
    /// A rule is about it, but its values make no key: most likely it is longer than 512
    /// bytes. It cannot be counted, so that it must not pass.
    NoKey(KeyError),
}

/// Rules of one or more domains, ready to be asked.
#[derive(Debug, Default)]
pub struct Rules {
    domains: HashMap<Box<str>, Tree>,
}

/// A domain's rules.
#[derive(Debug, Default)]
struct Tree {
    level: Level,
    /// Some rule replaces others, which has to be looked at.
    replaces: bool,
}

/// What an entry may be, by its key.
type Level = HashMap<Box<str>, Choices>;

/// What an entry with one key may be, in the order in which it is tried.
#[derive(Debug, Default)]
struct Choices {
    exact: HashMap<Box<str>, Branch>,
    wildcards: Vec<(Wildcard, Branch)>,
    any: Option<Box<Branch>>,
}

/// A rule's entry, and what follows.
#[derive(Debug)]
struct Branch {
    segment: Segment,
    limit: Option<Counted>,
    below: Level,
}

/// What is counted at the end of a rule.
#[derive(Debug)]
struct Counted {
    unlimited: bool,
    name: Option<Box<str>>,
    replaces: Box<[Box<str>]>,
}

/// What was found on the way through the rules: each entry's branch and value.
type Steps<'a> = [Option<(&'a Branch, &'a str)>; SEGMENTS_MAX - 1];

impl Rules {
    pub(super) fn new(domains: &[Domain]) -> Self {
        let trees = domains.iter().map(|domain| {
            let mut tree = Tree::default();
            tree.replaces = fill(&mut tree.level, &domain.descriptors);
            (domain.name.as_str().into(), tree)
        });
        Self {
            domains: trees.collect(),
        }
    }

    /// Whether any rule is about a domain.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Decides about each descriptor of a request, in their order. A descriptor is a list
    /// of entries, each of which has a key and a value.
    ///
    /// A rule is about a descriptor when all of its entries, and no more, are found in
    /// nested descriptors, from the first to the last: of each, an equal value is tried
    /// first, then wildcards in the order of the file, then the key without a value. What
    /// was once found is not left again for a less specific one.
    pub fn decide<'r, D, E>(&self, domain: &str, descriptors: D) -> Vec<Decision>
    where
        D: IntoIterator<Item = E>,
        E: IntoIterator<Item = (&'r str, &'r str)>,
    {
        let Some(tree) = self.domains.get(domain) else {
            return descriptors.into_iter().map(|_| Decision::NoRule).collect();
        };
        if !tree.replaces {
            let each = descriptors.into_iter();
            return each.map(|entries| tree.decide(domain, entries).0).collect();
        }
        let each = descriptors.into_iter();
        let (mut decisions, counted): (Vec<_>, Vec<_>) =
            each.map(|entries| tree.decide(domain, entries)).unzip();
        let replaced = |name: &str| {
            let mut names = counted.iter().flatten().flat_map(|one| &one.replaces);
            names.any(|replaced| **replaced == *name)
        };
        for (decision, one) in decisions.iter_mut().zip(&counted) {
            let name = one.and_then(|one| one.name.as_deref());
            if !matches!(decision, Decision::Unlimited(_)) && name.is_some_and(replaced) {
                *decision = Decision::Replaced;
            }
        }
        decisions
    }
}

impl Tree {
    fn decide<'r>(
        &self,
        domain: &str,
        entries: impl IntoIterator<Item = (&'r str, &'r str)>,
    ) -> (Decision, Option<&Counted>) {
        let mut steps: Steps<'_> = [None; SEGMENTS_MAX - 1];
        let mut places = steps.iter_mut();
        let mut level = &self.level;
        let mut found = None;
        for (key, value) in entries {
            let branch = level.get(key).and_then(|choices| choices.of(value));
            // Rules are not deeper than there are places.
            let (Some(branch), Some(place)) = (branch, places.next()) else {
                return (Decision::NoRule, None);
            };
            *place = Some((branch, value));
            level = &branch.below;
            found = branch.limit.as_ref();
        }
        let Some(counted) = found else {
            return (Decision::NoRule, None);
        };
        let entries = steps.iter().flatten();
        let entries = entries.map(|(branch, value)| branch.segment.of(value));
        let key = Key::from_parts(std::iter::once([domain, ""]).chain(entries));
        let decision = match key {
            key if counted.unlimited => Decision::Unlimited(key.ok()),
            Ok(key) => Decision::Budget(key),
            Err(error) => Decision::NoKey(error),
        };
        (decision, found)
    }
}

impl Choices {
    fn of(&self, value: &str) -> Option<&Branch> {
        let wildcard = || {
            let mut wildcards = self.wildcards.iter();
            let found = wildcards.find(|(wildcard, _)| wildcard.matches(value))?;
            Some(&found.1)
        };
        self.exact
            .get(value)
            .or_else(wildcard)
            .or(self.any.as_deref())
    }
}

/// Adds descriptors to a level, and says whether any of them replaces others.
fn fill(level: &mut Level, descriptors: &[Descriptor]) -> bool {
    let mut replaces = false;
    for descriptor in descriptors {
        let mut below = Level::new();
        replaces |= fill(&mut below, &descriptor.descriptors);
        let limit = descriptor.limit.as_ref().map(|limit| Counted {
            unlimited: limit.rate == Rate::Unlimited,
            name: limit.name.as_deref().map(Into::into),
            replaces: limit
                .replaces
                .iter()
                .map(|(_, name)| name.as_str().into())
                .collect(),
        });
        replaces |= limit
            .as_ref()
            .is_some_and(|limit| !limit.replaces.is_empty());
        let branch = Branch {
            segment: descriptor.segment.clone(),
            limit,
            below,
        };
        let choices = level.entry(descriptor.key.as_str().into()).or_default();
        match &descriptor.value {
            Value::Any => choices.any = Some(Box::new(branch)),
            Value::Exact(value) => {
                choices.exact.insert(value.as_str().into(), branch);
            }
            Value::Wildcard(wildcard) => choices.wildcards.push((wildcard.clone(), branch)),
        }
    }
    replaces
}
