//! Keys and patterns: what parses is canonical, and the most specific pattern is
//! one that matches. Knows nothing of accounts.

use leasehold_key::{Key, Pattern, PatternMap};

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
    match map.resolve(&key) {
        Some((found, ())) => assert!(found.matches(&key), "{found:?} does not match {key:?}"),
        None => {
            let missed = map.iter().find(|(pattern, ())| pattern.matches(&key));
            assert!(missed.is_none(), "{missed:?} matches {key:?}");
        }
    }
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
