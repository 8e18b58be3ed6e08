//! Certificates of clients, operators and coordinators.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use hyper_util::rt::TokioIo;
use leasehold_coordinator::{raft::Leadership, serve::Running};
use leasehold_doors::{Contents, Dialer, DialerFiles, Pem, is_distrust};
use leasehold_proto::v1::{HelloRequest, peer_client::PeerClient};
use tonic::transport::{Endpoint, Uri};

use crate::{
    alone,
    authority::{Authority, Folder, PAST},
    request, start, status, told,
};

const WAIT: Duration = Duration::from_secs(60);

/// Files of one node, and the sections that name them.
struct Files {
    certificate: Pem,
    key: Pem,
    toml: String,
}

fn files(dir: &Folder, nodes: &Authority, clients: &Authority, name: &str) -> Files {
    let (chain, key) = nodes.issue(&[name, "localhost", "127.0.0.1"]);
    let certificate = dir.write("certificate", &chain);
    let key = dir.write("key", &key);
    let client_ca = dir.write("client_ca", &clients.pem);
    let node_ca = dir.write("ca", &nodes.pem);
    let toml = format!(
        "[tls]\ncertificate = '{}'\nkey = '{}'\nclient_ca = '{}'\n[tls.peers]\nca = '{}'\n",
        certificate.path.display(),
        key.path.display(),
        client_ca.path.display(),
        node_ca.path.display()
    );
    Files {
        certificate,
        key,
        toml,
    }
}

fn dialer(files: &DialerFiles, protocol: &[u8]) -> Dialer {
    Dialer::read(files, &[protocol], &Contents::read(&files.sources())).unwrap()
}

async fn ask(
    addr: SocketAddr,
    files: &DialerFiles,
    request: &[u8],
) -> Result<String, std::io::Error> {
    let dialer = dialer(files, b"http/1.1");
    let stream = dialer.dial("127.0.0.1", addr.port()).await?;
    Ok(told(stream, request).await)
}

/// Says hello to a peer as whoever has these files.
async fn hello(addr: SocketAddr, files: DialerFiles, host: &'static str) -> Result<u64, String> {
    let connector = tower::service_fn(move |uri: Uri| {
        let dialer = dialer(&files, b"h2");
        async move {
            let port = uri.port_u16().unwrap();
            dialer.dial(host, port).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    let channel = endpoint.connect_with_connector_lazy(connector);
    let mut peer = PeerClient::new(channel);
    let said = peer.hello(HelloRequest::default());
    let said = tokio::time::timeout(WAIT, said).await.unwrap();
    said.map(|reply| reply.into_inner().node_id)
        .map_err(|status| format!("{status:?}"))
}

fn free_port() -> u16 {
    loop {
        // Below those that the system hands out by itself.
        let port = rand::random_range(15_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A follower, once all know who leads.
async fn follower(nodes: &[Running]) -> &Running {
    for node in nodes {
        let mut leadership = node.node().leadership();
        let knows = |now: &Leadership| !matches!(now, Leadership::Following { leader: None });
        let waiting = tokio::time::timeout(WAIT, leadership.wait_for(knows));
        waiting.await.unwrap().unwrap();
    }
    nodes
        .iter()
        .find(|node| !node.node().leader().is_self)
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_that_show_certificates_form_a_cluster_and_send_requests_on() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let peers: Vec<String> = (0..3)
        .map(|_| format!("127.0.0.1:{}", free_port()))
        .collect();
    let members: String = peers
        .iter()
        .zip(1..)
        .map(|(peer, id)| format!("[[initial_members]]\nnode_id = {id}\npeer = '{peer}'\n"))
        .collect();
    let starting = peers.iter().zip(1..).map(|(peer, id)| {
        let of_one = files(&dir, &nodes, &clients, &format!("node{id}"));
        let toml = format!("{}{members}", of_one.toml);
        let dir = &dir;
        async move { start(dir.path(), id, peer, &toml).await }
    });
    let running = futures::future::join_all(starting).await;
    let operator = dir.dialer(&nodes, Some(clients.issue(&["ada"])));
    let policy = r#"{"kind":"sliding_window","limit":100,"window_ms":60000}"#;
    let put = request("PUT", "/v1/policies/p", policy);
    let asked = async {
        loop {
            // An election may come at any time on a busy machine.
            let addr = follower(&running).await.admin_addr();
            let answer = ask(addr, &operator, &put).await.unwrap();
            if status(&answer) != "503" {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let answer = tokio::time::timeout(WAIT, asked).await.unwrap();
    assert!(matches!(status(&answer), "200" | "201"), "{answer}");
    futures::future::join_all(running.into_iter().map(Running::shutdown)).await;
}

#[tokio::test]
async fn whoever_is_no_coordinator_says_nothing_to_one() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let of_one = files(&dir, &nodes, &clients, "node1");
    let node = alone(dir.path(), &of_one.toml).await;
    let addr = node.node().replica().peer_addr();

    let as_whom = |own| hello(addr, dir.dialer(&nodes, own), "127.0.0.1");
    assert_eq!(as_whom(Some(nodes.issue(&["node2"]))).await, Ok(1));
    let other = Authority::new("nodes");
    for (who, own) in [
        ("nobody", None),
        ("a client", Some(clients.issue(&["node2"]))),
        ("another authority's", Some(other.issue(&["node2"]))),
    ] {
        let told = as_whom(own).await;
        assert!(told.is_err(), "{who} was told {told:?}");
    }
    let (chain, key) = nodes.issue_to("node2", &["node2"], Some(PAST));
    let told = crate::authority::ask_showing(addr.port(), &nodes, &chain, &key).await;
    assert!(told.is_err(), "an expired one was told {told:?}");
    let in_the_clear = PeerClient::connect(format!("http://{addr}")).await;
    if let Ok(mut peer) = in_the_clear {
        assert!(peer.hello(HelloRequest::default()).await.is_err());
    }
    // And whoever dials looks at whom it reaches.
    let node2 = || dir.dialer(&nodes, Some(nodes.issue(&["node2"])));
    assert_eq!(hello(addr, node2(), "localhost").await, Ok(1));
    let by_another_name = dialer(&node2(), b"h2").dial("127.0.0.2", addr.port()).await;
    // Where the whole of 127/8 is this machine, it is reached and not believed.
    assert!(by_another_name.is_err());
    let distrusting = dir.dialer(&clients, Some(nodes.issue(&["node2"])));
    let distrusted = dialer(&distrusting, b"h2")
        .dial("127.0.0.1", addr.port())
        .await;
    assert!(is_distrust(&distrusted.unwrap_err()));
    node.shutdown().await;
}

#[tokio::test]
async fn a_node_takes_new_certificates_while_it_runs_and_keeps_those_before_if_they_are_broken() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let of_one = files(&dir, &nodes, &clients, "node1");
    let node = alone(dir.path(), &of_one.toml).await;
    let (client_addr, peer_addr) = (node.client_addr(), node.node().replica().peer_addr());
    let as_node = dir.dialer(&nodes, Some(nodes.issue(&["node2"])));
    let shown = async |addr: SocketAddr| {
        let stream = dialer(&as_node, b"h2").dial("127.0.0.1", addr.port()).await;
        let stream = stream.unwrap();
        let chain = stream.get_ref().1.peer_certificates().unwrap();
        chain[0].to_vec()
    };
    let metrics = async || {
        let question = request("GET", "/metrics", "");
        ask(client_addr, &as_node, &question).await.unwrap()
    };
    let before = shown(client_addr).await;
    assert_eq!(shown(peer_addr).await, before);

    fs::write(&of_one.certificate.path, "broken").unwrap();
    let said = async {
        while !metrics().await.contains("\nleasehold_certificates_kept 1") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(WAIT, said).await.unwrap();
    assert_eq!(shown(client_addr).await, before);
    assert_eq!(shown(peer_addr).await, before);

    let (chain, key) = nodes.issue(&["node1", "127.0.0.1"]);
    fs::write(&of_one.key.path, key).unwrap();
    fs::write(&of_one.certificate.path, chain).unwrap();
    let taken = async {
        while shown(client_addr).await == before || shown(peer_addr).await == before {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(WAIT, taken).await.unwrap();
    let metrics = metrics().await;
    let expires = "leasehold_certificate_expires_seconds{which=\"tls.certificate\"}";
    assert!(metrics.contains(expires), "{metrics}");
    node.shutdown().await;
}
