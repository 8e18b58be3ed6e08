//! Every code that an error, an answer or a warning can carry has a page in
//! `deploy/runbook.md`, and every page has a code. The codes are found in the source:
//! a new one needs nothing but its page.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Functions that give codes.
const GIVERS: [&str; 3] = ["fn code(", "fn as_str(", "fn parts("];
/// Files whose `as_str` gives the words of policies, which are no codes.
const WORDS: [&str; 3] = ["policy.rs", "kind.rs", "policy_body.rs"];
/// What stands before a code that is written where it is used.
const PLACES: [&str; 2] = ["code: \"", "code = \""];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for item in fs::read_dir(folder).unwrap() {
        let path = item.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "tests" {
            sources(&path, found);
        } else if name.ends_with(".rs")
            && !name.contains("tests")
            && name != "runbook.rs"
            && !WORDS.contains(&name.as_str())
        {
            found.push(path);
        }
    }
}

fn is_code(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// The codes in one file's text.
fn codes_in(text: &str) -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    for giver in GIVERS {
        for (at, _) in text.match_indices(giver) {
            let body = &text[at..];
            // Methods are indented by four.
            let body = &body[..body.find("\n    }").unwrap_or(body.len())];
            codes.extend(body.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    for place in PLACES {
        let written = text.split(place).skip(1);
        codes.extend(written.filter_map(|rest| rest.split('"').next().map(str::to_owned)));
    }
    codes.retain(|code| is_code(code));
    codes
}

#[test]
fn every_code_has_a_page_in_the_runbook_and_every_page_a_code() {
    let mut files = Vec::new();
    for folder in ["src", "ledger/src", "../client/agent/src", "../doors/src"] {
        sources(&root().join(folder), &mut files);
    }
    let mut codes = BTreeSet::new();
    for file in files {
        codes.extend(codes_in(&fs::read_to_string(file).unwrap()));
    }
    for known in [
        "damaged_store",
        "disk_lost",
        "limit",
        "no_leader",
        "superseded",
        "not_a_backup",
        "file_exists",
        "wall_clock_far",
        "configuration_kept",
        "files_kept",
    ] {
        assert!(codes.contains(known), "{known} was not found in the source");
    }

    let runbook = fs::read_to_string(root().join("../deploy/runbook.md")).unwrap();
    let mut pages: BTreeMap<String, usize> = BTreeMap::new();
    let mut order = Vec::new();
    for page in runbook.split("\n### `").skip(1) {
        let (code, text) = page.split_once('`').unwrap();
        let text = text.split("\n#").next().unwrap_or_default();
        pages.insert(code.to_owned(), text.trim().len());
        order.push(code.to_owned());
    }
    let without: Vec<&String> = codes
        .iter()
        .filter(|code| !pages.contains_key(*code))
        .collect();
    assert!(
        without.is_empty(),
        "no page in deploy/runbook.md: {without:?}"
    );
    let stale: Vec<&String> = pages.keys().filter(|code| !codes.contains(*code)).collect();
    assert!(stale.is_empty(), "no code, but a page: {stale:?}");
    let empty: Vec<_> = pages.iter().filter(|(_, length)| **length < 20).collect();
    assert!(empty.is_empty(), "says nothing: {empty:?}");
    assert!(order.is_sorted(), "pages are in alphabetical order");
    assert_eq!(order.len(), pages.len(), "one page each");
}

#[test]
fn the_runbooks_links_lead_somewhere() {
    let runbook = fs::read_to_string(root().join("../deploy/runbook.md")).unwrap();
    let headings: BTreeSet<String> = runbook
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || " _-".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect();
    let links = runbook.split("](#").skip(1);
    let dead: Vec<&str> = links
        .filter_map(|link| link.split(')').next())
        .filter(|link| !headings.contains(*link))
        .collect();
    assert!(dead.is_empty(), "links to nowhere: {dead:?}");
}
