//! An agent's start, its changes of configuration, its bounds, and its end.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::{AgentProcess, ask_http};
use rustix::process::{Pid, Signal, kill_process};

use crate::setup::{AGENT, CHECK, PATIENCE, Setup, check, stop};

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < give_up, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn ask_socket(socket: &Path, key: &str) -> u16 {
    let mut stream = UnixStream::connect(socket).unwrap();
    let answer = ask_http(&mut stream, "GET", "/v1/check", &[("x-key", key)], "");
    answer.unwrap().status
}

/// Whatever goes wrong meanwhile, the other thread ends.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the binary says and how it exits.
fn run(arguments: &[&str], config: &str) -> (i32, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent.toml");
    fs::write(&path, config).unwrap();
    let output = Command::new(AGENT)
        .args(arguments)
        .args(["--config", path.to_str().unwrap()])
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    (output.status.code().unwrap(), said)
}

#[test]
fn a_unix_socket_serves_the_same_and_goes_with_its_agent() {
    let setup = Setup::new();
    setup.put_window("edge/*", 2);
    let socket = setup.cluster.dir().join("agent.sock");
    let listen = format!("unix = {socket:?}");
    let config = format!("{}{CHECK}", setup.head(&listen));
    let mut agent = setup.agent_of(&config);
    agent.wait_ready(PATIENCE).unwrap();
    assert_eq!(ask_socket(&socket, "acme"), 204);
    assert_eq!(check(&agent, "acme").status, 204);
    assert_eq!(ask_socket(&socket, "acme"), 429);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);

    // Another agent leaves it alone while this one lives, and replaces what it leaves.
    let (code, said) = run(&["serve"], &config);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("in use by another process") && said.contains("(port_in_use)"));
    agent.kill();
    assert!(socket.exists());
    let agent = setup.agent_of(&config);
    agent.wait_ready(PATIENCE).unwrap();
    assert!([204, 429].contains(&ask_socket(&socket, "other")));
    stop(agent);
    assert!(!socket.exists());
}

#[test]
fn a_changed_configuration_is_taken_and_a_broken_one_is_not_and_said_to_be_broken() {
    let setup = Setup::new();
    setup.put_window("edge/*", 1);
    setup.put_window("other/*", 1);
    let agent = setup.agent(CHECK);
    let write = |rules: &str| {
        let beside = agent.config().with_extension("new");
        fs::write(&beside, format!("{}{rules}", setup.head(""))).unwrap();
        fs::rename(&beside, agent.config()).unwrap();
    };
    let metric = |line: &str| {
        let metrics = agent.ask("/metrics", &[]).unwrap().body;
        metrics.lines().any(|found| found == line)
    };
    assert_eq!(check(&agent, "acme").status, 204);
    assert_eq!(check(&agent, "acme").status, 429);

    write("[check]\nkey = \"other/{header:x-key}\"\n");
    eventually("the changed rule holds", || {
        check(&agent, "acme").status == 204
    });
    assert!(metric("leasehold_agent_reloads_total{outcome=\"ok\"} 1"));

    write("[check]\nkey = 7\n");
    eventually("it is said that it is broken", || {
        let told = agent.ask("/readyz", &[]).unwrap().json();
        told["configuration"]["current"] == false
    });
    let told = agent.ask("/readyz", &[]).unwrap();
    assert_eq!(told.status, 200, "it works as before");
    let problem = told.json()["configuration"]["problem"].to_string();
    assert!(problem.contains("key"), "{problem}");
    assert!(metric("leasehold_agent_configuration_broken 1"));
    assert!(metric(
        "leasehold_agent_reloads_total{outcome=\"failed\"} 1"
    ));
    assert_eq!(check(&agent, "acme").status, 429, "the rule before");
    assert_eq!(agent.log().matches("configuration_kept").count(), 1);

    write(&format!("[limits]\nconnections_max = 7\n{CHECK}"));
    eventually("what needs a restart is named", || {
        let told = agent.ask("/readyz", &[]).unwrap().json();
        told["configuration"]["needs_restart"] == serde_json::json!(["limits.connections_max"])
    });
    assert!(metric("leasehold_agent_configuration_broken 0"));
    agent.signal(Signal::HUP).unwrap();
    eventually("SIGHUP reads it again", || {
        metric("leasehold_agent_reloads_total{outcome=\"ok\"} 3")
    });
    stop(agent);
}

#[test]
fn what_is_too_much_is_refused_with_a_clear_answer() {
    let setup = Setup::new();
    let policy = serde_json::json!({
        "kind": "sliding_window", "limit": 10, "window_ms": 60_000, "max_wait_ms": 10_000,
    });
    setup.put_budget("edge/*", &policy);
    let limits = "[limits]\nconnections_max = 3\nrequests_max = 1\n";
    let agent = setup.agent(&format!("{limits}{CHECK}"));
    assert_eq!(check(&agent, "acme").status, 204);

    let long = "x".repeat(20_000);
    let told = agent.ask("/v1/check", &[("x-key", &long)]).unwrap();
    assert_eq!(told.status, 431, "{told:?}");

    // A request that waits: the coordinator says nothing.
    let coordinator = i32::try_from(setup.cluster.pid(0).unwrap()).unwrap();
    let coordinator = Pid::from_raw(coordinator).unwrap();
    kill_process(coordinator, Signal::STOP).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // For as long as it takes the other to come in between.
            while !is_over.load(Ordering::Relaxed) {
                let headers = [("x-key", "acme"), ("x-cost", "9")];
                let status = agent.ask("/v1/check", &headers).unwrap().status;
                assert!([204, 429, 503].contains(&status), "{status}");
            }
        });
        let _over = StopsWhenDropped(&is_over);
        eventually("there is no room for another", || {
            let told = check(&agent, "acme");
            told.status == 503 && told.header("retry-after") == Some("1")
        });
        let metrics = agent.ask("/metrics", &[]).unwrap().body;
        assert!(metrics.contains("outcome=\"overloaded\""), "{metrics}");
    });
    kill_process(coordinator, Signal::CONT).unwrap();

    let idle: Vec<TcpStream> = (0..3)
        .map(|_| TcpStream::connect(agent.addr()).unwrap())
        .collect();
    let mut told = String::new();
    eventually("there is no room for a fourth connection", || {
        told.clear();
        let mut fourth = TcpStream::connect(agent.addr()).unwrap();
        fourth
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let _ = fourth.read_to_string(&mut told);
        told.starts_with("HTTP/1.1 503")
    });
    drop(idle);
    eventually("there is room again", || {
        agent
            .ask("/healthz", &[])
            .is_ok_and(|told| told.status == 200)
    });
    stop(agent);
}

#[test]
fn a_stop_answers_what_is_under_way_and_hands_everything_back() {
    let setup = Setup::new();
    setup.put_window("edge/*", 1_000);
    let agent = setup.agent(CHECK);
    for _ in 0..20 {
        assert_eq!(check(&agent, "acme").status, 204);
    }
    // A connection that is kept, and one that begins a request only now.
    let mut kept = TcpStream::connect(agent.addr()).unwrap();
    let question = "GET /v1/check HTTP/1.1\r\nhost: agent\r\nx-key: acme\r\n\r\n";
    kept.write_all(question.as_bytes()).unwrap();
    kept.set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut answer = [0; 12];
    kept.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 204");
    let begun = Instant::now();
    stop(agent);
    let took = begun.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "idle connections hold it up: {took:?}"
    );
    // `spent` also says that nothing is outstanding.
    assert_eq!(setup.spent("edge/acme"), 21);
}

#[test]
fn what_is_wrong_is_said_with_its_code_before_anything_begins() {
    let (code, said) = run(&["check-config"], CHECK);
    assert_eq!(code, 0, "{said}");
    for command in ["serve", "check-config"] {
        let (code, said) = run(&[command], "[check]\nkex = 1\n");
        assert_eq!(code, 2, "{said}");
        assert!(
            said.contains("kex") && said.contains("(invalid_config)"),
            "{said}"
        );
        let open = "[listen]\ntcp = \"0.0.0.0:0\"\n[rls]\n";
        let (code, said) = run(&[command], open);
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("--insecure"), "{said}");
    }
    let (code, _) = run(
        &["check-config", "--insecure"],
        "[listen]\ntcp = \"0.0.0.0:0\"\n[rls]\n",
    );
    assert_eq!(code, 0);
    let version = Command::new(AGENT).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert!(version.starts_with("leasehold-agent 0."), "{version}");
}

#[test]
fn an_agent_on_a_port_that_is_taken_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "[listen]\ntcp = \"{}\"\n[rls]\n",
        taken.local_addr().unwrap()
    );
    let dir = tempfile::tempdir().unwrap();
    let error = AgentProcess::start(Path::new(AGENT), dir.path(), &config).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("in use by another process"), "{error}");
    assert!(error.contains("exit status: 3"), "{error}");
}
