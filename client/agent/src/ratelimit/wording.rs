//! How files' texts are shown in errors, and which texts are meant. Knows no rules.

use leasehold_key::KeyError;

use super::{
    descriptor::{Descriptor, Unit},
    segment::Value,
    yaml::{Content, Node},
};

/// `user: bob` as in the file.
pub(super) fn named(descriptor: &Descriptor) -> String {
    match &descriptor.value {
        Value::Any => format!("key `{}` without a value", descriptor.key),
        Value::Exact(value) => format!("key `{}` with the value `{value}`", descriptor.key),
        Value::Wildcard(wildcard) => {
            format!(
                "key `{}` with the value `{}`",
                descriptor.key,
                wildcard.text()
            )
        }
    }
}

/// Whether callers may be told a name.
pub(super) fn can_be_shown(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

pub(super) fn no_key(error: &KeyError) -> String {
    format!("no key can follow this rule: {error}")
}

/// A number without leading zeros, which could mean an octal one.
pub(super) fn is_decimal(text: &str) -> bool {
    text.parse::<u32>()
        .is_ok_and(|number| number.to_string() == text)
}

/// A value in parentheses, if it is short.
pub(super) fn shown(node: &Node) -> String {
    match &node.content {
        Content::Scalar(scalar) if scalar.text.len() <= 64 => format!(" ({})", scalar.text),
        _ => String::new(),
    }
}

pub(super) fn units() -> String {
    format!("one of {}", listed(&Unit::ALL.map(Unit::name)))
}

/// `a, b and c`.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => format!("`{one}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|name| format!("`{name}`")).collect();
            format!("{} and `{last}`", first.join(", "))
        }
    }
}

/// The name that was likely meant.
pub(super) fn near<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase().replace('-', "_");
    let close = |other: &&str| {
        let away = strsim::damerau_levenshtein(&lower, other);
        (away <= 2 && away * 3 <= other.len()).then_some(away)
    };
    let mut near: Vec<(usize, &str)> = names
        .iter()
        .filter_map(|other| close(other).map(|away| (away, *other)))
        .collect();
    near.sort_unstable();
    near.first().map(|(_, name)| *name)
}
