//! `leasehold apply` and `leasehold export`, and the flags of rules, as a shell sees them:
//! the binary against a node.

use std::{path::PathBuf, process::Stdio};

use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::client::Fixture;

const FILE: &str = r#"
policies:
  - name: free
    kind: sliding_window
    limit: 10
    window_ms: 60000
    lanes: [{name: payment, reserve: 2, max_wait_ms: 1000}, {name: rest}]
  - {name: pro, kind: period, limit: 1000, period: month, time_zone: Europe/Berlin, anchor: 15}
budgets:
  - {pattern: "api-key/*/**", policy: free, accounts_max: 1000}
  - {pattern: api-key/k1/**, policy: pro}
  - {pattern: own, policy: {kind: token_bucket, capacity: 5, refill: 1, refill_period_ms: 1000}}
"#;

pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Fixture {
    pub(crate) async fn shell(&self, args: &[&str], input: &str) -> Said {
        let endpoint = format!("http://{}", self.running.admin_addr());
        let mut child = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(args)
            .args(["--endpoint", &endpoint, "--by", "ada"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A command that reads nothing may be gone already.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        Said {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("budgets.yaml");
        std::fs::write(&path, text).unwrap();
        path
    }

    async fn apply(&self, text: &str, flags: &[&str]) -> Said {
        let path = self.file(text);
        let mut args = vec!["apply", "-f", path.to_str().unwrap()];
        args.extend(flags);
        self.shell(&args, "").await
    }
}

#[tokio::test]
async fn a_file_is_applied_once_and_then_there_is_nothing_to_do() {
    let node = Fixture::start().await;
    let tried = node.apply(FILE, &["--dry-run"]).await;
    assert_eq!(tried.code, 9, "{}{}", tried.out, tried.err);
    assert!(
        tried.out.contains("+ policy free  10 in any 1m"),
        "{}",
        tried.out
    );
    assert!(tried.out.contains("5 things would change"), "{}", tried.out);
    assert_eq!(
        node.ask("GET", "/v1/policies", "").await.json()["policies"],
        Value::Array(vec![])
    );

    let applied = node.apply(FILE, &[]).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    for flags in [&[][..], &["--dry-run"], &["--prune"]] {
        let again = node.apply(FILE, flags).await;
        assert_eq!(again.code, 0, "{}{}", again.out, again.err);
        assert!(again.out.starts_with("nothing to do"), "{}", again.out);
    }
    let versions = node
        .ask("GET", "/v1/policies/free/versions", "")
        .await
        .json();
    assert_eq!(versions["versions"].as_array().unwrap().len(), 1);
    assert_eq!(versions["versions"][0]["by"], "ada");
    node.running.shutdown().await;
}

#[tokio::test]
async fn what_is_exported_and_applied_again_changes_nothing_here_and_makes_the_same_elsewhere() {
    let node = Fixture::start().await;
    assert_eq!(node.apply(FILE, &[]).await.code, 0);
    let exported = node.shell(&["export"], "").await;
    assert_eq!(exported.code, 0, "{}", exported.err);
    let again = node
        .shell(&["apply", "-f", "-", "--prune"], &exported.out)
        .await;
    assert!(
        again.out.starts_with("nothing to do"),
        "{}{}",
        again.out,
        again.err
    );
    assert_eq!(again.code, 0);

    let other = Fixture::start().await;
    let applied = other.shell(&["apply", "-f", "-"], &exported.out).await;
    assert_eq!(applied.code, 0, "{}{}", applied.out, applied.err);
    let exported_there = other.shell(&["export"], "").await;
    assert_eq!(exported_there.out, exported.out);
    let json = node.shell(&["export", "--json"], "").await;
    let as_json = other.shell(&["apply", "-f", "-"], &json.out).await;
    assert!(
        as_json.out.starts_with("nothing to do"),
        "{}{}",
        as_json.out,
        as_json.err
    );
    other.running.shutdown().await;
    node.running.shutdown().await;
}

#[tokio::test]
async fn only_prune_deletes_and_what_is_in_use_elsewhere_is_said_before_anything_is_changed() {
    let node = Fixture::start().await;
    assert_eq!(node.apply(FILE, &[]).await.code, 0);
    node.must(
        "POST",
        "/v1/spend",
        r#"{"key":"api-key/k2/reads","units":5}"#,
    )
    .await;
    let less = r#"
policies:
  - {name: free, kind: sliding_window, limit: 3, window_ms: 60000}
budgets:
  - {pattern: "api-key/*/**", policy: free}
"#;
    let kept = node.apply(less, &["--dry-run"]).await;
    assert_eq!(kept.code, 9, "{}", kept.err);
    assert!(kept.out.contains("~ policy free  lanes"), "{}", kept.out);
    assert!(kept.out.contains("limit 10 -> 3"), "{}", kept.out);
    assert!(
        kept.out.contains("debts would grow by 2 units"),
        "{}",
        kept.out
    );
    assert!(
        kept.out
            .contains("left alone without --prune: policy pro, budget api-key/k1/**, budget own"),
        "{}",
        kept.out
    );
    node.must("PUT", "/v1/settings", r#"{"default_policy":"pro"}"#)
        .await;
    let refused = node.apply(less, &["--prune"]).await;
    assert_eq!(refused.code, 2, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("default_policy"), "{}", refused.err);
    assert_eq!(node.ask("GET", "/v1/budgets/own", "").await.status, 200);

    node.must("PUT", "/v1/settings", r#"{"default_policy":null}"#)
        .await;
    let pruned = node.apply(less, &["--prune"]).await;
    assert_eq!(pruned.code, 0, "{}{}", pruned.out, pruned.err);
    assert!(pruned.out.contains("- policy pro"), "{}", pruned.out);
    let names = node.ask("GET", "/v1/policies", "").await.json();
    assert_eq!(names["policies"].as_array().unwrap().len(), 1);
    assert_eq!(node.ask("GET", "/v1/budgets/own", "").await.status, 404);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_file_that_is_wrong_changes_nothing_and_says_where() {
    let node = Fixture::start().await;
    let wrong = FILE.replace("limit: 1000", "limit: -1");
    let refused = node.apply(&wrong, &[]).await;
    assert_eq!(refused.code, 2, "{}", refused.out);
    assert!(refused.err.contains("policies[1].limit"), "{}", refused.err);
    for flags in [&[][..], &["--dry-run"]] {
        let nobody = node
            .apply("budgets: [{pattern: a, policy: nobody}]", flags)
            .await;
        assert_eq!(nobody.code, 2, "{}", nobody.out);
        assert!(nobody.err.contains("policy nobody"), "{}", nobody.err);
    }
    // A policy that is there, and that --prune would take away from a budget that names it.
    assert_eq!(node.apply(FILE, &[]).await.code, 0);
    let kept = FILE.split("budgets:").nth(1).unwrap();
    let pruned = node.apply(&format!("budgets:{kept}"), &["--prune"]).await;
    assert_eq!(pruned.code, 2, "{}", pruned.out);
    assert!(pruned.err.contains("nothing was changed"), "{}", pruned.err);
    let missing = node.shell(&["apply", "-f", "/nowhere.yaml"], "").await;
    assert_eq!(missing.code, 2, "{}", missing.out);
    node.running.shutdown().await;
}

#[tokio::test]
async fn every_kind_is_set_listed_and_exported_from_the_command_line() {
    let node = Fixture::start().await;
    for (name, flags, phrase) in [
        (
            "w",
            "--limit 10 --window 60s --lane payment:2:1s --lane rest",
            "10 in any 1m",
        ),
        (
            "m",
            "--limit 9 --period month --time-zone europe/berlin --anchor 15 --carry-over 3",
            "9 per month from day 15, Europe/Berlin, 3 carried over",
        ),
        (
            "y",
            "--limit 9 --period year --time-zone europe/london --anchor 6 --anchor-month 4",
            "9 per year from 6 Apr, Europe/London",
        ),
        ("t", "--total 50", "50 in all"),
        ("c", "--concurrency 4 --hold-max 5m", "4 at once"),
        (
            "e",
            "--limit 7 --window 1s --estimate --shadow",
            "about 7 in any 1s",
        ),
        (
            "p",
            "--capacity 2 --refill 1 --every 1s --paced --cooldown 5s",
            "paced bucket of 2",
        ),
        (
            "b",
            "--capacity 2 --refill 1 --every 1s --failure-mode emergency --emergency-units 1",
            "bucket of 2, refilled by 1 every 1s",
        ),
        ("u", "--unlimited", "unlimited"),
    ] {
        let mut args = vec!["policy", "set", name];
        args.extend(flags.split(' '));
        let set = node.shell(&args, "").await;
        assert_eq!(set.code, 0, "{flags}: {}", set.err);
        assert!(set.out.contains(phrase), "{flags}: {}", set.out);
    }
    let listed = node.shell(&["policy", "list"], "").await.out;
    for also in [
        "lanes payment:2:1s > rest",
        "cool-down 5s",
        "shadow",
        "holds 5m",
        "emergency 1",
    ] {
        assert!(listed.contains(also), "{also}: {listed}");
    }
    let exported = node.shell(&["export"], "").await.out;
    let again = node
        .shell(&["apply", "-f", "-", "--prune"], &exported)
        .await;
    assert!(
        again.out.starts_with("nothing to do"),
        "{}{}",
        again.out,
        again.err
    );

    let nowhere = node.shell(
        &[
            "policy",
            "set",
            "x",
            "--limit",
            "1",
            "--period",
            "day",
            "--time-zone",
            "berlin",
        ],
        "",
    );
    let nowhere = nowhere.await;
    assert!(
        nowhere.err.contains("did you mean Europe/Berlin?"),
        "{}",
        nowhere.err
    );
    let tried = node
        .shell(
            &[
                "policy",
                "set",
                "w",
                "--limit",
                "5",
                "--window",
                "60s",
                "--dry-run",
            ],
            "",
        )
        .await;
    assert!(
        tried.out.contains("nothing was changed"),
        "{}{}",
        tried.out,
        tried.err
    );
    let versions = node.shell(&["policy", "versions", "w"], "").await;
    assert!(
        versions.out.contains("ada"),
        "{}{}",
        versions.out,
        versions.err
    );
    let absent = node
        .shell(&["policy", "set", "w", "--unlimited", "--if-absent"], "")
        .await;
    assert_eq!(absent.code, 1);
    assert!(absent.err.contains("precondition_failed"), "{}", absent.err);
    assert!(absent.err.contains("it exists already"), "{}", absent.err);
    // The field that a refusal is about, which its words do not name.
    let astray = r#"policies: [{name: q, kind: unlimited}]
budgets: [{pattern: a, policy: q, accounts_max: 0}]"#;
    let astray = node.apply(astray, &[]).await;
    assert!(astray.err.contains("budgets[0]"), "{}", astray.err);
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_dry_run_tells_machines_what_it_tells_people() {
    let node = Fixture::start().await;
    assert_eq!(node.apply(FILE, &[]).await.code, 0);
    let spent = node.ask("POST", "/v1/spend", r#"{"key":"api-key/x/y","units":8}"#);
    assert_eq!(spent.await.status, 200);
    let lower = FILE.replace("limit: 10\n", "limit: 5\n");
    let tried = node.apply(&lower, &["--dry-run", "--json"]).await;
    assert_eq!(tried.code, 9, "{}", tried.err);
    let value: Value = serde_json::from_str(&tried.out).unwrap();
    let effect = &value["effects"][0];
    assert_eq!(effect["of"], "policy free", "{value}");
    assert_eq!(
        (&effect["accounts"], &effect["debt"]),
        (&1.into(), &3.into()),
        "{value}"
    );
    assert_eq!(effect["worst"][0]["key"], "api-key/x/y", "{value}");
    node.running.shutdown().await;
}

#[tokio::test]
async fn a_policy_in_use_names_its_users_and_a_whole_list_takes_no_query() {
    let node = Fixture::start().await;
    assert_eq!(node.apply(FILE, &[]).await.code, 0);
    for number in 10..22 {
        let path = format!("/v1/budgets/of/{number}");
        node.must("PUT", &path, r#"{"policy":"pro"}"#).await;
    }
    let delete = node.shell(&["policy", "delete", "free"], "").await;
    assert!(
        delete
            .err
            .contains("used by api-key/*/**: change or delete that first"),
        "{}",
        delete.err
    );
    let delete = node.shell(&["policy", "delete", "pro"], "").await;
    let users = "used by api-key/k1/**, of/10, of/11, of/12, of/13, of/14, of/15, of/16, of/17, of/18 and 3 more: change \
                 or delete those first";
    assert!(delete.err.contains(users), "{}", delete.err);
    for path in [
        "/v1/budgets?limit=1",
        "/v1/policies?limit=1",
        "/v1/periods?x=y",
    ] {
        let reply = node.ask("GET", path, "").await;
        assert_eq!(
            (reply.status, &reply.json()["code"]),
            (400, &"invalid_query".into()),
            "{path}"
        );
    }
    node.running.shutdown().await;
}
