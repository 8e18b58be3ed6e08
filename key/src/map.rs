//! Values by pattern, found by key: the most specific pattern wins. Does not
//! know what the values are.

use std::collections::BTreeMap;

use crate::{Key, Pattern, PatternSegment};

/// A map from patterns to values that resolves keys.
///
/// The most specific matching pattern wins, judged segment by segment from the
/// left: a literal before the longest prefix before `*` before `**`.
#[derive(Clone, Debug)]
pub struct PatternMap<V> {
    values: BTreeMap<Pattern, V>,
    root: Node,
}

/// Where a walk through the segments has come to.
#[derive(Clone, Debug, Default)]
struct Node {
    /// The pattern that ends here.
    here: Option<Pattern>,
    literals: BTreeMap<Box<str>, Node>,
    prefixes: BTreeMap<Box<str>, Node>,
    any: Option<Box<Node>>,
    /// The pattern whose `**` stands here.
    rest: Option<Pattern>,
}

impl<V> Default for PatternMap<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> PatternMap<V> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self {
            values: BTreeMap::new(),
            root: Node::default(),
        }
    }

    /// Sets a pattern's value and gives back the one it had.
    pub fn insert(&mut self, pattern: Pattern, value: V) -> Option<V> {
        *self.root.slot(pattern.segments()) = Some(pattern.clone());
        self.values.insert(pattern, value)
    }

    /// The value of exactly this pattern.
    #[must_use]
    pub fn get(&self, pattern: &Pattern) -> Option<&V> {
        self.values.get(pattern)
    }

    /// The value of exactly this pattern.
    pub fn get_mut(&mut self, pattern: &Pattern) -> Option<&mut V> {
        self.values.get_mut(pattern)
    }

    /// Takes a pattern out.
    pub fn remove(&mut self, pattern: &Pattern) -> Option<V> {
        let value = self.values.remove(pattern)?;
        self.root.prune(pattern.segments());
        Some(value)
    }

    /// All patterns with their values, ordered by the patterns' text.
    pub fn iter(&self) -> impl Iterator<Item = (&Pattern, &V)> {
        self.values.iter()
    }

    /// How many patterns there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Every pattern that matches a key, with its value, the most specific first.
    #[must_use]
    pub fn matching(&self, key: &Key) -> Vec<(&Pattern, &V)> {
        let mut found = Vec::new();
        self.root.find_all(Some(key.as_str()), &mut found);
        let valued = found
            .into_iter()
            .filter_map(|pattern| self.values.get_key_value(pattern));
        valued.collect()
    }

    /// The most specific pattern that matches a key, and its value.
    #[must_use]
    pub fn resolve(&self, key: &Key) -> Option<(&Pattern, &V)> {
        // Each node is visited at most once: the cost is bounded by the number
        // of patterns, however they overlap.
        self.values
            .get_key_value(self.root.find(Some(key.as_str()))?)
    }
}

impl Node {
    /// Where a pattern is to be noted, made as needed.
    fn slot<'a>(
        &mut self,
        segments: impl Iterator<Item = PatternSegment<'a>>,
    ) -> &mut Option<Pattern> {
        let mut node = self;
        for segment in segments {
            node = match segment {
                PatternSegment::Literal(text) => node.literals.entry(text.into()).or_default(),
                PatternSegment::Prefix(text) => node.prefixes.entry(text.into()).or_default(),
                PatternSegment::Any => node.any.get_or_insert_default(),
                PatternSegment::Rest => return &mut node.rest,
            };
        }
        &mut node.here
    }

    /// Takes a pattern out and every node that nothing needs any more.
    fn prune<'a>(&mut self, mut segments: impl Iterator<Item = PatternSegment<'a>>) {
        match segments.next() {
            None => self.here = None,
            Some(PatternSegment::Rest) => self.rest = None,
            Some(PatternSegment::Any) => {
                if let Some(node) = &mut self.any {
                    node.prune(segments);
                    if node.is_empty() {
                        self.any = None;
                    }
                }
            }
            Some(PatternSegment::Literal(text)) => prune_in(&mut self.literals, text, segments),
            Some(PatternSegment::Prefix(text)) => prune_in(&mut self.prefixes, text, segments),
        }
    }

    fn is_empty(&self) -> bool {
        self.here.is_none()
            && self.rest.is_none()
            && self.any.is_none()
            && self.literals.is_empty()
            && self.prefixes.is_empty()
    }

    /// The most specific pattern below this node that matches what is left of a key.
    fn find(&self, left: Option<&str>) -> Option<&Pattern> {
        let Some(left) = left else {
            return self.here.as_ref();
        };
        let (segment, left) = match left.split_once('/') {
            Some((segment, left)) => (segment, Some(left)),
            None => (left, None),
        };
        if let Some(found) = self.literals.get(segment).and_then(|node| node.find(left)) {
            return Some(found);
        }
        if !self.prefixes.is_empty() {
            for end in (1..=segment.len()).rev() {
                if let Some(found) = self
                    .prefixes
                    .get(&segment[..end])
                    .and_then(|node| node.find(left))
                {
                    return Some(found);
                }
            }
        }
        if let Some(found) = self.any.as_ref().and_then(|node| node.find(left)) {
            return Some(found);
        }
        self.rest.as_ref()
    }
}

impl Node {
    /// Every pattern below this node that matches what is left of a key, the most specific
    /// first.
    fn find_all<'a>(&'a self, left: Option<&str>, found: &mut Vec<&'a Pattern>) {
        let Some(left) = left else {
            found.extend(&self.here);
            return;
        };
        let (segment, left) = match left.split_once('/') {
            Some((segment, left)) => (segment, Some(left)),
            None => (left, None),
        };
        if let Some(node) = self.literals.get(segment) {
            node.find_all(left, found);
        }
        if !self.prefixes.is_empty() {
            for end in (1..=segment.len()).rev() {
                if let Some(node) = self.prefixes.get(&segment[..end]) {
                    node.find_all(left, found);
                }
            }
        }
        if let Some(node) = &self.any {
            node.find_all(left, found);
        }
        found.extend(&self.rest);
    }
}

fn prune_in<'a>(
    nodes: &mut BTreeMap<Box<str>, Node>,
    text: &str,
    segments: impl Iterator<Item = PatternSegment<'a>>,
) {
    if let Some(node) = nodes.get_mut(text) {
        node.prune(segments);
        if node.is_empty() {
            nodes.remove(text);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        reason = "tests"
    )]

    use std::cmp::Reverse;

    use proptest::prelude::*;

    use super::*;

    fn winner(patterns: &[&str], key: &str) -> Option<String> {
        let mut map = PatternMap::new();
        for pattern in patterns {
            map.insert(Pattern::parse(pattern).unwrap(), ());
        }
        map.resolve(&Key::parse(key).unwrap())
            .map(|(pattern, ())| pattern.to_string())
    }

    #[test]
    fn the_most_specific_wins_from_the_left() {
        let order = [
            "a/bc", "a/bc*", "a/b*", "a/*", "a/**", "a*/bc", "*/bc", "*/**", "**",
        ];
        for first in 0..order.len() {
            assert_eq!(
                winner(&order[first..], "a/bc").as_deref(),
                Some(order[first])
            );
        }
    }

    #[test]
    fn a_dead_end_falls_back_to_the_next_most_specific() {
        assert_eq!(
            winner(&["a/b/x", "a/*/c"], "a/b/c").as_deref(),
            Some("a/*/c")
        );
        assert_eq!(winner(&["a/b/x", "a/**"], "a/b/c").as_deref(), Some("a/**"));
        assert_eq!(winner(&["a/b/x"], "a/b/c"), None);
        assert_eq!(winner(&["a/**"], "a"), None);
    }

    #[test]
    fn a_removed_pattern_leaves_nothing_behind() {
        let mut map = PatternMap::new();
        let patterns = ["a/b*/c", "a/*/**", "x", "**"].map(|text| Pattern::parse(text).unwrap());
        for pattern in &patterns {
            assert_eq!(map.insert(pattern.clone(), 1), None);
        }
        assert_eq!(map.insert(patterns[0].clone(), 2), Some(1));
        for pattern in &patterns {
            assert!(map.remove(pattern).is_some());
            assert!(map.remove(pattern).is_none());
        }
        assert!(map.is_empty() && map.root.is_empty());
    }

    /// Sorts the most specific pattern first.
    fn specificity(pattern: &Pattern) -> Vec<(u8, Reverse<usize>)> {
        pattern
            .segments()
            .map(|segment| match segment {
                PatternSegment::Literal(_) => (0, Reverse(0)),
                PatternSegment::Prefix(prefix) => (1, Reverse(prefix.len())),
                PatternSegment::Any => (2, Reverse(0)),
                PatternSegment::Rest => (3, Reverse(0)),
            })
            .collect()
    }

    proptest! {
        #[test]
        fn resolving_agrees_with_trying_every_pattern(
            texts in prop::collection::vec("[ab]{0,2}\\*?(/[ab]{0,2}\\*?){0,2}(/\\*\\*)?", 1..12),
            removed in prop::collection::vec(any::<bool>(), 12),
            keys in prop::collection::vec("[ab]{1,3}(/[ab]{1,3}){0,3}", 1..8),
        ) {
            let mut map = PatternMap::new();
            let mut list = Vec::new();
            for (text, removed) in texts.iter().zip(removed) {
                let Ok(pattern) = Pattern::parse(text) else { continue };
                map.insert(pattern.clone(), ());
                if removed {
                    map.remove(&pattern);
                    list.retain(|other| *other != pattern);
                } else if !list.contains(&pattern) {
                    list.push(pattern);
                }
            }
            for key in keys {
                let key = Key::parse(&key).unwrap();
                let expected = list
                    .iter()
                    .filter(|pattern| pattern.matches(&key))
                    .min_by_key(|pattern| specificity(pattern));
                prop_assert_eq!(map.resolve(&key).map(|(pattern, ())| pattern), expected);
                let mut all: Vec<&Pattern> =
                    list.iter().filter(|pattern| pattern.matches(&key)).collect();
                all.sort_by_key(|pattern| specificity(pattern));
                let found: Vec<&Pattern> =
                    map.matching(&key).into_iter().map(|(pattern, ())| pattern).collect();
                prop_assert_eq!(found, all);
            }
        }
    }
}
