//! What a shell sees of the `leasehold` binary: exit codes and what is printed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use leasehold_tests::LocalCluster;

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn an_answer_that_cannot_be_printed_is_no_success() {
    let mut cluster = LocalCluster::start(Path::new(LEASEHOLD), 1, "").unwrap();
    cluster.wait_ready(PATIENCE).unwrap();
    let endpoint = cluster.endpoints().remove(0);
    let ask = |json: &[&str]| {
        let mut command = Command::new(LEASEHOLD);
        command
            .args(["cluster", "--endpoint", &endpoint])
            .args(json);
        command
    };
    for json in [&["--json"][..], &[]] {
        assert_eq!(ask(json).output().unwrap().status.code(), Some(0));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = ask(json).stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("(cannot_write)"), "{said}");
    }
}

#[test]
fn why_a_node_does_not_start_is_said_once_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("identity"), "nonsense").unwrap();
    for format in ["text", "json"] {
        let output = Command::new(LEASEHOLD)
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--peer-listen",
                "127.0.0.1:0",
            ])
            .args(["--log-format", format, "--data-dir", data.to_str().unwrap()])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert_eq!(
            said.matches("is not what was written there").count(),
            1,
            "{said}"
        );
        assert_eq!(said.matches("damaged_store").count(), 1, "{said}");
    }
}
