//! What the certificates are good for, as rustls sees it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::Arc,
};

use clap::Parser;
use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::WebPkiClientVerifier,
};

use figment::providers::Format;
use x509_parser::pem::parse_x509_pem;

use super::super::{Cli, CliError, Command};

fn run(words: &str, dir: &Path) -> Result<super::Answer, CliError> {
    let words = words.replace("DIR", dir.to_str().unwrap());
    let words = ["leasehold", "cert"].into_iter().chain(words.split(' '));
    match Cli::try_parse_from(words).unwrap().command {
        Command::Cert { command } => command.run(),
        other => unreachable!("{other:?}"),
    }
}

/// Authorities, one certificate of each sort, and one for the loopback addresses.
fn made() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for words in [
        "ca --out DIR",
        "node --ca-dir DIR --name node1 --host node1.internal --host 10.0.0.1",
        "node --ca-dir DIR --name here",
        "gateway --ca-dir DIR --name edge-eu",
        "operator --ca-dir DIR --name ada@example.org",
    ] {
        run(words, dir.path()).unwrap();
    }
    dir
}

fn certificate(dir: &Path, name: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(dir.join(format!("{name}.pem"))).unwrap()
}

fn roots(dir: &Path, ca: &str) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(dir, ca)).unwrap();
    Arc::new(roots)
}

/// Whether a caller that trusts `ca` believes that `name` is the server `host`.
fn serves(dir: &Path, ca: &str, name: &str, host: &str) -> Result<(), rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(dir, ca), provider);
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let verifier = verifier.build().unwrap();
    verifier
        .verify_server_cert(&certificate(dir, name), &[], &host, &[], UnixTime::now())
        .map(drop)
}

/// Whether a server that trusts `ca` takes `name` for a caller.
fn calls(dir: &Path, ca: &str, name: &str) -> Result<(), rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(dir, ca), provider);
    let verifier = verifier.build().unwrap();
    verifier
        .verify_client_cert(&certificate(dir, name), &[], UnixTime::now())
        .map(drop)
}

#[test]
fn a_node_serves_its_hosts_and_no_others_and_calls_nodes() {
    let dir = made();
    let dir = dir.path();
    for host in ["node1.internal", "10.0.0.1"] {
        serves(dir, "node-ca", "node1", host).unwrap();
    }
    for host in ["localhost", "node1", "127.0.0.1", "node2.internal"] {
        serves(dir, "node-ca", "node1", host).unwrap_err();
    }
    for host in ["localhost", "127.0.0.1", "::1"] {
        serves(dir, "node-ca", "here", host).unwrap();
    }
    calls(dir, "node-ca", "node1").unwrap();
    calls(dir, "client-ca", "node1").unwrap_err();
    serves(dir, "client-ca", "node1", "node1.internal").unwrap_err();
}

#[test]
fn a_callers_certificate_passes_for_no_node_and_no_server() {
    let dir = made();
    let dir = dir.path();
    for name in ["edge-eu", "ada@example.org"] {
        calls(dir, "client-ca", name).unwrap();
        calls(dir, "node-ca", name).unwrap_err();
    }
    // Not even to who trusts the callers' authority by mistake.
    serves(dir, "client-ca", "edge-eu", "edge-eu").unwrap_err();
    let pem = fs::read(dir.join("ada@example.org.pem")).unwrap();
    let (_, pem) = parse_x509_pem(&pem).unwrap();
    let named = pem.parse_x509().unwrap();
    let name = named.subject().iter_common_name().next().unwrap();
    assert_eq!(name.as_str().unwrap(), "ada@example.org");
    assert!(named.subject_alternative_name().unwrap().is_none());
}

#[test]
fn certificates_end_when_they_were_told_to() {
    let dir = made();
    let dir = dir.path();
    run("gateway --ca-dir DIR --name week --days 7", dir).unwrap();
    let days = |name: &str| {
        let pem = fs::read(dir.join(format!("{name}.pem"))).unwrap();
        let (_, pem) = parse_x509_pem(&pem).unwrap();
        let validity = pem.parse_x509().unwrap().validity().clone();
        // One hour of it has passed already.
        (validity.not_after.timestamp() - validity.not_before.timestamp() - 3_600) / 86_400
    };
    assert_eq!((days("node-ca"), days("client-ca")), (3_650, 3_650));
    assert_eq!(
        (days("node1"), days("edge-eu"), days("week")),
        (397, 397, 7)
    );
    let error = run("gateway --ca-dir DIR --name long --days 3650", dir);
    // The authority was made a moment before.
    assert!(error.unwrap_err().to_string().contains("--days 3650"));
}

#[test]
fn keys_are_their_owners_alone() {
    let dir = made();
    let mode = |name: &str| {
        let metadata = fs::metadata(dir.path().join(name)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    for name in ["node-ca", "client-ca", "node1", "edge-eu"] {
        assert_eq!(mode(&format!("{name}-key.pem")), 0o600, "{name}");
    }
    assert_eq!(mode("node1.pem") & 0o400, 0o400);
    let left = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 12, "a temporary file is left");
}

#[test]
fn nothing_is_replaced_unless_it_is_said_so() {
    let dir = made();
    let dir = dir.path();
    fs::remove_file(dir.join("node1.pem")).unwrap();
    fs::remove_file(dir.join("node-ca.pem")).unwrap();
    for words in ["ca --out DIR", "gateway --ca-dir DIR --name edge-eu"] {
        let before = fs::read(dir.join("client-ca.pem")).unwrap();
        let error = run(words, dir).unwrap_err();
        assert_eq!(error.code(), "file_exists", "{error}");
        assert_eq!(fs::read(dir.join("client-ca.pem")).unwrap(), before);
    }
    assert!(!dir.join("node-ca.pem").exists(), "half of it was written");
    let before = fs::read(dir.join("edge-eu.pem")).unwrap();
    run("gateway --ca-dir DIR --name edge-eu --force", dir).unwrap();
    assert_ne!(fs::read(dir.join("edge-eu.pem")).unwrap(), before);
    calls(dir, "client-ca", "edge-eu").unwrap();
}

#[test]
fn an_authority_that_cannot_sign_says_why() {
    let dir = made();
    let dir = dir.path();
    let why = || {
        let error = run("gateway --ca-dir DIR --name new", dir).unwrap_err();
        assert_eq!(error.code(), "unusable_credentials");
        error.to_string()
    };
    let key = dir.join("client-ca-key.pem");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert!(why().contains("mode 0644"), "{}", why());
    fs::remove_file(&key).unwrap();
    fs::copy(dir.join("node-ca-key.pem"), &key).unwrap();
    assert!(why().contains("do not belong together"), "{}", why());
    fs::copy(dir.join("edge-eu.pem"), dir.join("client-ca.pem")).unwrap();
    assert!(why().contains("no authority's"), "{}", why());
    fs::remove_file(dir.join("client-ca.pem")).unwrap();
    assert!(why().contains("leasehold cert ca"), "{}", why());
}

#[test]
fn names_that_would_leave_the_folder_or_hide_an_authority_are_refused() {
    let dir = made();
    for name in [
        "../x",
        ".x",
        "-x",
        "",
        "a/b",
        "a b",
        "node-ca",
        "client-ca-key",
    ] {
        let leaf = format!("--name={name}");
        let words = ["leasehold", "cert", "gateway", "--ca-dir", "d", &leaf];
        let Command::Cert { command } = Cli::try_parse_from(words).unwrap().command else {
            unreachable!();
        };
        assert_eq!(command.run().unwrap_err().code(), "wrong_usage", "{name}");
    }
    for host in ["node1:7070", "https://node1", "no_such..host", ""] {
        let host = format!("--host={host}");
        let words = [
            "leasehold",
            "cert",
            "node",
            "--ca-dir",
            "d",
            "--name=n",
            &host,
        ];
        let Command::Cert { command } = Cli::try_parse_from(words).unwrap().command else {
            unreachable!();
        };
        assert_eq!(command.run().unwrap_err().code(), "wrong_usage", "{host}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 12);
}

#[test]
fn what_is_printed_can_be_put_into_the_files() {
    let dir = made();
    let answer = run("node --ca-dir DIR --name again --host h", dir.path()).unwrap();
    let (_, lines) = answer.text.split_once("file:\n").unwrap();
    let parsed: figment::value::Dict = figment::providers::Toml::from_str(lines).unwrap();
    assert!(parsed.contains_key("tls") && parsed.contains_key("auth"));
    assert_eq!(answer.value["files"].as_array().unwrap().len(), 2);
}
