//! Keys and patterns: what parses is canonical, and of the patterns that match the most
//! specific is found, also when others have gone. Knows nothing of accounts.

use leasehold_key::{Key, Pattern, PatternMap, PatternSegment};

/// Lines: the first is a key, the others are patterns.
pub(crate) fn keys(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let key = lines.next().and_then(|line| Key::parse(line).ok());
    if let Some(key) = &key {
        assert_eq!(Key::parse(key.as_str()).as_ref(), Ok(key));
        let decoded: Vec<String> = key
            .segments()
            .map(|segment| String::from_utf8(unescaped(segment)).expect("keys are UTF-8"))
            .collect();
        assert_eq!(Key::new(&decoded).as_ref(), Ok(key), "{decoded:?}");
    }
    let mut map = PatternMap::new();
    for pattern in lines.take(16).filter_map(|line| Pattern::parse(line).ok()) {
        assert_eq!(Pattern::parse(pattern.as_str()).as_ref(), Ok(&pattern));
        map.insert(pattern, ());
    }
    let Some(key) = key else { return };
    let mut matching: Vec<Pattern> = map
        .iter()
        .filter(|(pattern, ())| pattern.matches(&key))
        .map(|(pattern, ())| pattern.clone())
        .collect();
    matching.sort_by_key(specificity);
    for expected in matching {
        let found = map.resolve(&key).map(|(pattern, ())| pattern);
        assert_eq!(found, Some(&expected), "{key:?} in {map:?}");
        map.remove(&expected);
    }
    assert_eq!(map.resolve(&key), None, "{key:?} in {map:?}");
}

/// By segment from the left: a literal, the longest prefix, `*`, `**`.
fn specificity(pattern: &Pattern) -> Vec<(u8, std::cmp::Reverse<usize>)> {
    let rank = |segment: PatternSegment<'_>| match segment {
        PatternSegment::Literal(_) => (0, 0),
        PatternSegment::Prefix(prefix) => (1, prefix.len()),
        PatternSegment::Any => (2, 0),
        PatternSegment::Rest => (3, 0),
    };
    let ranks = pattern.segments().map(rank);
    ranks
        .map(|(kind, length)| (kind, std::cmp::Reverse(length)))
        .collect()
}

fn unescaped(segment: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let hex: String = rest.by_ref().take(2).map(char::from).collect();
            bytes.push(u8::from_str_radix(&hex, 16).expect("a canonical escape"));
        } else {
            bytes.push(byte);
        }
    }
    bytes
}
