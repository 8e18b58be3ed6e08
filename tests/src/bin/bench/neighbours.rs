//! Other servers on the same machine, where they are installed: Redis with a
//! token bucket in Lua, and an etcd transaction. Knows nothing of Leasehold.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{Figure, Outcome, float, percentile};

pub(super) fn measure(duration: Duration) -> Outcome<Vec<Figure>> {
    let mut figures = Vec::new();
    if is_installed("redis-server") {
        figures.extend(redis(duration)?);
    } else {
        eprintln!("note: redis-server is not installed, so it is not measured");
    }
    if is_installed("etcd") {
        figures.extend(etcd(duration)?);
    } else {
        eprintln!("note: etcd is not installed, so it is not measured");
    }
    Ok(figures)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A server that ends when this is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // An error here says that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, program: &str, arguments: &[String]) -> io::Result<Server> {
    Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(Server)
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let give_up = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) if Instant::now() > give_up => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A token bucket as it is usually written.
const SCRIPT: &str = "local t=redis.call('TIME') local now=t[1]*1000000+t[2] \
    local s=redis.call('HMGET',KEYS[1],'l','t') local cap=tonumber(ARGV[1]) \
    local l=tonumber(s[1]) or cap local last=tonumber(s[2]) or now \
    l=math.min(cap,l+(now-last)*tonumber(ARGV[2])/1000000) local ok=0 \
    if l>=1 then l=l-1 ok=1 end redis.call('HSET',KEYS[1],'l',l,'t',now) return ok";

fn redis(duration: Duration) -> Outcome<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let port = free_port()?;
    let arguments = [
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--bind",
        "127.0.0.1",
    ];
    let _server = start(folder.path(), "redis-server", &arguments.map(str::to_owned))?;
    let mut first = Resp::new(connect(port)?)?;
    let sha = first.command(&["SCRIPT", "LOAD", SCRIPT])?;
    let mut figures = Vec::new();
    for connections in [1_u32, 50] {
        let (rate, mut latencies) = load(connections, duration, |number| {
            let mut connection = Resp::new(connect(port)?)?;
            let (key, sha) = (format!("bench-{number}"), sha.clone());
            Ok(move || {
                connection
                    .command(&["EVALSHA", &sha, "1", &key, "1000000", "1000000"])
                    .map(drop)
            })
        })?;
        let name = format!("Redis EVALSHA token bucket, {connections} connections");
        figures.push(Figure::new(name.clone(), rate, "1/s"));
        figures.push(Figure::new(
            format!("{name}: p50"),
            float(percentile(&mut latencies, 50)) / 1e3,
            "ms",
        ));
        figures.push(Figure::new(
            format!("{name}: p99"),
            float(percentile(&mut latencies, 99)) / 1e3,
            "ms",
        ));
    }
    Ok(figures)
}

/// As much of Redis's protocol as one command and its short answer need.
struct Resp {
    out: TcpStream,
    answers: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Resp {
    fn new(stream: TcpStream) -> io::Result<Self> {
        Ok(Self {
            answers: BufReader::new(stream.try_clone()?),
            out: stream,
            request: Vec::new(),
        })
    }

    fn command(&mut self, words: &[&str]) -> io::Result<String> {
        self.request.clear();
        write!(self.request, "*{}\r\n", words.len())?;
        for word in words {
            write!(self.request, "${}\r\n{word}\r\n", word.len())?;
        }
        self.out.write_all(&self.request)?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        if line.starts_with('$') {
            line.clear();
            self.answers.read_line(&mut line)?;
        }
        match line.trim_end() {
            "" => Err(io::ErrorKind::UnexpectedEof.into()),
            error if error.starts_with('-') => Err(io::Error::other(error.to_owned())),
            answer => Ok(answer.trim_start_matches([':', '+']).to_owned()),
        }
    }
}

/// Three etcd members; a transaction that compares a version and puts, through
/// the JSON gateway on a kept connection.
fn etcd(duration: Duration) -> Outcome<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let ports: Vec<(u16, u16)> = (0..3)
        .map(|_| Ok((free_port()?, free_port()?)))
        .collect::<io::Result<_>>()?;
    let members: Vec<String> = ports
        .iter()
        .zip(0..)
        .map(|((_, peer), i)| format!("m{i}=http://127.0.0.1:{peer}"))
        .collect();
    let members = members.join(",");
    let mut servers = Vec::new();
    for ((client, peer), i) in ports.iter().zip(0..) {
        let (client, peer) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let arguments = [
            "--name",
            &format!("m{i}"),
            "--data-dir",
            &format!("m{i}"),
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
            "--initial-cluster",
            &members,
            "--initial-cluster-state",
            "new",
        ];
        servers.push(start(folder.path(), "etcd", &arguments.map(str::to_owned))?);
    }
    // Served only once there is a leader.
    let give_up = Instant::now() + Duration::from_secs(30);
    while txn(&mut Http::new(connect(ports[0].0)?)?, "warm-up").is_err() {
        if Instant::now() > give_up {
            return Err("etcd does not serve".into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let mut figures = Vec::new();
    for connections in [1_u32, 8, 64] {
        let (rate, mut latencies) = load(connections, duration, |number| {
            let mut connection = Http::new(connect(ports[0].0)?)?;
            let key = format!("bench-{number}");
            Ok(move || txn(&mut connection, &key))
        })?;
        let name = format!("etcd transaction (JSON gateway), {connections} connections");
        figures.push(Figure::new(name.clone(), rate, "1/s"));
        figures.push(Figure::new(
            format!("{name}: p50"),
            float(percentile(&mut latencies, 50)) / 1e3,
            "ms",
        ));
        figures.push(Figure::new(
            format!("{name}: p99"),
            float(percentile(&mut latencies, 99)) / 1e3,
            "ms",
        ));
    }
    drop(servers);
    Ok(figures)
}

fn txn(http: &mut Http, key: &str) -> io::Result<()> {
    let key = base64(key.as_bytes());
    let body = format!(
        "{{\"compare\":[{{\"key\":\"{key}\",\"target\":\"VERSION\",\"result\":\"GREATER\",\"version\":\"-1\"}}],\
         \"success\":[{{\"requestPut\":{{\"key\":\"{key}\",\"value\":\"MQ==\"}}}}]}}"
    );
    http.post("/v3/kv/txn", &body)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let three = chunk
            .iter()
            .fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let three = three << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = usize::try_from(three >> (18 - 6 * place) & 63).unwrap_or(0);
            text.push(if place <= chunk.len() {
                char::from(DIGITS[digit])
            } else {
                '='
            });
        }
    }
    text
}

/// As much of HTTP as a kept connection and an answer with a length need.
struct Http {
    out: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Http {
    fn new(stream: TcpStream) -> io::Result<Self> {
        Ok(Self {
            answers: BufReader::new(stream.try_clone()?),
            out: stream,
        })
    }

    fn post(&mut self, path: &str, body: &str) -> io::Result<()> {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: etcd\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.out
            .write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
        let (mut line, mut length, mut status) = (String::new(), 0_u64, String::new());
        loop {
            line.clear();
            if self.answers.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let text = line.trim_end().to_ascii_lowercase();
            if status.is_empty() {
                status.clone_from(&text);
            } else if let Some(value) = text.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            } else if text.is_empty() {
                break;
            }
        }
        io::copy(
            &mut io::Read::take(&mut self.answers, length),
            &mut io::sink(),
        )?;
        if status.contains(" 200 ") {
            Ok(())
        } else {
            Err(io::Error::other(status))
        }
    }
}

/// Calls in a closed loop on so many threads: calls a second, and every latency
/// in microseconds.
fn load<C: FnMut() -> io::Result<()>>(
    connections: u32,
    duration: Duration,
    connection: impl Fn(u32) -> io::Result<C> + Sync,
) -> io::Result<(f64, Vec<u64>)> {
    let stop = AtomicBool::new(false);
    let latencies = thread::scope(|scope| {
        let work = |number| -> io::Result<Vec<u64>> {
            let mut call = connection(number)?;
            let mut latencies = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                call()?;
                latencies.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
            }
            Ok(latencies)
        };
        let threads: Vec<_> = (0..connections)
            .map(|number| scope.spawn(move || work(number)))
            .collect();
        thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in threads {
            all.extend(
                thread
                    .join()
                    .map_err(|_| io::Error::other("a connection panicked"))??,
            );
        }
        io::Result::Ok(all)
    })?;
    let calls = u64::try_from(latencies.len()).unwrap_or(u64::MAX);
    Ok((float(calls) / duration.as_secs_f64(), latencies))
}
