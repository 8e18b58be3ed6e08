#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::result_large_err,
    reason = "tests"
)]

use std::collections::BTreeSet;

use figment::{
    Figment, Jail,
    providers::{Format, Toml},
};

use super::*;

fn with(toml: &str) -> Result<Config, String> {
    with_env(toml, &[], ServeFlags::default())
}

fn with_env(toml: &str, env: &[(&str, &str)], mut flags: ServeFlags) -> Result<Config, String> {
    let mut result = Err("not run".to_owned());
    Jail::expect_with(|jail| {
        jail.clear_env();
        jail.create_file("node.toml", toml)?;
        for (name, value) in env {
            jail.set_env(name, value);
        }
        flags.config = Some("node.toml".into());
        result = Config::load(&flags).map_err(|error| error.to_string());
        Ok(())
    });
    result
}

#[test]
fn without_any_source_the_documented_defaults_hold() {
    let config = with("").unwrap();
    assert_eq!(config.node_id, 1);
    assert_eq!(config.data_dir, PathBuf::from("./leasehold-data"));
    assert_eq!(config.listen.to_string(), "127.0.0.1:7070");
    assert_eq!(config.peer_listen.to_string(), "127.0.0.1:7071");
    assert_eq!(config.admin_listen, None);
    assert_eq!(config.initial_members, vec![]);
    assert_eq!(config.cluster, Settings::default());
    assert_eq!(config.raft.heartbeat, Duration::from_millis(100));
    assert_eq!(config.raft.election_timeout_min, Duration::from_millis(500));
    assert_eq!(
        config.raft.election_timeout_max,
        Duration::from_millis(1_000)
    );
    assert_eq!(config.snapshots.every_entries, 5_000);
    assert_eq!(config.snapshots.keep_entries, 5_000);
    assert!(config.warnings.is_empty());
}

#[test]
fn flags_win_over_the_environment_which_wins_over_the_file() {
    let toml = "node_id = 2\ndata_dir = 'file'\nlisten = '127.0.0.1:1'\n[raft]\nheartbeat_ms = 50";
    let env = [
        ("LEASEHOLD_DATA_DIR", "env"),
        ("LEASEHOLD_LISTEN", "127.0.0.1:2"),
        ("LEASEHOLD_RAFT__ELECTION_TIMEOUT_MIN_MS", "600"),
    ];
    let flags = ServeFlags {
        listen: Some("127.0.0.1:3".parse().unwrap()),
        ..ServeFlags::default()
    };
    let config = with_env(toml, &env, flags).unwrap();
    assert_eq!(config.node_id, 2);
    assert_eq!(config.data_dir, PathBuf::from("env"));
    assert_eq!(config.listen.port(), 3);
    assert_eq!(config.raft.heartbeat, Duration::from_millis(50));
    assert_eq!(config.raft.election_timeout_min, Duration::from_millis(600));
}

#[test]
fn variables_that_others_invent_are_warned_about_and_ignored() {
    let env = [
        ("LEASEHOLD_PORT", "tcp://10.0.0.1:7070"),
        ("LEASEHOLD_SERVICE_HOST", "10.0.0.1"),
        ("LEASEHOLD_ENDPOINT", "http://127.0.0.1:1"),
    ];
    let config = with_env("", &env, ServeFlags::default()).unwrap();
    assert_eq!(config.warnings.len(), 2, "{:?}", config.warnings);
    assert!(config.warnings[0].contains("LEASEHOLD_PORT"));
}

#[test]
fn every_refusal_names_the_field_its_value_and_what_is_allowed() {
    let cases = [
        "nodeid = 1",
        "node_id = 0",
        "node_id = 'one'",
        "listen = '7070'",
        "listen = '0.0.0.0:7070'",
        "listen = '0.0.0.0:7070'\ninsecure = true",
        "peer_listen = '127.0.0.1:7070'",
        "advertise = 'https://example.org:7070'",
        "advertise = 'example.org'",
        "peer_advertise = 'example.org'",
        "admin_advertise = 'http://127.0.0.1:7072'",
        "log_format = 'xml'",
        "listen = 'foo'",
        "peer_listen = '0.0.0.0:7071'\npeer_advertise = 'a:7071'",
        "[tls]\ncert = 'a.pem'",
        "[tls]",
        "[tls]\ncertificate = 'a.pem'",
        "[tls]\nclient_ca = 'ca.pem'",
        "[tls.peers]\nca = 'ca.pem'",
        "advertise = 'http://example.org:7070'\n[tls]\ncertificate = 'a.pem'\nkey = 'k.pem'",
        "[tls]\ncertificate = 'a.pem'\nkey = 'k.pem'\n[[initial_members]]\nnode_id = 1\npeer = '127.0.0.1:7071'\n[[initial_members]]\nnode_id = 2\npeer = 'b:7071'",
        "[limits]\nrequests_max = 0",
        "[limits]\nheader_ms = 5",
        "[limits]\nsockets = 5",
        "[auth]\ntoken = 'x'",
        "[raft]\nheartbeat_ms = 5",
        "[raft]\nheartbeat_ms = 400",
        "[raft]\nelection_timeout_max_ms = 500",
        "[raft]\nsnapshot_every_entries = 9",
        "[raft]\nsnapshot_keep_entries = 2000000",
        "[raft]\nelection = 1",
        "[[initial_members]]\nnode_id = 0\npeer = '127.0.0.1:7071'",
        "[[initial_members]]\nnode_id = 1\npeer = '127.0.0.1'",
        "[[initial_members]]\nnode_id = 1\npeer = '127.0.0.1:7271'",
        "[[initial_members]]\nnode_id = 2\npeer = 'a:1'\n[[initial_members]]\nnode_id = 2\npeer = 'b:1'",
        "[cluster]\nsession_ttl_ms = -1",
        "[cluster]\nsession_ttl_ms = 500",
        "[cluster]\nsession_ttl = 500",
        "[cluster]\ndefault_policy = 'basic'",
        "= nonsense",
    ];
    let transcript: Vec<String> = cases
        .iter()
        .map(|toml| {
            let answer = match with(toml) {
                Ok(_) => "accepted".to_owned(),
                Err(text) => text.replace(&std::env::temp_dir().display().to_string(), "TMP"),
            };
            format!("{}\n  -> {answer}", toml.replace('\n', " ; "))
        })
        .collect();
    insta::assert_snapshot!(transcript.join("\n"));
}

#[test]
fn a_missing_file_is_an_error_not_an_empty_file() {
    let flags = ServeFlags {
        config: Some("/nowhere/node.toml".into()),
        ..ServeFlags::default()
    };
    let text = Config::load(&flags).unwrap_err().to_string();
    assert!(text.contains("/nowhere/node.toml"), "{text}");
}

#[test]
fn beyond_loopback_needs_an_explicit_word() {
    let toml = "listen = '0.0.0.0:7070'\nadvertise = 'http://10.0.0.1:7070'\ninsecure = true";
    assert_eq!(
        with(toml).unwrap().advertise.as_deref(),
        Some("http://10.0.0.1:7070")
    );
    assert!(
        with(&toml.replace("true", "false"))
            .unwrap_err()
            .contains("--insecure")
    );
}

#[test]
fn coordinators_that_show_certificates_may_listen_beyond_loopback() {
    let toml = "peer_listen = '0.0.0.0:7071'\npeer_advertise = 'a:7071'\n[tls]\n\
                certificate = 'a.pem'\nkey = 'k.pem'\n[tls.peers]\nca = 'nodes.pem'";
    let tls = with(toml).unwrap().tls;
    let (listener, dialer) = tls.peers.unwrap();
    assert!(listener.must_show && listener.client_ca.is_none());
    assert_eq!(dialer.own.unwrap().0, listener.certificate);
    let clients = tls.clients.unwrap();
    assert!(!clients.must_show);
    assert_eq!(clients.node_ca, listener.node_ca);
    assert_eq!(tls.leader.unwrap().ca.field, "tls.peers.ca");
}

#[test]
fn the_node_files_in_deploy_describe_one_cluster() {
    one_cluster(&[
        "deploy/node1.toml",
        "deploy/node2.toml",
        "deploy/node3.toml",
    ]);
}

#[test]
fn the_node_files_with_tls_describe_one_cluster_that_needs_no_word_to_be_reached() {
    let files = ["1", "2", "3"].map(|n| format!("deploy/tls/node{n}.toml"));
    let configs = one_cluster(&files.each_ref().map(String::as_str));
    for (config, (file, id)) in configs.iter().zip(files.iter().zip(1..)) {
        let own = PathBuf::from(format!("secrets/node{id}.pem"));
        let clients = config.tls.clients.as_ref().unwrap();
        assert_eq!(clients.certificate.path, own);
        assert!(clients.client_ca.is_some() && clients.node_ca.is_some());
        let (listener, _) = config.tls.peers.as_ref().unwrap();
        assert_eq!(listener.certificate.path, own);
        assert_eq!(config.identities, configs[0].identities);
        assert!(config.identities.is_some());
        // As the file's comment says.
        let peer = format!("peer = \"{}\"", config.peer_listen);
        let elsewhere = text_of(file)
            .replace("listen = \"127.0.0.1:", "listen = \"0.0.0.0:")
            .replace(&peer, "peer = \"a:7071\"");
        let said = "advertise = 'https://a:7070'\npeer_advertise = 'a:7071'\n";
        with(&format!("{said}{elsewhere}")).unwrap();
    }
}

#[test]
fn the_first_node_file_names_every_field_and_what_it_has_as_comments_is_good() {
    let text = uncommented(&text_of("deploy/node1.toml")).replace(
        "peer = \"127.0.0.1:7071\"",
        "peer = \"coordinator-1.internal:7071\"",
    );
    let config = with(&text).unwrap();
    assert_eq!(config.limits, Limits::default());
    assert_eq!(
        config.cluster.preferred_leader_region.as_deref(),
        Some("eu")
    );

    let said: serde_json::Value = Figment::from(Toml::string(&text)).extract().unwrap();
    let path = || Some(PathBuf::from("x"));
    let text = || Some("x".to_owned());
    let mut all = Raw {
        admin_listen: Some(([127, 0, 0, 1], 1).into()),
        advertise: text(),
        admin_advertise: text(),
        peer_advertise: text(),
        region: text(),
        tls: Some(raw_tls(path)),
        auth: Some(super::raw::RawAuth {
            identities: PathBuf::new(),
        }),
        ..Raw::default()
    };
    all.cluster.preferred_leader_region = text();
    let mut all = serde_json::to_value(&all).unwrap();
    // What stands in the file needs no such word.
    all.as_object_mut().unwrap().remove("insecure").unwrap();
    assert_eq!(names(&said), names(&all));
}

fn raw_tls(path: impl Fn() -> Option<PathBuf>) -> super::tls::RawTls {
    super::tls::RawTls {
        certificate: path(),
        key: path(),
        client_ca: path(),
        ca: path(),
        peers: Some(super::tls::RawPeers {
            ca: PathBuf::new(),
            certificate: path(),
            key: path(),
        }),
    }
}

/// The fields of a file by their full names, but for those in lists.
fn names(value: &serde_json::Value) -> BTreeSet<String> {
    let Some(table) = value.as_object() else {
        return BTreeSet::new();
    };
    let inner = table.iter().flat_map(|(name, value)| {
        let inner = names(value).into_iter().map(|of| format!("{name}.{of}"));
        inner.chain([name.clone()]).collect::<Vec<_>>()
    });
    inner.collect()
}

/// A file with what it has as comments; of what it says twice then, the latter.
fn uncommented(text: &str) -> String {
    let mut lines: Vec<(&str, &str)> = Vec::new();
    let mut section = "";
    for line in text.lines() {
        let bare = line.trim_start_matches('#').trim_start();
        let name = bare.split_once(" = ").map_or("", |(name, _)| name);
        let is_field = !name.is_empty()
            && name
                .bytes()
                .all(|b| b"_".contains(&b) || b.is_ascii_lowercase());
        if bare.starts_with('[') {
            section = bare;
            lines.push((section, bare));
        } else if is_field {
            let is_list = section.starts_with("[[");
            lines.retain(|(of, said)| {
                is_list || *of != section || !said.starts_with(&format!("{name} = "))
            });
            lines.push((section, bare));
        }
    }
    lines
        .into_iter()
        .map(|(_, line)| format!("{line}\n"))
        .collect()
}

fn text_of(file: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(file)).unwrap()
}

fn one_cluster(files: &[&str]) -> Vec<Config> {
    let configs: Vec<Config> = files
        .iter()
        .map(|file| with(&text_of(file)).unwrap())
        .collect();
    for (config, id) in configs.iter().zip(1..) {
        assert_eq!(config.node_id, id);
        assert_eq!(config.initial_members, configs[0].initial_members);
        assert_eq!(config.initial_members.len(), 3);
        assert_eq!(config.cluster, configs[0].cluster);
        let own = config
            .initial_members
            .iter()
            .find(|member| member.node_id == id)
            .unwrap();
        assert_eq!(own.peer, config.peer_listen.to_string());
        assert!(
            configs
                .iter()
                .all(|other| other.node_id == id || other.data_dir != config.data_dir)
        );
    }
    configs
}
