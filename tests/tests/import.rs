//! `leasehold-agent import` against a real coordinator: what the files of
//! envoyproxy/ratelimit say is what keys are judged by, once and however often it is
//! imported.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use clap::Parser;
use leasehold_agent::{
    import::{ImportError, ImportFlags, Imported},
    ratelimit::{Config, Decision},
};
use leasehold_tests::LocalCluster;
use serde_json::{Value, json};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const AGENT: &str = env!("CARGO_BIN_EXE_leasehold-agent-under-test");
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    import: ImportFlags,
}

const SHOP: &str = r#"
domain: shop
descriptors:
  - key: purpose
    value: advertisement
    descriptors:
      - key: recipient
        rate_limit: {name: advertising, unit: day, requests_per_unit: 5}
  - key: recipient
    rate_limit: {unit: day, requests_per_unit: 8}
  - key: recipient
    value: blocked
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: recipient
    value: staff
    rate_limit: {unlimited: true}
  - key: file
    value: reports/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: file
    value: pictures/*
    rate_limit: {unit: week, requests_per_unit: 2}
  - key: path
    value: /orders/*/refund
    rate_limit: {unit: month, requests_per_unit: 1}
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
"#;

const MAIL: &str = "domain: mail\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 1}\n";

/// A coordinator and the files that are imported into it.
struct Place {
    cluster: LocalCluster,
    files: Vec<PathBuf>,
}

impl Place {
    fn new() -> Self {
        let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 1, "").unwrap();
        cluster.wait_ready(PATIENCE).unwrap();
        let files = ["shop.yaml", "mail.yaml"].map(|name| cluster.dir().join(name));
        let place = Self {
            cluster,
            files: files.to_vec(),
        };
        place.say(SHOP);
        fs::write(&place.files[1], MAIL).unwrap();
        place
    }

    /// What the shop's file says from now on.
    fn say(&self, text: &str) {
        fs::write(&self.files[0], text).unwrap();
    }

    fn import(&self, more: &[&str]) -> Result<Imported, ImportError> {
        let endpoint = self.cluster.endpoints().remove(0);
        let files = self.files.iter().map(|file| file.to_str().unwrap());
        let arguments = ["import", "--coordinator", &endpoint].into_iter();
        let arguments = arguments.chain(files).chain(more.iter().copied());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(Cli::parse_from(arguments).import.import())
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.cluster.request("GET", path, None, PATIENCE).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    fn put(&self, path: &str, body: &Value) {
        let answer = self.cluster.request("PUT", path, Some(body), PATIENCE);
        let answer = answer.unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }

    fn rules(&self) -> (Value, Value) {
        (self.get("/v1/policies"), self.get("/v1/budgets"))
    }

    /// How many of some requests are let through, each of one unit, all by one descriptor.
    fn spend(&self, entries: &[(&str, &str)], requests: usize) -> usize {
        let config = Config::read(&self.files).unwrap();
        let decision = config.rules().decide("shop", [entries.iter().copied()]);
        let [Decision::Budget(key)] = decision.as_slice() else {
            panic!("{entries:?}: {decision:?}");
        };
        let body = json!({"key": key.as_str(), "units": 1});
        let outcome = |_| {
            let spend = self
                .cluster
                .request("POST", "/v1/spend", Some(&body), PATIENCE);
            let answer = spend.unwrap();
            assert!([200, 429].contains(&answer.status), "{}", answer.body);
            answer.status == 200
        };
        (0..requests)
            .map(outcome)
            .filter(|admitted| *admitted)
            .count()
    }
}

fn line_of<'a>(imported: &'a Imported, what: &str) -> &'a str {
    let mut found = imported.lines.iter().filter(|line| line.contains(what));
    let line = found
        .next()
        .unwrap_or_else(|| panic!("{what}: {imported:?}"));
    assert_eq!(found.next(), None, "{what}");
    line
}

#[test]
fn what_is_imported_judges_as_the_files_say_and_a_second_import_changes_nothing() {
    let place = Place::new();

    let empty = place.rules();
    let plan = place.cluster.dir().join("plan.yaml");
    let planned = place.import(&["--plan", plan.to_str().unwrap()]).unwrap();
    assert_eq!(planned.changes, 0);
    line_of(&planned, "nothing was imported");
    assert_eq!(place.rules(), empty);
    let imported = place.import(&["--dry-run"]).unwrap();
    assert_eq!((imported.changes, imported.dry_run), (20, true));
    assert!(line_of(&imported, "+ policy shop.recipient ").ends_with("8 in any 86400 s"));
    line_of(&imported, "20 things would change, nothing was changed");
    assert_eq!(place.rules(), empty);

    let imported = place.import(&[]).unwrap();
    assert_eq!((imported.changes, imported.dry_run), (20, false));
    let made = place.rules();
    assert_eq!(made.0["policies"].as_array().unwrap().len(), 10);
    let again = place.import(&[]).unwrap();
    assert_eq!(again.changes, 0, "{again:?}");
    line_of(&again, "nothing to do");
    assert_eq!(place.rules(), made);

    // The plan is a file that `leasehold apply` takes, and says the same.
    let endpoint = place.cluster.endpoints().remove(0);
    let applied = Command::new(LEASEHOLD)
        .args(["apply", "--dry-run", "--endpoint", &endpoint, "-f"])
        .arg(&plan)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&applied.stderr);
    assert_eq!(applied.status.code(), Some(0), "{said}");
    assert!(String::from_utf8_lossy(&applied.stdout).contains("nothing to do"));

    let advertisement = ("purpose", "advertisement");
    assert_eq!(place.spend(&[advertisement, ("recipient", "ann")], 7), 5);
    assert_eq!(place.spend(&[advertisement, ("recipient", "bert")], 1), 1);
    assert_eq!(place.spend(&[("recipient", "ann")], 9), 8);
    assert_eq!(place.spend(&[("recipient", "blocked")], 2), 0);
    assert_eq!(place.spend(&[("file", "reports/a")], 1), 1);
    assert_eq!(place.spend(&[("file", "reports/b")], 2), 1);
    assert_eq!(place.spend(&[("file", "pictures/a")], 3), 2);
    assert_eq!(place.spend(&[("file", "pictures/b")], 3), 2);
    assert_eq!(place.spend(&[("path", "/orders/7/refund")], 2), 1);
    assert_eq!(place.spend(&[("path", "/orders/8/refund")], 2), 1);
    assert_eq!(place.spend(&[("tenant", "acme")], 4), 3);
    assert_eq!(place.spend(&[("trial", "ann")], 3), 3);

    let policy = |name: &str| place.get(&format!("/v1/policies/{name}"));
    let advertising = policy("shop.purpose-advertisement.recipient");
    assert_eq!(advertising["public_name"], "advertising");
    assert_eq!(policy("shop.recipient-staff")["kind"], "unlimited");
    let yearly = policy("shop.tenant");
    assert_eq!(
        [
            &yearly["kind"],
            &yearly["period"],
            &yearly["time_zone"],
            &yearly["anchor"]
        ],
        [&json!("period"), &json!("year"), &json!("UTC"), &json!(1)]
    );
    assert_eq!(policy("shop.trial")["shadow"], true);
}

#[test]
fn what_the_files_say_nothing_of_stays_as_it_was_set_and_foreign_budgets_are_let_alone() {
    let place = Place::new();
    place.put("/v1/policies/own", &json!({"kind": "total", "limit": 7}));
    place.put("/v1/budgets/other/*", &json!({"policy": "own"}));
    place.put("/v1/budgets/shop/own/*", &json!({"policy": "own"}));
    let imported = place.import(&[]).unwrap();
    let kept = line_of(&imported, "left alone without --prune");
    assert!(kept.ends_with(": budget shop/own/*"), "{kept}");

    let mut tuned = place.get("/v1/policies/shop.recipient");
    for answered in ["name", "version", "etag"] {
        tuned.as_object_mut().unwrap().remove(answered);
    }
    tuned["failure_mode"] = "open".into();
    tuned["reserve"] = 3.into();
    place.put("/v1/policies/shop.recipient", &tuned);
    let capped = json!({"policy": "shop.recipient", "accounts_max": 1000});
    place.put("/v1/budgets/shop/recipient=*", &capped);
    assert_eq!(place.import(&[]).unwrap().changes, 0);

    place.say(&SHOP.replace("requests_per_unit: 8", "requests_per_unit: 6"));
    let imported = place.import(&[]).unwrap();
    assert_eq!(imported.changes, 1, "{imported:?}");
    let line = line_of(&imported, "~ policy shop.recipient ");
    assert!(line.ends_with("limit 8 -> 6"), "{line}");
    let policy = place.get("/v1/policies/shop.recipient");
    assert_eq!(
        (&policy["failure_mode"], &policy["limit"]),
        (&json!("open"), &json!(6))
    );
    assert_eq!(
        place.get("/v1/budgets/shop/recipient=*")["accounts_max"],
        1000
    );

    // Less than what is kept in reserve cannot be: the coordinator says which field.
    place.say(&SHOP.replace("requests_per_unit: 8", "requests_per_unit: 2"));
    for more in [&["--dry-run"][..], &[]] {
        let error = place.import(more).unwrap_err();
        let text = error.to_string();
        assert_eq!(
            (error.exit_code(), error.code()),
            (1, "invalid_field"),
            "{text}"
        );
        assert!(
            text.starts_with("policy shop.recipient, reserve: "),
            "{text}"
        );
        assert!(text.contains("0 things changed before"), "{text}");
    }

    // A rule that is gone goes with --prune, with the policy that was made for it.
    place.say(&SHOP[..SHOP.find("  - key: trial").unwrap()]);
    let imported = place.import(&[]).unwrap();
    assert_eq!(imported.changes, 1, "the limit again: {imported:?}");
    line_of(&imported, "budget shop/trial=*, policy shop.trial");
    let would = place.import(&["--prune", "--dry-run"]).unwrap();
    let deletions = [
        "- budget shop/own/*",
        "- budget shop/trial=*",
        "- policy shop.trial",
    ];
    for deletion in deletions {
        line_of(&would, deletion);
    }
    assert_eq!(would.changes, 3, "{would:?}");
    assert_eq!(place.import(&["--prune"]).unwrap().changes, 3);
    let (policies, budgets) = place.rules();
    let names = |list: &Value, name: &str| -> Vec<String> {
        let items = list.as_array().unwrap().iter();
        items
            .map(|item| item[name].as_str().unwrap().to_owned())
            .collect()
    };
    let policies = names(&policies["policies"], "name");
    assert!(policies.contains(&"own".to_owned()) && !policies.contains(&"shop.trial".to_owned()));
    let budgets = names(&budgets["budgets"], "pattern");
    assert!(budgets.contains(&"other/*".to_owned()) && budgets.contains(&"mail/user=*".to_owned()));
    assert_eq!(place.import(&["--prune"]).unwrap().changes, 0);
}

#[test]
fn a_file_that_is_not_understood_and_a_coordinator_that_is_not_there_are_said_so() {
    let place = Place::new();
    place.say(&SHOP.replace("unit: week", "unit: weak"));
    let error = place.import(&[]).unwrap_err();
    assert_eq!((error.exit_code(), error.code()), (2, "invalid_ratelimit"));
    let text = error.to_string();
    assert!(
        text.contains("shop.yaml:23:24: `unit` (weak) is unknown: did you mean `week`?"),
        "{text}"
    );
    assert_eq!(place.get("/v1/budgets")["budgets"], json!([]));

    place.say(SHOP);
    let port = LocalCluster::free_ports(1).unwrap()[0];
    let dead = format!("http://127.0.0.1:{port}");
    let alive = place.cluster.endpoints().remove(0);
    let file = place.files[0].to_str().unwrap();
    let import = |urls: &[&str]| {
        let urls = urls.iter().flat_map(|url| ["--coordinator", url]);
        let flags = Cli::parse_from(["import", file].into_iter().chain(urls)).import;
        tokio::runtime::Runtime::new()
            .unwrap()
            .block_on(flags.import())
    };
    let error = import(&[&dead]).unwrap_err();
    assert_eq!((error.exit_code(), error.code()), (3, "unreachable"));
    assert!(
        error
            .to_string()
            .contains(&format!("nobody answers at {dead}")),
        "{error}"
    );
    // What a shell sees.
    let shell = |more: &[&str]| {
        let mut agent = Command::new(AGENT);
        let output = agent.args(["import", file]).args(more).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, _, said) = shell(&["--coordinator", &dead]);
    assert_eq!(
        (code, said.ends_with("(unreachable)\n")),
        (3, true),
        "{said}"
    );
    let both = format!("{dead},{alive}");
    let (code, printed, said) = shell(&["--coordinator", &both, "--dry-run"]);
    assert_eq!((code, said.as_str()), (9, ""), "{printed}");
    assert!(
        printed.contains("+ budget shop/tenant=*  shop.tenant\n"),
        "{printed}"
    );
    assert_eq!(import(&[&dead, &alive]).unwrap().changes, 18);
    assert_eq!(shell(&["--coordinator", &both]).0, 0);
}
