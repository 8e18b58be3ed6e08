//! YAML as a tree in which every node knows its place. Does not know what the fields
//! mean.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned, budget::BudgetBreach};

/// The largest file that is read.
const FILE_BYTES_MAX: usize = 16 << 20;
/// Mappings and lists within each other: more than the deepest descriptors need.
const DEPTH_MAX: usize = 48;
/// Scalars, lists and mappings in one file.
const NODES_MAX: usize = 1_000_000;
/// Events that aliases may repeat, so that a few lines cannot become a million.
const REPEATED_MAX: usize = 100_000;

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The character within the line.
    pub column: u64,
}

impl From<Location> for Place {
    fn from(location: Location) -> Self {
        Self {
            line: location.line().max(1),
            column: location.column().max(1),
        }
    }
}

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: Place,
    pub(super) content: Content,
}

/// What stands there.
#[derive(Debug)]
pub(super) enum Content {
    /// Nothing, `~` or `null`.
    Null,
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Vec<Field>),
}

/// A scalar: its text as it is written, and what it is unless it is just a text.
#[derive(Debug)]
pub(super) struct Scalar {
    pub(super) text: String,
    pub(super) bool: Option<bool>,
    pub(super) number: Option<u64>,
}

/// One entry of a mapping.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) at: Place,
    pub(super) name: String,
    pub(super) value: Node,
}

/// Why a text is no YAML that is read.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) at: Place,
    pub(super) why: String,
}

/// Reads one document.
pub(super) fn parse(text: &str) -> Result<Node, Unreadable> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Unreadable {
            at: Place { line: 1, column: 1 },
            why: format!(
                "the file has {} bytes, and {FILE_BYTES_MAX} is the most that is read: split it by domains",
                text.len()
            ),
        });
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: 4 * NODES_MAX,
            max_nodes: NODES_MAX,
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_total_scalar_bytes: FILE_BYTES_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: REPEATED_MAX,
        },
        // As in YAML 1.1, which these files are written for.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let read = serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options);
    let raw = read.map_err(|error| Unreadable {
        at: error
            .location()
            .map_or(Place { line: 1, column: 1 }, Place::from),
        why: reason(error.without_snippet()),
    })?;
    Ok(node(raw, text))
}

/// In words for whoever wrote the file; the place is said by whoever shows it.
fn reason(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            let name = key.as_deref().map(|key| format!("`{key}` "));
            let name = name.unwrap_or_else(|| "a field ".to_owned());
            return format!("{name}is there twice: leave one of them out");
        }
        serde_saphyr::Error::MultipleDocuments { .. } => {
            return "a second document begins here: write each domain into a file of its own"
                .to_owned();
        }
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. },
            ..
        } => {
            return format!(
                "the file goes on here beyond the {NODES_MAX} names and values that are read of one: write fewer \
                 rules, or give some a domain and a file of their own"
            );
        }
        _ => {}
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let end = [" at line ", " (line "]
        .iter()
        .filter_map(|mark| first.find(mark))
        .min();
    first
        .get(..end.unwrap_or(first.len()))
        .unwrap_or(first)
        .to_owned()
}

fn node(raw: Spanned<Raw>, source: &str) -> Node {
    let written = |fallback: String| slice(source, raw.defined).unwrap_or(fallback);
    let scalar = |text, bool, number| Content::Scalar(Scalar { text, bool, number });
    let content = match raw.value {
        Raw::Null => Content::Null,
        Raw::Text(text) => scalar(text, None, None),
        Raw::Bool(value) => scalar(written(value.to_string()), Some(value), None),
        Raw::Whole(value) => scalar(written(value.to_string()), None, Some(value)),
        Raw::Other(shown) => scalar(written(shown), None, None),
        Raw::List(items) => {
            Content::List(items.into_iter().map(|item| node(item, source)).collect())
        }
        Raw::Map(entries) => Content::Map(
            entries
                .into_iter()
                .map(|(name, value)| Field {
                    at: name.referenced.into(),
                    name: name.value,
                    value: node(value, source),
                })
                .collect(),
        ),
    };
    Node {
        at: raw.referenced.into(),
        content,
    }
}

/// The text at a place: `1.10` is not the number 1.1 when it is a value to match.
fn slice(source: &str, location: Location) -> Option<String> {
    let span = location.span();
    let from = usize::try_from(span.byte_offset()?).ok()?;
    let length = usize::try_from(span.byte_len()?).ok()?;
    let text = source.get(from..from.checked_add(length)?)?.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// What the parser makes of a node.
enum Raw {
    Null,
    Bool(bool),
    Whole(u64),
    /// A number of another kind.
    Other(String),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Whole(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(u64::try_from(value).map_or_else(|_| Raw::Other(value.to_string()), Raw::Whole))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(Raw::Other(value.to_string()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Other(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Other(value.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Raw, E> {
        Ok(Raw::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}
