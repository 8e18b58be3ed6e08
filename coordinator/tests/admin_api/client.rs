//! A node in a temporary folder, and an HTTP client that sends exactly the bytes
//! it is told to: no other client would leave odd paths alone.

use std::{fmt::Write as _, net::SocketAddr};

use leasehold_coordinator::{
    config::{Config, ServeFlags},
    serve::{self, Running},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) struct Fixture {
    pub(crate) running: Running,
    pub(crate) folder: TempDir,
}

impl Fixture {
    /// A node of its own, that leads.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            running: serve_in(&folder, ServeFlags::default()).await,
            folder,
        }
    }

    /// Sets something up.
    pub(crate) async fn must(&self, method: &str, path: &str, body: &str) {
        let reply = self.ask(method, path, body).await;
        assert!(reply.status < 300, "{method} {path}: {}", reply.body);
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: &str) -> Reply {
        ask(self.running.admin_addr(), method, path, &[], body).await
    }

    /// Sends requests and writes down what came back.
    pub(crate) async fn transcript(&self, requests: &[(&str, &str, &str)]) -> String {
        let mut text = String::new();
        for (method, path, body) in requests {
            let reply = self.ask(method, path, body).await;
            let shown = if path.len() > 100 {
                format!("{}…", &path[..60])
            } else {
                (*path).to_owned()
            };
            let body = if body.len() > 200 {
                format!("{}…", &body[..60])
            } else {
                (*body).to_owned()
            };
            write!(text, "{method} {shown} {body}\n{}\n\n", reply.shown()).unwrap();
        }
        text
    }
}

pub(crate) async fn serve_in(folder: &TempDir, flags: ServeFlags) -> Running {
    let any = Some("127.0.0.1:0".parse().unwrap());
    let flags = ServeFlags {
        data_dir: Some(folder.path().join("data")),
        listen: any,
        peer_listen: any,
        ..flags
    };
    let config = Config::load(&flags).unwrap();
    // Ask with LEASEHOLD_LOG=debug when a test fails for no visible reason.
    if std::env::var_os("LEASEHOLD_LOG").is_some() {
        serve::start_logging(&config).unwrap();
    }
    let running = serve::start(config).await.unwrap();
    let mut leadership = running.node().leadership();
    leadership
        .wait_for(|now| matches!(now, leasehold_coordinator::raft::Leadership::Leading { .. }))
        .await
        .unwrap();
    running
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn shown(&self) -> String {
        let mut text = format!("-> {}", self.status);
        for name in [
            "content-type",
            "retry-after",
            "ratelimit-policy",
            "ratelimit",
        ] {
            if let Some(value) = self.header(name) {
                write!(text, "\n   {name}: {value}").unwrap();
            }
        }
        if !self.body.is_empty() {
            write!(text, "\n   {}", self.body).unwrap();
        }
        text
    }
}

pub(crate) async fn ask(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> Reply {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {addr}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for header in headers {
        write!(request, "{header}\r\n").unwrap();
    }
    write!(request, "\r\n{body}").unwrap();
    // A refusal may come before the whole body was read.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines
        .next()
        .unwrap()
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let chunked = headers
        .iter()
        .any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked {
        unchunk(body)
    } else {
        body.to_owned()
    };
    Reply {
        status,
        headers,
        body,
    }
}

fn unchunk(mut rest: &str) -> String {
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            break;
        }
        whole.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    whole
}
