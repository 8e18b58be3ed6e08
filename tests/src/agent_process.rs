//! A real `leasehold-agent` process, and what a gateway asks it over HTTP. Does not know
//! what is right.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often a state that somebody else reaches is looked at.
const POLL: Duration = Duration::from_millis(20);

/// An agent that ends when this is dropped.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    addr: SocketAddr,
    config: PathBuf,
    log: PathBuf,
}

impl AgentProcess {
    /// Starts an agent in a folder of its own, with this text as its configuration; it
    /// listens on a free port of loopback, which is added. Returns once it listens.
    ///
    /// # Errors
    /// When it does not start; the message ends with its log.
    pub fn start(binary: &Path, dir: &Path, config: &str) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let path = dir.join("agent.toml");
        fs::write(&path, config)?;
        let log = dir.join("agent.log");
        let mut child = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::options().create(true).append(true).open(&log)?)
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let addr = line
            .split_whitespace()
            .find_map(|word| word.strip_prefix("tcp="))
            .and_then(|addr| addr.parse().ok());
        let Some(addr) = addr else {
            // It may still run, without a TCP address.
            let _ = child.kill();
            let status = child.wait()?;
            let log = fs::read_to_string(&log).unwrap_or_default();
            let told = format!("the agent does not listen ({status}): {line}\n{log}");
            return Err(io::Error::other(told));
        };
        Ok(Self {
            child,
            addr,
            config: path,
            log,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Asks it once.
    ///
    /// # Errors
    /// When there is no answer: what became of the request is unknown.
    pub fn ask(&self, path: &str, headers: &[(&str, &str)]) -> io::Result<HttpAnswer> {
        let mut stream = TcpStream::connect_timeout(&self.addr, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        ask_http(&mut stream, "GET", path, headers, "")
    }

    /// Waits until it has a session.
    ///
    /// # Errors
    /// When it has none in time; the message ends with its log.
    pub fn wait_ready(&self, within: Duration) -> io::Result<()> {
        let give_up = Instant::now() + within;
        loop {
            if self
                .ask("/readyz", &[])
                .is_ok_and(|answer| answer.status == 200)
            {
                return Ok(());
            }
            if Instant::now() > give_up {
                let told = format!("the agent is not ready\n{}", self.log());
                return Err(io::Error::other(told));
            }
            thread::sleep(POLL);
        }
    }

    /// Sends a signal, like `TERM`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        let pid = i32::try_from(self.child.id()).unwrap_or(i32::MAX);
        let pid =
            rustix::process::Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process id"))?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }

    /// Ends it with SIGKILL and waits until the process is gone.
    pub fn kill(&mut self) {
        // An error here says that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When it has not in time.
    pub fn wait(&mut self, within: Duration) -> io::Result<ExitStatus> {
        let give_up = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > give_up {
                return Err(io::Error::other("the agent does not end"));
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An HTTP answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status.
    pub status: u16,
    /// Its header fields, names in lower case, in their order.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: String,
}

impl HttpAnswer {
    /// The value of a header; none if it is absent.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null when it is something else.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// One question over HTTP/1.1 on a connection that ends with it.
///
/// # Errors
/// When there is no answer: what became of the question is unknown.
pub fn ask_http(
    stream: &mut (impl Read + Write),
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<HttpAnswer> {
    let mut question = format!("{method} {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n");
    for (name, value) in headers {
        question.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        question.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    question.push_str("\r\n");
    question.push_str(body);
    stream.write_all(question.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {answer:?}"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    let fields = lines.filter_map(|line| line.split_once(':'));
    Ok(HttpAnswer {
        status: status
            .and_then(|status| status.parse().ok())
            .ok_or_else(malformed)?,
        headers: fields
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect(),
        body: body.to_owned(),
    })
}
