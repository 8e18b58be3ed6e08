//! Requests over real connections, each with the moment before it was sent and the one
//! after it was answered. Knows nothing of what they are answered.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::{HeaderMap, Request, client::conn::http1, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use leasehold_tests::clock_ns;
use tokio::net::TcpStream;

use super::{Outcome, proxies::about, upstream::KEY};

/// What is asked for.
pub(super) const PATH: &str = "/orders";
/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) sent_ns: u64,
    pub(super) answered_ns: u64,
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answer {
    /// A header's text; empty: it is not there.
    pub(super) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}

/// A connection to a gateway.
struct Connection(SendRequest<Empty<Bytes>>);

impl Connection {
    async fn open(to: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with the sender, or says so to it.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    async fn ask(
        &mut self,
        to: SocketAddr,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Outcome<Answer> {
        let mut request = Request::get(path).header("host", to.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Empty::new())?;
        self.0.ready().await?;
        let sent_ns = clock_ns();
        let answer = tokio::time::timeout(PATIENCE, self.0.send_request(request)).await??;
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Answer {
            sent_ns,
            answered_ns: clock_ns(),
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }
}

/// One request on a connection of its own.
pub(super) async fn ask(to: SocketAddr, headers: &[(&str, &str)]) -> Outcome<Answer> {
    Connection::open(to).await?.ask(to, PATH, headers).await
}

/// What a load saw.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) answers: Vec<Answer>,
    /// Requests without an answer, and why the last of them had none.
    pub(super) unanswered: u64,
    pub(super) last_error: String,
}

impl Seen {
    pub(super) fn with_status(&self, status: u16) -> impl Iterator<Item = &Answer> {
        let answers = self.answers.iter();
        answers.filter(move |answer| answer.status == status)
    }

    fn add(&mut self, other: Self) {
        self.answers.extend(other.answers);
        self.unanswered += other.unanswered;
        if !other.last_error.is_empty() {
            self.last_error = other.last_error;
        }
    }
}

/// One connection after another to each gateway, each with one request after another of
/// a key; with a pace, each connection leaves it between two of its requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load<'a> {
    pub(super) gateways: &'a [SocketAddr],
    pub(super) path: &'a str,
    pub(super) key: &'a str,
    /// To each gateway.
    pub(super) connections: usize,
    pub(super) pace: Option<Duration>,
    pub(super) lasts: Duration,
}

impl Load<'_> {
    pub(super) async fn run(self) -> Outcome<Seen> {
        let until = Instant::now() + self.lasts;
        let mut callers = Vec::new();
        for gateway in self.gateways {
            for _ in 0..self.connections {
                let whose = (self.path.to_owned(), self.key.to_owned());
                callers.push(tokio::spawn(call(*gateway, whose, self.pace, until)));
            }
        }
        let mut seen = Seen::default();
        for caller in callers {
            seen.add(caller.await?);
        }
        Ok(seen)
    }
}

async fn call(
    to: SocketAddr,
    (path, key): (String, String),
    pace: Option<Duration>,
    until: Instant,
) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    let mut ticks = pace.map(tokio::time::interval);
    while Instant::now() < until {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        match attempt(&mut connection, to, &path, &key).await {
            Ok(answer) => seen.answers.push(answer),
            Err(error) => {
                connection = None;
                seen.unanswered += 1;
                seen.last_error = error.to_string();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    seen
}

async fn attempt(
    held: &mut Option<Connection>,
    to: SocketAddr,
    path: &str,
    key: &str,
) -> Outcome<Answer> {
    let mut connection = match held.take() {
        // A gateway may close a connection after an answer.
        Some(connection) if !connection.0.is_closed() => connection,
        _ => Connection::open(to).await?,
    };
    let answer = connection.ask(to, path, &[(KEY, key)]).await?;
    *held = Some(connection);
    Ok(answer)
}

/// wrk, which presses as hard as it can and notes no instants.
pub(super) struct Pressure(Child);

impl Pressure {
    pub(super) fn start(wrk: &Path, to: SocketAddr, key: &str, lasts: Duration) -> Outcome<Self> {
        let child = Command::new(wrk)
            .args(["-t1", "-c8", &format!("-d{}s", lasts.as_secs().max(1))])
            .args([
                "-H",
                &format!("{KEY}: {key}"),
                &format!("http://{to}{PATH}"),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(about("wrk"))?;
        Ok(Self(child))
    }

    /// Waits for its end, and says how many requests it made.
    pub(super) fn requests(self) -> Outcome<u64> {
        let out = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let count = text
            .lines()
            .find_map(|line| line.trim().split_once(" requests in "))
            .and_then(|(count, _)| count.parse().ok());
        count.ok_or_else(|| format!("wrk counted no requests:\n{text}").into())
    }
}
