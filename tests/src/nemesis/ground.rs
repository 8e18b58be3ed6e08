//! Where processes live: network namespaces with an address each, or loopback
//! addresses where the machine gives no namespaces. Knows no process and no link.
//!
//! Every node has two addresses. At the *real* one it listens. The *advertised*
//! one is what everybody is told to dial; nothing but a link answers there. In
//! namespaces it is a local address of every namespace, so that each host dials a
//! link of its own.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::host::Host;

/// Where gateways and operators connect.
pub(crate) const CLIENT_PORT: u16 = 7070;
/// Where the other coordinators connect.
pub(crate) const PEER_PORT: u16 = 7071;
/// Begins the names of our namespaces; the process id follows.
const PREFIX: &str = "lhnem-";
const NAMESPACES: &str = "/run/netns";

/// Places for hosts, taken back when this is dropped.
#[derive(Debug)]
pub(crate) struct Ground {
    kind: Kind,
    /// The second and third part of real addresses.
    real: [u8; 2],
    advertised: [u8; 2],
    /// Ends with the nemesis, whatever ends that.
    has_setpriv: bool,
    hosts: BTreeSet<Host>,
}

#[derive(Debug)]
enum Kind {
    Namespaces {
        bridge: String,
    },
    Loopback {
        /// Why there are no namespaces.
        reason: String,
    },
}

impl Ground {
    /// Namespaces if the machine can, loopback addresses otherwise.
    pub(crate) fn new() -> Self {
        let pid = std::process::id();
        let part = |number: u32| u8::try_from(number % 250).unwrap_or(0);
        let (kind, real, advertised) = match Self::bridge(pid) {
            Ok(bridge) => (
                Kind::Namespaces { bridge },
                [part(pid % 50 + 100), part(pid / 50)],
                [part(pid % 50 + 150), part(pid / 50)],
            ),
            Err(error) => (
                Kind::Loopback {
                    reason: error.to_string(),
                },
                [part(pid % 100 + 1), part(pid / 100)],
                [part(pid % 100 + 101), part(pid / 100)],
            ),
        };
        let mut ground = Self {
            kind,
            real,
            advertised,
            has_setpriv: runs("setpriv", &["--pdeathsig", "KILL", "true"]),
            hosts: BTreeSet::new(),
        };
        // The bridge alone proves little: try a whole place.
        if matches!(ground.kind, Kind::Namespaces { .. })
            && let Err(error) = ground.try_out()
        {
            ground.clear();
            ground.kind = Kind::Loopback {
                reason: error.to_string(),
            };
        }
        ground
    }

    fn bridge(pid: u32) -> io::Result<String> {
        if !rustix::process::geteuid().is_root() {
            return Err(io::Error::other("network namespaces need root"));
        }
        sweep();
        let bridge = format!("lhb{pid}");
        ip(&format!(
            "link add {bridge} type bridge\nlink set {bridge} up\n"
        ))?;
        Ok(bridge)
    }

    fn try_out(&mut self) -> io::Result<()> {
        if let Kind::Namespaces { bridge } = &self.kind {
            let [a, b] = self.real;
            ip(&format!("addr add 10.{a}.{b}.254/24 dev {bridge}\n"))?;
        }
        let trial = Host::Gateway(100);
        self.add(trial)?;
        drop(self.bind(trial, SocketAddr::from((self.advertised(trial)?, 0)))?);
        self.remove(trial);
        Ok(())
    }

    /// Why hosts have loopback addresses only; none: they have namespaces.
    pub(crate) fn without_namespaces(&self) -> Option<&str> {
        match &self.kind {
            Kind::Namespaces { .. } => None,
            Kind::Loopback { reason } => Some(reason),
        }
    }

    /// Makes a host's place, unless there is one.
    pub(crate) fn add(&mut self, host: Host) -> io::Result<()> {
        if !self.hosts.insert(host) {
            return Ok(());
        }
        let Kind::Namespaces { bridge } = &self.kind else {
            return Ok(());
        };
        let (name, veth, real) = (name(host), veth(host)?, self.real(host)?);
        let [a, b] = self.advertised;
        ip(&format!("netns add {name}\n"))?;
        ip(&format!(
            "link add {veth} type veth peer name eth0 netns {name}\n\
             link set {veth} master {bridge}\nlink set {veth} up\n"
        ))?;
        ip_in(
            &name,
            &format!(
                "addr add {real}/24 dev eth0\nlink set eth0 up\nlink set lo up\n\
                 addr add 10.{a}.{b}.254/24 dev lo\n"
            ),
        )
    }

    /// Takes a host's place back.
    pub(crate) fn remove(&mut self, host: Host) {
        if self.hosts.remove(&host) && matches!(self.kind, Kind::Namespaces { .. }) {
            // With it goes its end of the wire, and so the other one.
            let _ = ip(&format!("netns del {}\n", name(host)));
        }
    }

    /// Where a host really is.
    pub(crate) fn real(&self, host: Host) -> io::Result<Ipv4Addr> {
        self.address(self.real, host)
    }

    /// Where everybody dials it.
    pub(crate) fn advertised(&self, host: Host) -> io::Result<Ipv4Addr> {
        self.address(self.advertised, host)
    }

    fn address(&self, [a, b]: [u8; 2], host: Host) -> io::Result<Ipv4Addr> {
        let octet = host
            .octet()
            .ok_or_else(|| io::Error::other(format!("there is no address left for {host}")))?;
        let first = match self.kind {
            Kind::Namespaces { .. } => 10,
            Kind::Loopback { .. } => 127,
        };
        Ok(Ipv4Addr::new(first, a, b, octet))
    }

    /// Listens in a host's place.
    pub(crate) fn bind(&self, host: Host, at: SocketAddr) -> io::Result<TcpListener> {
        if matches!(self.kind, Kind::Loopback { .. }) {
            return TcpListener::bind(at);
        }
        let path = Path::new(NAMESPACES).join(name(host));
        // A socket stays where the thread was that made it; the thread ends.
        let bound = std::thread::spawn(move || {
            let place = File::open(path)?;
            move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&place),
                Some(LinkNameSpaceType::Network),
            )?;
            TcpListener::bind(at)
        });
        bound
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that binds panicked")))
    }

    /// A command that runs in a host's place, under its own process id.
    pub(crate) fn command(&self, host: Host, program: &Path) -> Command {
        let mut words: Vec<PathBuf> = Vec::new();
        if self.has_setpriv {
            words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(PathBuf::from));
        }
        if matches!(self.kind, Kind::Namespaces { .. }) {
            words.push("nsenter".into());
            words.push(format!("--net={NAMESPACES}/{}", name(host)).into());
            words.push("--".into());
        }
        words.push(program.to_owned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    fn clear(&mut self) {
        for host in std::mem::take(&mut self.hosts) {
            if matches!(self.kind, Kind::Namespaces { .. }) {
                let _ = ip(&format!("netns del {}\n", name(host)));
            }
        }
        if let Kind::Namespaces { bridge } = &self.kind {
            let _ = ip(&format!("link del {bridge}\n"));
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.clear();
    }
}

fn name(host: Host) -> String {
    format!("{PREFIX}{}-{host}", std::process::id())
}

/// At most 15 bytes.
fn veth(host: Host) -> io::Result<String> {
    let octet = host
        .octet()
        .ok_or_else(|| io::Error::other("there are too many hosts"))?;
    Ok(format!("lv{}x{octet}", std::process::id()))
}

/// Takes away what a nemesis left behind that was killed.
fn sweep() {
    let is_alive = |pid: &str| Path::new("/proc").join(pid).exists();
    let left = std::fs::read_dir(NAMESPACES).into_iter().flatten();
    for item in left.flatten() {
        let item = item.file_name();
        let Some(item) = item.to_str() else { continue };
        if let Some(pid) = item.strip_prefix(PREFIX).and_then(|t| t.split('-').next())
            && !is_alive(pid)
        {
            let _ = ip(&format!("netns del {item}\n"));
        }
    }
    let links = std::fs::read_dir("/sys/class/net").into_iter().flatten();
    for item in links.flatten() {
        let item = item.file_name();
        let Some(item) = item.to_str() else { continue };
        if let Some(pid) = item.strip_prefix("lhb")
            && pid.bytes().all(|byte| byte.is_ascii_digit())
            && !is_alive(pid)
        {
            let _ = ip(&format!("link del {item}\n"));
        }
    }
}

fn ip(batch: &str) -> io::Result<()> {
    batched(Command::new("ip").args(["-batch", "-"]), batch)
}

fn ip_in(namespace: &str, batch: &str) -> io::Result<()> {
    batched(
        Command::new("ip").args(["-netns", namespace, "-batch", "-"]),
        batch,
    )
}

fn batched(command: &mut Command, batch: &str) -> io::Result<()> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| io::Error::other(format!("ip: {error}")))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes())?;
    }
    let done = child.wait_with_output()?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!(
        "ip, told {batch:?}: {}",
        said.trim()
    )))
}

/// Whether a program is there and does its work.
pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    let ran = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    ran.is_ok_and(|status| status.success())
}
