//! What the command lines show to whom, whom they believe, and what they say when they
//! will not: the binaries, over real TLS, against somebody who writes down who came.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use leasehold_doors::{
    Caller, Door, Limits, Listener, ListenerFiles, ListenerTls, Pem, Places, Watch,
};
use leasehold_tests::AgentProcess;
use serde_json::json;
use tokio::{net::TcpListener, runtime::Runtime};

const LEASEHOLD: &str = env!("CARGO_BIN_EXE_leasehold-under-test");
const AGENT: &str = env!("CARGO_BIN_EXE_leasehold-agent-under-test");
const TOKEN: &str = "lh_0123456789ab_c2VjcmV0LXNlY3JldC1zZWNyZXQ";

/// Who asked for what: the path, the token and the certificate's name.
type Seen = (String, Option<String>, Option<String>);

/// Somebody who answers like a node that has nothing, over TLS.
struct Node {
    dir: tempfile::TempDir,
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Serves for as long as it lives.
    _runtime: Runtime,
    _watch: Watch,
}

/// What one command did.
struct Ran {
    code: i32,
    said: String,
}

fn answer(path: &str) -> Response {
    match path {
        "/readyz" => StatusCode::OK.into_response(),
        "/v1/periods" => Json(json!({ "calendars": [] })).into_response(),
        "/v1/settings" => problem(StatusCode::FORBIDDEN, "forbidden"),
        _ => problem(StatusCode::UNAUTHORIZED, "unauthenticated"),
    }
}

fn problem(status: StatusCode, code: &str) -> Response {
    let body = json!({ "code": code, "title": "No", "detail": "not you" });
    (status, Json(body)).into_response()
}

impl Node {
    /// Authorities and certificates by the command itself, and a node that shows them.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let folder = dir.path().to_str().unwrap();
        for words in [
            "cert ca --out DIR",
            "cert node --ca-dir DIR --name node --host localhost",
            "cert operator --ca-dir DIR --name ada",
        ] {
            let words = words.replace("DIR", folder);
            let made = run(LEASEHOLD, &words.split(' ').collect::<Vec<_>>(), &[]);
            assert_eq!(made.code, 0, "{}", made.said);
        }
        fs::write(at("token"), TOKEN).unwrap();
        fs::set_permissions(at("token"), Permissions::from_mode(0o600)).unwrap();

        let pem = |field, name| Pem {
            field,
            path: at(name),
        };
        let files = ListenerFiles {
            certificate: pem("tls.certificate", "node.pem"),
            key: pem("tls.key", "node-key.pem"),
            client_ca: Some(pem("tls.client_ca", "client-ca.pem")),
            node_ca: None,
            must_show: false,
        };
        let mut watch = Watch::default();
        let sources = files.sources();
        let read = move |contents: &_| ListenerTls::read(&files, contents);
        let kept = watch.keep("the certificates", sources, read, |tls| {
            tls.expiries.clone()
        });
        let kept = kept.unwrap();

        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let noted = Arc::clone(&seen);
        let router = Router::new().fallback(move |request: Request| async move {
            let path = request.uri().path().to_owned();
            let token = request.headers().get("authorization");
            let token = token.map(|value| value.to_str().unwrap().to_owned());
            let caller = request.extensions().get::<Caller>().cloned().unwrap();
            let name = caller.certificate.map(|certificate| certificate.name);
            noted.lock().unwrap().push((path.clone(), token, name));
            answer(&path)
        });
        let limits = Limits {
            connections_per_address_max: 100,
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            header_bytes_max: 16_384,
            streams_max: 100,
            ping_every: Duration::from_secs(60),
            ping_within: Duration::from_secs(20),
            window_bytes: None,
        };
        let door = Door::new(router, Arc::new(Places::new(100)), limits, |_| {});
        let door = Arc::new(door.with_tls(move || kept.now()));
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        runtime.spawn(door.serve(Listener::Tcp(listener)));
        Self {
            dir,
            port,
            seen,
            _runtime: runtime,
            _watch: watch,
        }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}", self.port)
    }

    /// `leasehold WORDS` at this node, which is called `localhost` unless `more` says
    /// otherwise.
    fn ask(&self, words: &str, more: &[&str], env: &[(&str, &str)]) -> Ran {
        let url = self.url("localhost");
        let mut words: Vec<&str> = words.split(' ').collect();
        words.extend(more);
        if !more.contains(&"--endpoint") {
            words.extend(["--endpoint", &url]);
        }
        run(LEASEHOLD, &words, env)
    }

    fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn run(binary: &str, words: &[&str], env: &[(&str, &str)]) -> Ran {
    let output = Command::new(binary)
        .args(words)
        .env_clear()
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(!said.contains("c2VjcmV0"), "a token is shown: {said}");
    Ran {
        code: output.status.code().unwrap(),
        said,
    }
}

fn seen(path: &str, token: Option<&str>, name: Option<&str>) -> Seen {
    let token = token.map(|token| format!("Bearer {token}"));
    (path.to_owned(), token, name.map(str::to_owned))
}

#[test]
fn a_command_shows_the_node_what_it_was_given_by_flag_or_environment() {
    let node = Node::start();
    let ca = node.file("node-ca.pem");
    let (certificate, key) = (node.file("ada.pem"), node.file("ada-key.pem"));
    let token = node.file("token");
    for (more, env, token, name) in [
        (&["--ca", &*ca][..], &[][..], None, None),
        (
            &["--ca", &ca, "--token-file", &token],
            &[],
            Some(TOKEN),
            None,
        ),
        (
            &["--ca", &ca, "--cert", &certificate, "--key", &key],
            &[],
            None,
            Some("ada"),
        ),
        (
            &[],
            &[("LEASEHOLD_CA", &*ca), ("LEASEHOLD_TOKEN", TOKEN)],
            Some(TOKEN),
            None,
        ),
        (
            &[],
            &[
                ("LEASEHOLD_CA", &ca),
                ("LEASEHOLD_TOKEN_FILE", &token),
                ("LEASEHOLD_CERT", &certificate),
                ("LEASEHOLD_KEY", &key),
            ],
            Some(TOKEN),
            Some("ada"),
        ),
    ] {
        let ran = node.ask("period list", more, env);
        assert_eq!(ran.code, 0, "{more:?}: {}", ran.said);
        assert_eq!(node.take_seen(), [seen("/v1/periods", token, name)]);
    }
}

#[test]
fn a_node_that_is_not_vouched_for_or_is_called_another_is_not_asked() {
    let node = Node::start();
    let (ca, other) = (node.file("node-ca.pem"), node.file("client-ca.pem"));
    let elsewhere = node.url("127.0.0.1");
    let plain = format!("http://127.0.0.1:{}", node.port);
    let env = [("LEASEHOLD_TOKEN", TOKEN)];
    for (more, code, part) in [
        (
            &["--ca", &*other][..],
            3,
            format!("--ca {other} does not vouch for the certificate that localhost shows"),
        ),
        (
            &["--ca", &ca, "--endpoint", &elsewhere],
            3,
            "is not for that name but for localhost".to_owned(),
        ),
        (&[], 2, "with --ca".to_owned()),
        (&["--endpoint", &plain], 3, "https://".to_owned()),
    ] {
        let ran = node.ask("period list", more, &env);
        assert_eq!(ran.code, code, "{}", ran.said);
        assert!(ran.said.contains(&part), "{}", ran.said);
        assert_eq!(node.take_seen(), []);
    }
}

#[test]
fn a_token_is_not_sent_to_another_machine_in_the_clear() {
    let token = [("LEASEHOLD_TOKEN", TOKEN)];
    let words = ["period", "list", "--endpoint", "http://192.0.2.1:7070"];
    let ran = run(LEASEHOLD, &words, &token);
    assert_eq!(ran.code, 2, "{}", ran.said);
    assert!(ran.said.contains("over TLS only"), "{}", ran.said);
    let rules =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/agent/tests/ratelimit/address.yaml");
    let words = [
        "import",
        rules.to_str().unwrap(),
        "--coordinator",
        "http://192.0.2.1:7070",
    ];
    let ran = run(AGENT, &words, &token);
    assert_eq!(ran.code, 2, "{}", ran.said);
    assert!(ran.said.contains("over TLS only"), "{}", ran.said);
}

#[test]
fn secrets_that_others_can_read_are_not_used() {
    let node = Node::start();
    let ca = node.file("node-ca.pem");
    for (flags, secret) in [
        (&["--token-file", "token"][..], "token"),
        (
            &["--cert", "ada.pem", "--key", "ada-key.pem"],
            "ada-key.pem",
        ),
    ] {
        let at = node.file(secret);
        fs::set_permissions(&at, Permissions::from_mode(0o644)).unwrap();
        let mut more = vec!["--ca".to_owned(), ca.clone()];
        more.extend(flags.iter().map(|word| match word.strip_prefix("--") {
            Some(_) => (*word).to_owned(),
            None => node.file(word),
        }));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let ran = node.ask("period list", &more, &[]);
        assert_eq!(ran.code, 2, "{}", ran.said);
        assert!(ran.said.contains("(unusable_credentials)"), "{}", ran.said);
        assert!(ran.said.contains(&at), "{}", ran.said);
        assert_eq!(node.take_seen(), []);
    }
    let half = node.ask("period list", &["--ca", &ca, "--cert", "x"], &[]);
    assert_eq!(half.code, 2, "{}", half.said);
    assert!(half.said.contains("belong together"), "{}", half.said);
}

#[test]
fn who_is_not_known_or_not_allowed_is_told_what_to_do() {
    let node = Node::start();
    let ca = node.file("node-ca.pem");
    let token = node.file("token");
    let backup = node.file("backup");
    for words in ["policy list", &format!("backup {backup}")] {
        let ran = node.ask(words, &["--ca", &ca], &[]);
        assert_eq!(ran.code, 1, "{}", ran.said);
        assert!(ran.said.contains("(unauthenticated)"), "{}", ran.said);
        assert!(ran.said.contains("--token-file"), "{}", ran.said);
        let ran = node.ask(words, &["--ca", &ca, "--token-file", &token], &[]);
        assert!(ran.said.contains("leasehold token create"), "{}", ran.said);
        assert!(ran.said.contains(&token), "{}", ran.said);
    }
    let ran = node.ask("settings", &["--ca", &ca, "--token-file", &token], &[]);
    assert_eq!(ran.code, 1, "{}", ran.said);
    assert!(
        ran.said.contains("the role must be another"),
        "{}",
        ran.said
    );
}

#[test]
fn an_import_shows_and_believes_as_much() {
    let node = Node::start();
    let url = node.url("localhost");
    let rules =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/agent/tests/ratelimit/address.yaml");
    let import = |more: &[&str], env: &[(&str, &str)]| {
        let mut words = vec!["import", rules.to_str().unwrap(), "--coordinator", &url];
        words.extend(more);
        run(AGENT, &words, env)
    };
    let (ca, token) = (node.file("node-ca.pem"), node.file("token"));
    let (certificate, key) = (node.file("ada.pem"), node.file("ada-key.pem"));
    let ran = import(
        &["--ca", &ca, "--cert", &certificate, "--key", &key],
        &[("LEASEHOLD_TOKEN_FILE", &token)],
    );
    assert_eq!(ran.code, 1, "{}", ran.said);
    assert!(ran.said.contains("leasehold token create"), "{}", ran.said);
    let all = node.take_seen();
    assert!(all.len() > 1, "{all:?}");
    for (path, shown, name) in all {
        assert_eq!(seen(&path, Some(TOKEN), Some("ada")), (path, shown, name));
    }
    let ran = import(&["--ca", &node.file("client-ca.pem")], &[]);
    assert_eq!(ran.code, 3, "{}", ran.said);
    assert!(ran.said.contains("(tls_failed)"), "{}", ran.said);
    assert_eq!(node.take_seen(), []);
}

#[test]
fn a_check_of_an_agents_configuration_reads_its_credentials() {
    let node = Node::start();
    let config = node.file("agent.toml");
    let check = |token: &str| {
        let text = format!(
            "[coordinator]\nendpoints = [{:?}]\nca = \"node-ca.pem\"\ncertificate = \"ada.pem\"\nkey = \
             \"ada-key.pem\"\ntoken_file = {token:?}\n[rls]\n",
            node.url("localhost")
        );
        fs::write(&config, text).unwrap();
        run(AGENT, &["check-config", "--config", &config], &[])
    };
    let ran = check("token");
    assert_eq!(ran.code, 0, "{}", ran.said);
    let ran = check("no-token");
    assert_eq!(ran.code, 2, "{}", ran.said);
    assert!(ran.said.contains("coordinator.token_file"), "{}", ran.said);
    fs::set_permissions(node.file("ada-key.pem"), Permissions::from_mode(0o640)).unwrap();
    let ran = check("token");
    assert_eq!(ran.code, 2, "{}", ran.said);
    assert!(ran.said.contains("coordinator.key"), "{}", ran.said);
    assert!(ran.said.contains("(unusable_credentials)"), "{}", ran.said);
}

/// A node of its own, started from what was printed; it ends when this is dropped.
struct Served(std::process::Child);

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// What stands between two marks of what was printed.
fn between<'a>(printed: &'a str, from: &str, to: &str) -> &'a str {
    let (_, rest) = printed.split_once(from).expect(printed);
    rest.split_once(to).map_or(rest, |(part, _)| part)
}

#[test]
fn what_cert_prints_is_all_that_a_node_an_agent_and_a_person_need() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    let cert = |words: &str| {
        let words = words.replace("DIR", folder);
        let made = run(LEASEHOLD, &words.split(' ').collect::<Vec<_>>(), &[]);
        assert_eq!(made.code, 0, "{}", made.said);
        made.said
    };
    cert("cert ca --out DIR");
    let node = cert("cert node --ca-dir DIR --name node1 --host localhost");
    let edge = cert("cert gateway --ca-dir DIR --name edge");
    let ada = cert("cert operator --ca-dir DIR --name ada");

    let identities = format!(
        "{}\n{}\n",
        between(&edge, "may spend:\n", "\nIn an agent's"),
        between(&ada, "or viewer):\n", "\nThen:")
    );
    let identities_file = dir.path().join("identities.toml");
    fs::write(&identities_file, identities).unwrap();
    let data = dir.path().join("data");
    let config = between(&node, "node's file:\n", "\0")
        .replace("identities.toml", identities_file.to_str().unwrap());
    let config = format!(
        "listen = \"127.0.0.1:0\"\npeer_listen = \"127.0.0.1:0\"\ndata_dir = {data:?}\n{config}"
    );
    let file = dir.path().join("node.toml");
    fs::write(&file, config).unwrap();
    let log = fs::File::create(dir.path().join("log")).unwrap();
    let served = Command::new(LEASEHOLD)
        .args(["serve", "--config", file.to_str().unwrap()])
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let _served = Served(served);
    let logged = || fs::read_to_string(dir.path().join("log")).unwrap();
    let port = eventually(logged, || {
        let text = fs::read_to_string(data.join("addresses.json")).ok()?;
        let addresses: serde_json::Value = serde_json::from_str(&text).ok()?;
        let (_, port) = addresses["client"].as_str()?.rsplit_once(':')?;
        port.parse::<u16>().ok()
    });

    let url = format!("https://localhost:{port}");
    let file = |name: &str| format!("{folder}/{name}");
    let as_ = |who: &str, words: &str| {
        let (certificate, key) = (file(&format!("{who}.pem")), file(&format!("{who}-key.pem")));
        let env = [
            ("LEASEHOLD_ENDPOINT", &*url),
            ("LEASEHOLD_CA", &file("node-ca.pem")),
            ("LEASEHOLD_CERT", &certificate),
            ("LEASEHOLD_KEY", &key),
        ];
        run(LEASEHOLD, &words.split(' ').collect::<Vec<_>>(), &env)
    };
    eventually(logged, || {
        let words = "budget set edge/* --limit 2 --window 1m";
        (as_("ada", words).code == 0).then_some(())
    });
    let refused = as_("edge", "budget list");
    assert_eq!(refused.code, 1, "{}", refused.said);
    assert!(refused.said.contains("(forbidden)"), "{}", refused.said);

    let coordinator = between(&edge, "agent's file:\n", "\0");
    let coordinator = coordinator.replace("https://node1.internal:7070", &url);
    let rules = "[listen]\ntcp = \"127.0.0.1:0\"\n[check]\nkey = \"edge/{header:x-key}\"\n";
    let agent = dir.path().join("agent");
    let agent = AgentProcess::start(Path::new(AGENT), &agent, &format!("{coordinator}\n{rules}"));
    let agent = agent.unwrap();
    agent.wait_ready(Duration::from_secs(60)).unwrap();
    let statuses: Vec<u16> = (0..3)
        .map(|_| agent.ask("/v1/check", &[("x-key", "acme")]).unwrap().status)
        .collect();
    assert_eq!(statuses, [204, 204, 429], "{}", agent.log());
}

/// Waits for somebody else, for a minute at most.
fn eventually<T>(logged: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(60), "{}", logged());
        std::thread::sleep(Duration::from_millis(50));
    }
}
