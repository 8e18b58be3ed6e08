//! Real nodes with TLS and tokens, set up with the commands that operators use, and what
//! one can send to their ports. Does not know what is right.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    net::{SocketAddr, TcpStream},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::{HttpAnswer, LocalCluster, ask_http};

/// How often a state that somebody else reaches is looked at.
const POLL: Duration = Duration::from_millis(20);
/// Longer than an answer takes on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The folder of certificates, keys and tokens.
const SECRETS: &str = "secrets";
/// The operator who may do everything.
pub const ADMIN: &str = "ops";

/// One node of a [`TlsCluster`].
#[derive(Debug)]
pub struct TlsNode {
    child: Child,
    config: PathBuf,
    log: PathBuf,
    /// Where gateways and operators connect.
    pub client: SocketAddr,
    /// Where the other nodes connect.
    pub peer: SocketAddr,
    /// Its data folder.
    pub data_dir: PathBuf,
}

impl TlsNode {
    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for TlsNode {
    fn drop(&mut self) {
        // An error here says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Nodes that end when this is dropped.
#[derive(Debug)]
pub struct TlsCluster {
    binary: PathBuf,
    /// By their position, from 0.
    pub nodes: Vec<TlsNode>,
    // Last: the folder goes after the processes.
    dir: tempfile::TempDir,
}

impl TlsCluster {
    /// Starts `size` nodes of `binary` with certificates and an identity [`ADMIN`] that may
    /// do everything; `settings` is added to every node's file. Returns once they serve.
    ///
    /// # Errors
    /// When a command or a node fails; the message says what it printed.
    pub fn start(binary: &Path, size: usize, settings: &str) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir()?;
        let mut cluster = Self {
            binary: binary.to_owned(),
            nodes: Vec::new(),
            dir,
        };
        cluster.run(&["cert", "ca", "--out", SECRETS])?;
        cluster.create_token(ADMIN, &["--role", "admin"])?;
        let ports = LocalCluster::free_ports(2 * size)?;
        let (client_ports, peer_ports) = ports.split_at(size);
        let members: String = peer_ports
            .iter()
            .zip(1..)
            .map(|(port, id)| {
                format!("[[initial_members]]\nnode_id = {id}\npeer = \"127.0.0.1:{port}\"\n")
            })
            .collect();
        let members = if size > 1 { members.as_str() } else { "" };
        for ((client, peer), id) in client_ports.iter().zip(peer_ports).zip(1..) {
            let name = format!("node{id}");
            cluster.run(&["cert", "node", "--ca-dir", SECRETS, "--name", &name])?;
            let config = cluster.dir().join(format!("{name}.toml"));
            fs::write(
                &config,
                format!(
                    "node_id = {id}\ndata_dir = \"{name}\"\nlisten = \"127.0.0.1:{client}\"\n\
                     peer_listen = \"127.0.0.1:{peer}\"\n{settings}\n\
                     [tls]\ncertificate = \"{SECRETS}/{name}.pem\"\nkey = \"{SECRETS}/{name}-key.pem\"\n\
                     client_ca = \"{SECRETS}/client-ca.pem\"\n\
                     [tls.peers]\nca = \"{SECRETS}/node-ca.pem\"\n\
                     [auth]\nidentities = \"{SECRETS}/identities.toml\"\n{members}"
                ),
            )?;
            let log = cluster.dir().join(format!("{name}.log"));
            let child = serve(binary, cluster.dir(), &config, &log)?;
            cluster.nodes.push(TlsNode {
                child,
                config,
                log,
                client: SocketAddr::from(([127, 0, 0, 1], *client)),
                peer: SocketAddr::from(([127, 0, 0, 1], *peer)),
                data_dir: cluster.dir().join(&name),
            });
        }
        cluster.wait_ready(Duration::from_secs(60))?;
        Ok(cluster)
    }

    /// Kills a node with SIGKILL, and starts it again on its folder.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn kill_and_restart(&mut self, node: usize) -> io::Result<()> {
        let dir = self.dir().to_owned();
        let node = &mut self.nodes[node];
        // An error here says that it has ended already.
        let _ = node.child.kill();
        node.child.wait()?;
        node.child = serve(&self.binary, &dir, &node.config, &node.log)?;
        Ok(())
    }

    /// The same, with so many files that it may have open.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_with_files(&mut self, node: usize, files: u32) -> io::Result<()> {
        let dir = self.dir().to_owned();
        let node = &mut self.nodes[node];
        // An error here says that it has ended already.
        let _ = node.child.kill();
        node.child.wait()?;
        node.child = Command::new("sh")
            .arg("-c")
            .arg(format!(
                "ulimit -n {files} && exec \"$0\" serve --config \"$1\""
            ))
            .arg(&self.binary)
            .arg(&node.config)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::options().append(true).open(&node.log)?)
            .spawn()?;
        Ok(())
    }

    /// Who leads, as the first node that can say says: its position, from 0.
    ///
    /// # Errors
    /// When nobody says so in time.
    pub fn leader(&self, within: Duration) -> io::Result<usize> {
        let token = self.token(ADMIN)?;
        let give_up = Instant::now() + within;
        loop {
            for node in 0..self.nodes.len() {
                let answer = self.ask(node, "GET", "/v1/cluster", Some(token.trim()), "");
                let said = answer.map(|answer| answer.json()).unwrap_or_default();
                let leader = said["leader"].as_u64().and_then(|id| id.checked_sub(1));
                if let Some(leader) = leader.and_then(|at| usize::try_from(at).ok()) {
                    return Ok(leader);
                }
            }
            if Instant::now() > give_up {
                return Err(io::Error::other("nobody leads"));
            }
            thread::sleep(POLL);
        }
    }

    /// The folder that has everything.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file among certificates, keys and tokens.
    #[must_use]
    pub fn secret(&self, name: &str) -> PathBuf {
        self.dir().join(SECRETS).join(name)
    }

    /// The nodes' URLs.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| format!("https://{}", node.client))
            .collect()
    }

    /// Runs `leasehold` in the cluster's folder as [`ADMIN`], against the first node.
    ///
    /// # Errors
    /// When it fails; the message is what it printed.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> io::Result<Output> {
        let mut command = Command::new(&self.binary);
        command.args(args).current_dir(self.dir());
        if let Some(node) = self.nodes.first() {
            command
                .env("LEASEHOLD_ENDPOINT", format!("https://{}", node.client))
                .env("LEASEHOLD_CA", self.secret("node-ca.pem"))
                .env("LEASEHOLD_TOKEN_FILE", self.token_file(ADMIN));
        }
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(io::Error::other(said))
    }

    /// Creates a token and keeps it in [`Self::token_file`].
    ///
    /// # Errors
    /// When the command fails.
    pub fn create_token(&self, name: &str, flags: &[&str]) -> io::Result<String> {
        let token = self.another_token(name, flags)?;
        self.keep_token(name, &token)?;
        Ok(token)
    }

    /// Creates a token that nobody keeps yet.
    ///
    /// # Errors
    /// When the command fails.
    pub fn another_token(&self, name: &str, flags: &[&str]) -> io::Result<String> {
        let identities = format!("{SECRETS}/identities.toml");
        let mut args = vec![
            "token",
            "create",
            "--name",
            name,
            "--identities",
            &identities,
        ];
        args.extend(flags);
        let printed = self.run(&args)?.stdout;
        Ok(String::from_utf8_lossy(&printed).trim().to_owned())
    }

    /// Puts a token into [`Self::token_file`], all of it at once.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn keep_token(&self, name: &str, token: &str) -> io::Result<()> {
        let beside = self.secret(&format!("{name}.token.new"));
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        io::Write::write_all(&mut file, token.as_bytes())?;
        fs::rename(beside, self.token_file(name))
    }

    /// Where an identity's token is.
    #[must_use]
    pub fn token_file(&self, name: &str) -> PathBuf {
        self.secret(&format!("{name}.token"))
    }

    /// An identity's token.
    ///
    /// # Errors
    /// When it has none.
    pub fn token(&self, name: &str) -> io::Result<String> {
        fs::read_to_string(self.token_file(name))
    }

    /// Opens a TLS connection that trusts the nodes' authority.
    ///
    /// # Errors
    /// When there is no connection, or the handshake fails.
    pub fn connect(&self, addr: SocketAddr, show: Option<&str>) -> io::Result<TlsStream> {
        connect(
            addr,
            &self.secret("node-ca.pem"),
            show.map(|name| {
                (
                    self.secret(&format!("{name}.pem")),
                    self.secret(&format!("{name}-key.pem")),
                )
            }),
        )
    }

    /// Asks a node over TLS, with a token if one is given.
    ///
    /// # Errors
    /// When there is no answer: what became of the request is unknown.
    pub fn ask(
        &self,
        node: usize,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> io::Result<HttpAnswer> {
        let mut stream = self.connect(self.nodes[node].client, None)?;
        let bearer = token.map(|token| format!("Bearer {token}"));
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
        ask_http(&mut stream, method, path, &headers, body)
    }

    /// Waits until every node can answer.
    ///
    /// # Errors
    /// When one cannot in time; the message ends with its log.
    pub fn wait_ready(&self, within: Duration) -> io::Result<()> {
        let give_up = Instant::now() + within;
        for node in 0..self.nodes.len() {
            loop {
                let answer = self.ask(node, "GET", "/readyz", None, "");
                if answer.as_ref().is_ok_and(|answer| answer.status == 200) {
                    break;
                }
                if Instant::now() > give_up {
                    let log = self.nodes[node].log();
                    return Err(io::Error::other(format!("not ready: {answer:?}\n{log}")));
                }
                thread::sleep(POLL);
            }
        }
        Ok(())
    }
}

/// Starts a node of a cluster in this folder.
fn serve(binary: &Path, dir: &Path, config: &Path, log: &Path) -> io::Result<Child> {
    Command::new(binary)
        .arg("serve")
        .arg("--config")
        .arg(config)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::options().create(true).append(true).open(log)?)
        .spawn()
}

/// A connection over TLS.
pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Opens a TLS connection that trusts one authority and may show a certificate. The
/// handshake is done when it returns.
///
/// # Errors
/// When a file is wrong, there is no connection, or the handshake fails.
pub fn connect(
    addr: SocketAddr,
    ca: &Path,
    show: Option<(PathBuf, PathBuf)>,
) -> io::Result<TlsStream> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(io::Error::other)? {
        roots
            .add(certificate.map_err(io::Error::other)?)
            .map_err(io::Error::other)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    let config = match show {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(chain)
                .map_err(io::Error::other)?
                .collect();
            let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
            config
                .with_client_auth_cert(chain.map_err(io::Error::other)?, key)
                .map_err(io::Error::other)?
        }
    };
    let name = ServerName::IpAddress(addr.ip().into());
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&addr, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(StreamOwned::new(connection, stream))
}

/// Reads until the other side ends the connection, for at most so long. What it has said by then; true: it ended.
///
/// # Errors
/// Never because of how the other side ends it.
pub fn until_closed(stream: &mut TcpStream, within: Duration) -> io::Result<(Vec<u8>, bool)> {
    stream.set_read_timeout(Some(POLL))?;
    let give_up = Instant::now() + within;
    let (mut said, mut piece) = (Vec::new(), [0; 4096]);
    while Instant::now() < give_up {
        match stream.read(&mut piece) {
            Ok(0) => return Ok((said, true)),
            Ok(n) => said.extend_from_slice(&piece[..n]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) => {}
            Err(_) => return Ok((said, true)),
        }
    }
    Ok((said, false))
}
