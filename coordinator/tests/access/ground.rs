//! A node with an identities file, tokens made by hand, and requests. Does not know who
//! may what.

use std::{fmt::Write as _, net::SocketAddr, path::PathBuf, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use leasehold_coordinator::{
    config::{Config, ServeFlags},
    raft::Leadership,
    serve::{self, Running},
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

/// Far longer than anything here takes.
pub(crate) const WAIT: Duration = Duration::from_secs(60);

/// A token, as an operator makes one.
#[derive(Clone)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) text: String,
}

impl Token {
    pub(crate) fn new() -> Self {
        let id = format!("{:012x}", rand::random::<u64>() >> 16);
        let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let text = format!("lh_{id}_{secret}");
        Self { id, text }
    }

    /// Its place in the file.
    pub(crate) fn entry(&self, expires: Option<&str>) -> String {
        let hash = Sha256::digest(self.text.as_bytes());
        let sha256 = hash.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        let expires = expires
            .map(|at| format!("expires = {at}\n"))
            .unwrap_or_default();
        format!(
            "[[identity.token]]\nid = \"{}\"\nsha256 = \"{sha256}\"\n{expires}",
            self.id
        )
    }

    pub(crate) fn header(&self) -> String {
        format!("authorization: Bearer {}", self.text)
    }
}

/// One identity with one token.
pub(crate) fn identity(name: &str, role: &str, more: &str, token: &Token) -> String {
    format!(
        "[[identity]]\nname = \"{name}\"\nrole = \"{role}\"\n{more}\n{}",
        token.entry(None)
    )
}

/// A node, and whom it lets in.
pub(crate) struct Guarded {
    pub(crate) running: Running,
    pub(crate) admin: Token,
    pub(crate) folder: TempDir,
}

impl Guarded {
    /// Starts one that knows `ada`, an administrator, and `others`.
    pub(crate) async fn start(others: &str) -> Self {
        Self::start_with(others, "").await
    }

    /// The same, with more in the node's file.
    pub(crate) async fn start_with(others: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let admin = Token::new();
        let path = folder.path().join("identities.toml");
        let ada = identity("ada", "admin", "", &admin);
        std::fs::write(&path, format!("{ada}{others}")).unwrap();
        let file = folder.path().join("node.toml");
        let text = format!("[auth]\nidentities = '{}'\n{more}", path.display());
        std::fs::write(&file, text).unwrap();
        let any = Some("127.0.0.1:0".parse().unwrap());
        let flags = ServeFlags {
            config: Some(file),
            data_dir: Some(folder.path().join("data")),
            listen: any,
            peer_listen: any,
            ..ServeFlags::default()
        };
        let config = Config::load(&flags).unwrap();
        let running = serve::start(config).await.unwrap();
        let mut leadership = running.node().leadership();
        leadership
            .wait_for(|now| matches!(now, Leadership::Leading { .. }))
            .await
            .unwrap();
        let node = Self {
            running,
            admin,
            folder,
        };
        // The cluster has its settings once its first entry is applied.
        node.until(async || node.as_admin("GET", "/v1/settings", "").await.status == 200)
            .await;
        node
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.running.admin_addr()
    }

    pub(crate) fn identities(&self) -> PathBuf {
        self.folder.path().join("identities.toml")
    }

    /// Writes the file anew, with `ada` in it.
    pub(crate) fn rewrite(&self, others: &str) {
        let ada = identity("ada", "admin", "", &self.admin);
        std::fs::write(self.identities(), format!("{ada}{others}")).unwrap();
    }

    pub(crate) async fn as_admin(&self, method: &str, path: &str, body: &str) -> Reply {
        self.ask(method, path, &[&self.admin.header()], body).await
    }

    pub(crate) async fn must(&self, method: &str, path: &str, body: &str) {
        let reply = self.as_admin(method, path, body).await;
        assert!(reply.status < 300, "{method} {path}: {}", reply.body);
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
    ) -> Reply {
        ask(self.addr(), method, path, headers, body).await
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, is_so: impl AsyncFn() -> bool) {
        let wait = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT, wait).await.expect("it never was so");
    }
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

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Its problem's code, or nothing.
    pub(crate) fn code(&self) -> String {
        let problem: Option<Value> = serde_json::from_str(&self.body).ok();
        problem
            .and_then(|problem| Some(problem.get("code")?.as_str()?.to_owned()))
            .unwrap_or_default()
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
    let _ = timeout(WAIT, stream.read_to_end(&mut bytes)).await.unwrap();
    // A backup is no text; its head is.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    Reply {
        status: status.parse().unwrap(),
        headers,
        body: body.to_owned(),
    }
}
