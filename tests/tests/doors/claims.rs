//! Every "cannot" of SECURITY.md names a test, and the tests are there.

use std::{fs, path::Path};

/// `path/to/file.rs` and `name` of every row of the table, which end in `file.rs::name`
/// between backticks.
fn named(text: &str) -> Vec<(String, String)> {
    let ticked = text.split('`').skip(1).step_by(2);
    let tests = ticked.filter_map(|ticked| ticked.split_once("::"));
    let of_files = tests.filter(|(file, _)| file.ends_with(".rs"));
    of_files
        .map(|(file, name)| (file.to_owned(), name.to_owned()))
        .collect()
}

#[test]
fn every_cannot_names_a_test_that_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let (mut claims, mut missing) = (0, Vec::new());
    for row in rows.skip(1).filter(|row| !row.starts_with("| ---")) {
        claims += 1;
        let tests = named(row);
        if tests.is_empty() {
            missing.push(row.to_owned());
        }
        for (file, name) in tests {
            let code = fs::read_to_string(root.join(&file)).unwrap_or_default();
            if !code.contains(&format!("fn {name}(")) {
                missing.push(format!("{file}::{name}"));
            }
        }
    }
    assert!(claims >= 20, "{claims} rows");
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}
