//! A cluster of real `leasehold serve` processes on loopback, for the demo and
//! for tests: started, asked, killed and started again. Does not know what the
//! cluster is used for, nor anything of a node's inside: it sees processes,
//! `addresses.json` and HTTP answers.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often a state that somebody else reaches is looked at.
const POLL: Duration = Duration::from_millis(20);
/// Below the range that Linux gives to outgoing connections (32768 and up), so
/// that a killed node's port is still free when it comes back.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// Nodes that end when this is dropped.
#[derive(Debug)]
pub struct LocalCluster {
    binary: PathBuf,
    nodes: Vec<LocalNode>,
    // Last: the folder goes after the processes.
    dir: tempfile::TempDir,
}

#[derive(Debug)]
struct LocalNode {
    child: Option<Child>,
    config: PathBuf,
    log: PathBuf,
    client: SocketAddr,
    starts: u32,
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: String,
}

impl Answer {
    /// The body as JSON; null when it is something else.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// What a node says of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Its position in the cluster, from 0.
    pub node: usize,
    /// Its term.
    pub term: u64,
}

impl LocalCluster {
    /// Starts `size` nodes of `binary`; `settings` is added to every node's file
    /// (its `[cluster]` or `[raft]` section, for example).
    ///
    /// # Errors
    /// When a process cannot be started. Started ones are ended.
    pub fn start(binary: &Path, size: usize, settings: &str) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let ports = Self::free_ports(2 * size)?;
        let (client_ports, peer_ports) = ports.split_at(size);
        let members: String = peer_ports
            .iter()
            .zip(1..)
            .map(|(port, id)| {
                format!("[[initial_members]]\nnode_id = {id}\npeer = \"127.0.0.1:{port}\"\n")
            })
            .collect();
        let mut files = Vec::with_capacity(size);
        for ((client, peer), id) in client_ports.iter().zip(peer_ports).zip(1..) {
            let data = dir.path().join(format!("node{id}"));
            let members = if size > 1 { members.as_str() } else { "" };
            let config = dir.path().join(format!("node{id}.toml"));
            fs::write(
                &config,
                format!(
                    "node_id = {id}\ndata_dir = '{}'\nlisten = \"127.0.0.1:{client}\"\n\
                     peer_listen = \"127.0.0.1:{peer}\"\n{members}{settings}\n",
                    data.display()
                ),
            )?;
            files.push((config, SocketAddr::from(([127, 0, 0, 1], *client))));
        }
        Self::from_files(binary, dir, files)
    }

    /// Starts one node for each configuration file (with the client address that
    /// it names). Logs go to `dir`.
    ///
    /// # Errors
    /// When a process cannot be started. Started ones are ended.
    pub fn from_files(
        binary: &Path,
        dir: tempfile::TempDir,
        files: Vec<(PathBuf, SocketAddr)>,
    ) -> io::Result<Self> {
        let mut cluster = Self {
            binary: binary.to_owned(),
            nodes: Vec::new(),
            dir,
        };
        for (config, client) in files {
            let log = cluster
                .dir
                .path()
                .join(format!("node{}.log", cluster.nodes.len() + 1));
            cluster.nodes.push(LocalNode {
                child: None,
                config,
                log,
                client,
                starts: 0,
            });
            cluster.restart(cluster.nodes.len() - 1)?;
        }
        Ok(cluster)
    }

    /// How many nodes there are, running or not.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The folder that holds everything.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Every node's URL, as gateways use it.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| format!("http://{}", node.client))
            .collect()
    }

    /// Starts a node, unless it runs.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn restart(&mut self, node: usize) -> io::Result<()> {
        let node = &mut self.nodes[node];
        if node.child.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&node.log)?;
        node.child = Some(
            Command::new(&self.binary)
                .arg("serve")
                .arg("--config")
                .arg(&node.config)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?,
        );
        node.starts += 1;
        Ok(())
    }

    /// Ends a node with SIGKILL and waits until the process is gone.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut child) = self.nodes[node].child.take() {
            // An error here says that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The process id of a running node.
    #[must_use]
    pub fn pid(&self, node: usize) -> Option<u32> {
        self.nodes[node].child.as_ref().map(Child::id)
    }

    /// Whether the node's process runs; one that ended by itself does not.
    pub fn is_running(&mut self, node: usize) -> bool {
        self.nodes[node]
            .child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Waits until every running node is ready.
    ///
    /// # Errors
    /// When one is not in time or has ended; the message ends with its log.
    pub fn wait_ready(&mut self, within: Duration) -> io::Result<()> {
        let give_up = Instant::now() + within;
        for node in 0..self.nodes.len() {
            while self.nodes[node].child.is_some() {
                if self
                    .get_from(node, "/readyz")
                    .is_ok_and(|answer| answer.status == 200)
                {
                    break;
                }
                let what = if !self.is_running(node) {
                    "ended"
                } else if Instant::now() > give_up {
                    "is not ready"
                } else {
                    thread::sleep(POLL);
                    continue;
                };
                return Err(io::Error::other(format!(
                    "node {} {what}\n{}",
                    node + 1,
                    self.log_tail(node)
                )));
            }
        }
        Ok(())
    }

    /// The last lines of a node's log.
    #[must_use]
    pub fn log_tail(&self, node: usize) -> String {
        let log = fs::read(&self.nodes[node].log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// Who leads, as far as a running node says; of two claims the later term's.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        let says = |node: usize| {
            self.nodes[node].child.as_ref()?;
            let status = self.get_from(node, "/v1/cluster").ok()?.json();
            let leader = status["leader"]
                .as_u64()
                .or_else(|| status["leader"]["node_id"].as_u64())?;
            let node = usize::try_from(leader.checked_sub(1)?).ok()?;
            // One that was killed is not the leader any more, whoever still says so.
            self.nodes.get(node)?.child.as_ref()?;
            Some(Leader {
                node,
                term: status["term"].as_u64()?,
            })
        };
        (0..self.nodes.len())
            .filter_map(says)
            .max_by_key(|leader| leader.term)
    }

    /// Waits until some node leads.
    ///
    /// # Errors
    /// When none does in time.
    pub fn wait_leader(&self, within: Duration) -> io::Result<Leader> {
        let give_up = Instant::now() + within;
        loop {
            if let Some(leader) = self.leader() {
                return Ok(leader);
            }
            if Instant::now() > give_up {
                return Err(io::Error::other("nobody leads"));
            }
            thread::sleep(POLL);
        }
    }

    /// Asks any running node, again and again until it answers other than 503.
    ///
    /// # Errors
    /// When none does in time; the message holds the last answer.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
        within: Duration,
    ) -> io::Result<Answer> {
        let give_up = Instant::now() + within;
        let mut last = String::from("no node runs");
        loop {
            for node in self.nodes.iter().filter(|node| node.child.is_some()) {
                match request(node.client, method, path, body) {
                    Ok(answer) if answer.status != 503 => return Ok(answer),
                    Ok(answer) => last = answer.body,
                    Err(error) => last = error.to_string(),
                }
            }
            if Instant::now() > give_up {
                return Err(io::Error::other(format!("{method} {path}: {last}")));
            }
            thread::sleep(POLL);
        }
    }

    /// Posts once.
    ///
    /// # Errors
    /// When there is no answer: what became of it is unknown.
    pub fn post(to: SocketAddr, path: &str, body: &serde_json::Value) -> io::Result<Answer> {
        request(to, "POST", path, Some(body))
    }

    /// Asks one address once, whoever listens there.
    ///
    /// # Errors
    /// When there is no answer: what became of the request is unknown.
    pub fn ask(
        to: SocketAddr,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> io::Result<Answer> {
        request(to, method, path, body)
    }

    /// Ports that nobody listens on.
    ///
    /// # Errors
    /// When there are not enough.
    pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
        // Processes that choose at the same time begin at different places.
        let span = usize::from(PORTS.end - PORTS.start);
        let first = (std::process::id() as usize).wrapping_mul(97) % span;
        let candidates = PORTS.cycle().skip(first).take(span);
        let mut free = Vec::with_capacity(count);
        for port in candidates {
            if free.len() == count {
                break;
            }
            if TAKEN.lock().is_ok_and(|mut taken| taken.insert(port))
                && TcpListener::bind(("127.0.0.1", port)).is_ok()
            {
                free.push(port);
            }
        }
        if free.len() < count {
            return Err(io::Error::other("no free port on loopback"));
        }
        Ok(free)
    }

    /// Asks one node once.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn get_from(&self, node: usize, path: &str) -> io::Result<Answer> {
        request(self.nodes[node].client, "GET", path, None)
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }
}

/// Ports given out by this process, which need not be in use yet.
static TAKEN: std::sync::Mutex<std::collections::BTreeSet<u16>> =
    std::sync::Mutex::new(std::collections::BTreeSet::new());

/// One request on a connection of its own. HTTP/1.0, so that the answer ends
/// with the connection.
fn request(
    to: SocketAddr,
    method: &str,
    path: &str,
    body: Option<&serde_json::Value>,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let body = body.map(ToString::to_string).unwrap_or_default();
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: {to}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "no HTTP answer");
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(malformed)?;
    Ok(Answer {
        status,
        body: body.to_owned(),
    })
}
