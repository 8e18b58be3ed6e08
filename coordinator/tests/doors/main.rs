//! Who gets into a running node, by real sockets and certificates, and what those may take
//! who are in.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    reason = "tests"
)]

#[path = "../../../doors/tests/authority/mod.rs"]
mod authority;
mod certificates;
mod limits;
mod other_cluster;

use std::net::SocketAddr;

use leasehold_coordinator::{
    config::{Config, ServeFlags},
    raft::Leadership,
    serve::{self, Running},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

/// A node by what its file says, beside where it listens.
async fn start(folder: &std::path::Path, id: u64, peer: &str, toml: &str) -> Running {
    let file = folder.join(format!("node{id}.toml"));
    let data = folder.join(format!("data{id}"));
    let head = format!(
        "node_id = {id}\ndata_dir = '{}'\nlisten = '127.0.0.1:0'\npeer_listen = '{peer}'\n",
        data.display()
    );
    std::fs::write(&file, format!("{head}{toml}")).unwrap();
    let flags = ServeFlags {
        config: Some(file),
        ..ServeFlags::default()
    };
    let config = Config::load(&flags).unwrap();
    if std::env::var_os("LEASEHOLD_LOG").is_some() {
        serve::start_logging(&config).unwrap();
    }
    serve::start(config).await.unwrap()
}

/// A node of its own, that leads.
async fn alone(folder: &std::path::Path, toml: &str) -> Running {
    let node = start(folder, 1, "127.0.0.1:0", toml).await;
    let mut leadership = node.node().leadership();
    let leads = |now: &Leadership| matches!(now, Leadership::Leading { .. });
    leadership.wait_for(leads).await.unwrap();
    node
}

/// Sends these bytes, and says what came back until the other side closed.
async fn told<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, bytes: &[u8]) -> String {
    // It may be closed while this is being written.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn dial(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.unwrap()
}

fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: \
         application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or(answer)
}
