//! The scenarios that are shipped, and what all of them promise.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, path::PathBuf};

use leasehold_sim::{
    SECOND,
    output::Unwatched,
    scenario::{COORDINATOR_MESSAGES_PER_S, Design, Scenario},
    suite::Findings,
};

fn shipped() -> Vec<(PathBuf, Scenario)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/scenarios");
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    files.sort();
    let read = |file: PathBuf| {
        let text = fs::read_to_string(&file).unwrap();
        let scenario = Scenario::parse(&text)
            .map_err(|error| format!("{}: {error}", file.display()))
            .unwrap();
        (file, scenario)
    };
    files.into_iter().map(read).collect()
}

/// The same in some minutes, so that it can run unoptimised. What goes wrong later
/// goes wrong early.
fn shortened(mut scenario: Scenario) -> Scenario {
    let shrink = |us: u64| us / 15;
    scenario.from_us = 30 * SECOND;
    scenario.until_us = shrink(scenario.until_us);
    for flow in &mut scenario.flows {
        flow.from_us = shrink(flow.from_us);
        flow.until_us = shrink(flow.until_us);
    }
    for fault in &mut scenario.setup.faults {
        fault.at_us = shrink(fault.at_us);
    }
    scenario
}

fn findings(scenario: &Scenario) -> Findings {
    scenario
        .run(&Unwatched)
        .findings(scenario, COORDINATOR_MESSAGES_PER_S)
}

#[test]
fn every_shipped_scenario_runs_and_over_admits_nothing() {
    let shipped = shipped();
    assert_eq!(shipped.len(), 5);
    for (file, scenario) in shipped {
        let mut scenario = shortened(scenario);
        scenario.designs = vec![Design::Leasehold, Design::CentralLog];
        let results = scenario.run(&Unwatched);
        let findings = results.findings(&scenario, COORDINATOR_MESSAGES_PER_S);
        assert_eq!(findings.complaints, [""; 0], "{}", file.display());
        for (budget, figures) in scenario.budgets.iter().zip(&results.designs[0].budgets) {
            let what = format!("{}: {}: {figures:?}", file.display(), budget.name);
            assert_eq!(figures.over_admitted, 0, "{what}");
            assert!(figures.tally.requests > 50, "{what}");
            assert!(figures.tally.admitted > 0, "{what}");
        }
        let work = results.designs[0].work.unwrap();
        assert!(work.regular_up > 0 && work.entries > 0, "{work:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    for (file, scenario) in shipped() {
        let mut scenario = shortened(scenario);
        let output = |scenario: &Scenario| {
            let findings = findings(scenario);
            findings.text() + &findings.csv() + &findings.json_lines()
        };
        let first = output(&scenario);
        assert_eq!(first, output(&scenario), "{}", file.display());
        scenario.setup.seed += 1;
        assert_ne!(first, output(&scenario), "{}", file.display());
    }
}

#[test]
fn the_plan_says_what_the_coordinator_must_take() {
    let scenario = Scenario::parse(
        "minutes = 5\nwarm_up_minutes = 1\ngateways = 4\n\
         [budgets.orders]\nkind = \"sliding_window\"\nlimit = 600\nwindow_ms = 60000\nkeys = 5",
    )
    .unwrap();
    let findings = findings(&scenario);
    let text = findings.text();
    assert!(text.contains("The coordinator must take "), "{text}");
    assert!(
        text.contains("are the regular syncs of 4 gateways"),
        "{text}"
    );
    let leasehold = findings.json_lines().lines().next().unwrap().to_owned();
    // Four gateways, a sync each second.
    assert!(leasehold.contains("\"regular_up_per_s\":4"), "{leasehold}");
    assert!(leasehold.contains("\"over_admitted\":0"), "{leasehold}");
    assert!(
        leasehold.contains("\"keys_per_coordinator\":"),
        "{leasehold}"
    );
}
