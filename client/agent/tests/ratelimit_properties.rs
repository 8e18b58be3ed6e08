//! Random configurations and requests, judged by a naive reading of the format, and by the
//! order in which a coordinator looks for the budget of a key; and files that were mangled.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{collections::HashMap, fs, path::Path};

use leasehold_agent::ratelimit::{Config, Decision};
use leasehold_key::PatternMap;
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

const DOMAIN: &str = "d/1";

/// A descriptor of a file. Numbers tell limits apart.
#[derive(Clone, Debug)]
struct Rule {
    key: &'static str,
    value: &'static str,
    shared: bool,
    limit: Option<Limit>,
    below: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Limit {
    requests: u32,
    unlimited: bool,
    name: &'static str,
    replaces: Vec<&'static str>,
}

const KEYS: [&str; 3] = ["a", "b", "a=x"];
const PATTERNS: [&str; 12] = [
    "", "x", "xy", "x=y", "*", "x*", "xy*", "**", "*z", "x*z", "x*y*", "*y*",
];
const VALUES: [&str; 13] = [
    "", "x", "y", "xy", "xyz", "xz", "x=y", "z", "*", "x*", "x*z", "é/%", "xyyz",
];

fn limit() -> impl Strategy<Value = Limit> {
    let names = || select(vec!["", "one", "two"]);
    (any::<bool>(), names(), vec(names(), 0..2)).prop_map(|(odd, name, replaces)| Limit {
        requests: 0,
        unlimited: odd && name.is_empty() && replaces.is_empty(),
        name,
        replaces: replaces
            .into_iter()
            // In one direction only: a circle is refused.
            .filter(|other| *other > name)
            .collect(),
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let leaf = (
        select(&KEYS[..]),
        select(&PATTERNS[..]),
        any::<bool>(),
        option::weighted(0.7, limit()),
    );
    let leaf = leaf.prop_map(|(key, value, shared, limit)| Rule {
        key,
        value,
        shared: shared && value.contains('*'),
        limit,
        below: Vec::new(),
    });
    leaf.prop_recursive(3, 40, 6, |below| {
        (below.clone(), vec(below, 0..6)).prop_map(|(rule, below)| Rule { below, ..rule })
    })
}

/// Siblings that say the same are an error, which is tested elsewhere.
fn made_valid(rules: &mut Vec<Rule>, number: &mut u32) {
    let mut seen = Vec::new();
    rules.retain(|rule| {
        let is_new = !seen.contains(&(rule.key, rule.value));
        seen.push((rule.key, rule.value));
        is_new
    });
    for rule in rules {
        *number += 1;
        if let Some(limit) = &mut rule.limit {
            limit.requests = *number;
        }
        made_valid(&mut rule.below, number);
    }
}

fn file(rules: &[Rule]) -> Value {
    let descriptor = |rule: &Rule| {
        let mut descriptor = json!({"key": rule.key, "descriptors": file(&rule.below)});
        if !rule.value.is_empty() {
            descriptor["value"] = rule.value.into();
        }
        if rule.shared {
            descriptor["share_threshold"] = true.into();
        }
        if let Some(limit) = &rule.limit {
            let replaces = limit.replaces.iter().map(|name| json!({ "name": name }));
            let mut stated = json!({
                "unlimited": limit.unlimited, "name": limit.name, "replaces": replaces.collect::<Value>()
            });
            if !limit.unlimited {
                stated["unit"] = "hour".into();
                stated["requests_per_unit"] = limit.requests.into();
            }
            descriptor["rate_limit"] = stated;
        }
        descriptor
    };
    rules.iter().map(descriptor).collect()
}

/// Whether a text is like a wildcard, tried in every way.
fn is_like(wildcard: &str, text: &str) -> bool {
    match wildcard.split_at_checked(1) {
        None => text.is_empty(),
        Some(("*", rest)) => {
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| is_like(rest, &text[at..]))
        }
        Some((char, rest)) => text
            .strip_prefix(char)
            .is_some_and(|text| is_like(rest, text)),
    }
}

type Entry = (&'static str, &'static str);

/// The limit that the format means, and what tells its counters apart.
fn meant<'a>(mut rules: &'a [Rule], entries: &[Entry]) -> Option<(&'a Limit, Vec<Entry>)> {
    let mut found = None;
    let mut counter = Vec::new();
    for (key, value) in entries {
        let of_key = || rules.iter().filter(|rule| rule.key == *key);
        let is_wild = |rule: &&Rule| rule.value.contains('*');
        let exact =
            of_key().find(|rule| !rule.value.is_empty() && rule.value == *value && !is_wild(rule));
        let wild = || of_key().find(|rule| is_wild(rule) && is_like(rule.value, value));
        let alone = || of_key().find(|rule| rule.value.is_empty());
        let rule = exact.or_else(wild).or_else(alone)?;
        counter.push((rule.key, if rule.shared { rule.value } else { *value }));
        found = rule.limit.as_ref();
        rules = &rule.below;
    }
    Some((found?, counter))
}

fn any_rules() -> impl Strategy<Value = Vec<Rule>> {
    vec(rule(), 1..7).prop_map(|mut rules| {
        made_valid(&mut rules, &mut 0);
        rules
    })
}

fn any_request() -> impl Strategy<Value = Vec<Vec<Entry>>> {
    let entry = (select(&KEYS[..]), select(&VALUES[..]));
    vec(vec(entry, 0..4), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn the_coordinator_finds_the_budget_that_the_rule_means(
        rules in any_rules(),
        requests in vec(any_request(), 1..12),
    ) {
        let text = json!({"domain": DOMAIN, "descriptors": file(&rules)}).to_string();
        let config = Config::parse([("f", text.as_str())]).unwrap();
        let mut budgets = PatternMap::new();
        for planned in config.plan().planned() {
            let limit = planned.policy.get("limit").cloned();
            prop_assert_eq!(budgets.insert(planned.pattern.clone(), limit), None);
        }
        let decider = config.rules();
        let mut counters = HashMap::new();
        for request in requests {
            let all: Vec<_> = request.iter().map(|entries| meant(&rules, entries)).collect();
            let replaced = |name: &str| {
                let mut limits = all.iter().flatten().map(|(limit, _)| limit);
                limits.any(|limit| limit.replaces.contains(&name))
            };
            let descriptors = request.iter().map(|entries| entries.iter().copied());
            let decisions = decider.decide(DOMAIN, descriptors);
            prop_assert_eq!(decisions.len(), request.len());
            for (decision, meant) in decisions.into_iter().zip(&all) {
                let Some((limit, counter)) = meant else {
                    prop_assert_eq!(decision, Decision::NoRule);
                    continue;
                };
                if limit.unlimited {
                    let Decision::Unlimited(Some(key)) = decision else {
                        return Err(TestCaseError::fail(format!("{decision:?}, not {limit:?}")));
                    };
                    let found = budgets.resolve(&key).map(|(_, limit)| limit.clone());
                    prop_assert_eq!(found, Some(None), "{}", key);
                    continue;
                }
                if replaced(limit.name) {
                    prop_assert_eq!(decision, Decision::Replaced);
                    continue;
                }
                let Decision::Budget(key) = decision else {
                    return Err(TestCaseError::fail(format!("{decision:?}, not {limit:?}")));
                };
                let found = budgets.resolve(&key).and_then(|(_, limit)| limit.clone());
                prop_assert_eq!(found, Some(limit.requests.into()), "{}", key);
                // One counter, one key; and the other way round.
                let same = counters.entry(key.to_string()).or_insert_with(|| counter.clone());
                prop_assert_eq!(same, counter);
                let keys = counters.values().filter(|other| *other == counter);
                prop_assert_eq!(keys.count(), 1);
            }
        }
    }
}

/// The files of the other test, and what is done to them.
fn mangled() -> impl Strategy<Value = String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ratelimit");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    files.sort_unstable();
    let texts: Vec<Vec<u8>> = files.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(texts.len() > 10);
    let bits: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"\n",
        b"\t",
        b":",
        b"- ",
        b"*",
        b"&a ",
        b"*a",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b"'",
        b"|\n",
        b"#",
        b"!!binary ",
        b"<<: ",
        b"? ",
        b"%",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"---\n",
        b"...\n",
        b"~",
        b"1e999",
        b".nan",
        b"descriptors:",
        b"\r",
    ];
    let edit = (any::<prop::sample::Index>(), 0..8_usize, select(bits));
    (select(texts), vec(edit, 1..8)).prop_map(|(mut text, edits)| {
        for (at, length, bit) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + length).min(text.len());
            text.splice(at..end, bit.iter().copied());
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_mangled_file_is_read_or_answered_with_places_in_it(text in mangled()) {
        match Config::parse([("f", text.as_str())]) {
            Ok(config) => {
                let _ = config.plan().to_string();
                let _ = config.rules().decide("d", [[("key", "value")]]);
            }
            Err(problems) => {
                let lines = u64::try_from(text.split(['\n', '\r']).count()).unwrap();
                prop_assert!(!problems.as_slice().is_empty());
                for problem in problems.as_slice() {
                    prop_assert!((1..=lines + 1).contains(&problem.at.line), "{}", problem);
                    prop_assert!(problem.at.column >= 1 && !problem.text.is_empty());
                }
            }
        }
    }

    #[test]
    fn any_text_is_read_or_answered(text in "\\PC{0,80}|[-a:{}\\[\\]&*!|>'\"%@` \n]{0,60}") {
        let _ = Config::parse([("f", text.as_str())]);
    }
}
