//! Configurations as users have them, each with what becomes of it: `tests/ratelimit/*.yaml`
//! and the `.golden` file beside it. Lines that begin with `#?` ask about a request:
//! descriptors divided by `|`, each a list of `key=value` divided by `,`.
//!
//! `LEASEHOLD_GOLDEN=write cargo test -p leasehold-agent --test ratelimit` writes the golden
//! files anew; look at the differences before they are committed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{fmt::Write as _, fs, path::Path};

use leasehold_agent::ratelimit::{Config, Decision};

/// What becomes of a file.
fn outcome(name: &str, text: &str) -> String {
    let config = match Config::parse([(name, text)]) {
        Ok(config) => config,
        Err(problems) => return format!("{problems}\n"),
    };
    let mut out = String::new();
    for note in config.notes() {
        writeln!(out, "note: {note}").unwrap();
    }
    write!(out, "{}", config.plan()).unwrap();
    let rules = config.rules();
    let domain = config.domains().next().unwrap().to_owned();
    for line in text.lines() {
        let Some(request) = line.strip_prefix("#? ") else {
            continue;
        };
        let entry = |entry: &'static str| entry.split_once('=').expect("key=value");
        // Leaked so that entries may be split in place.
        let request: &'static str = request.to_owned().leak();
        let descriptors = request
            .split(" | ")
            .map(|descriptor| descriptor.split(", ").map(entry));
        writeln!(out, "? {request}").unwrap();
        for decision in rules.decide(&domain, descriptors) {
            match decision {
                Decision::Budget(key) => writeln!(out, "  counted under {key}"),
                Decision::Unlimited(Some(key)) => {
                    writeln!(out, "  unlimited, counted under {key}")
                }
                Decision::Unlimited(None) => writeln!(out, "  unlimited, not counted"),
                Decision::NoRule => writeln!(out, "  no rule"),
                Decision::Replaced => writeln!(out, "  replaced"),
                Decision::NoKey(error) => writeln!(out, "  no key: {error}"),
            }
            .unwrap();
        }
    }
    out
}

#[test]
fn every_configuration_becomes_what_its_golden_file_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ratelimit");
    let write = std::env::var("LEASEHOLD_GOLDEN").as_deref() == Ok("write");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 12, "{names:?}");
    let mut wrong = Vec::new();
    for name in names {
        let text = fs::read_to_string(folder.join(&name)).unwrap();
        let golden = folder.join(&name).with_extension("golden");
        let is = outcome(&name, &text);
        if write {
            fs::write(&golden, &is).unwrap();
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if is != expected {
            wrong.push(format!("--- {name} becomes\n{is}--- and not\n{expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
