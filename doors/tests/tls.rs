//! Real sockets, real certificates: who gets in, and who does not.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod authority;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use authority::{Authority, Folder, PAST};
use axum::{Extension, Router, routing::get};
use leasehold_doors::{
    Caller, Dialer, DialerFiles, Door, Kept, Limits, Listener, ListenerFiles, ListenerTls, Places,
    Watch,
};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

static TURNED_AWAY: AtomicUsize = AtomicUsize::new(0);

fn limits() -> Limits {
    Limits {
        connections_per_address_max: 8,
        handshake: Duration::from_secs(1),
        header: Duration::from_secs(1),
        idle: Duration::from_secs(60),
        header_bytes_max: 8_192,
        streams_max: 100,
        ping_every: Duration::from_secs(60),
        ping_within: Duration::from_secs(20),
        window_bytes: None,
    }
}

struct Open {
    port: u16,
    door: Arc<Door>,
    watch: Watch,
}

fn kept(files: ListenerFiles) -> Result<(Watch, Kept<ListenerTls>), String> {
    let mut watch = Watch::default();
    let sources = files.sources();
    let kept = watch.keep(
        "the certificates",
        sources,
        move |contents| ListenerTls::read(&files, contents),
        |tls| tls.expiries.clone(),
    );
    Ok((watch, kept.map_err(|error| error.to_string())?))
}

/// A door that says to each caller who it is.
async fn open(files: ListenerFiles, places: usize) -> Open {
    let (watch, kept) = kept(files).unwrap();
    let who = |Extension(caller): Extension<Caller>| async move {
        assert!(caller.addr.is_some());
        match caller.certificate {
            Some(certificate) => format!("{} {}", certificate.name, certificate.is_node),
            None => "nobody".to_owned(),
        }
    };
    let router = Router::new().route("/", get(who));
    let count = |_| {
        TURNED_AWAY.fetch_add(1, Ordering::Relaxed);
    };
    let door = Door::new(router, Arc::new(Places::new(places)), limits(), count);
    let door = Arc::new(door.with_tls(move || kept.now()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(Arc::clone(&door).serve(Listener::Tcp(listener)));
    Open { port, door, watch }
}

async fn connect(
    port: u16,
    files: DialerFiles,
    name: &str,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, String> {
    let contents = leasehold_doors::Contents::read(&files.sources());
    let dialer = Dialer::read(&files, &[b"http/1.1"], &contents)?;
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connecting = TlsConnector::from(Arc::clone(&dialer.config)).connect(name, stream);
    connecting.await.map_err(|error| error.to_string())
}

/// What the door answers; of TLS 1.3, a client hears only then that it was turned away.
async fn ask(port: u16, files: DialerFiles, name: &str) -> Result<String, String> {
    let mut stream = connect(port, files, name).await?;
    let said = |error: std::io::Error| error.to_string();
    let question = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(question).await.map_err(said)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(said)?;
    match answer.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(body.to_owned()),
        None => Err(format!("was told {answer:?}")),
    }
}

#[tokio::test]
async fn a_caller_is_who_its_certificate_says_and_a_node_by_the_nodes_authority_alone() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let files = dir.listener(&nodes, Some(&clients), false);
    let open = open(files, 10).await;
    let asks = async |files| ask(open.port, files, "localhost").await;

    assert_eq!(asks(dir.dialer(&nodes, None)).await.unwrap(), "nobody");
    let client = dir.dialer(&nodes, Some(clients.issue(&["edge-eu"])));
    assert_eq!(asks(client).await.unwrap(), "edge-eu false");
    let node = dir.dialer(&nodes, Some(nodes.issue(&["node2.internal", "localhost"])));
    assert_eq!(asks(node).await.unwrap(), "node2.internal true");
    let by_common_name = dir.dialer(&nodes, Some(clients.issue_to("ada", &[], None)));
    assert_eq!(asks(by_common_name).await.unwrap(), "ada false");
}

#[tokio::test]
async fn nobody_gets_in_by_a_certificate_of_another_authority_an_expired_one_or_a_nameless_one() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let open = open(dir.listener(&nodes, Some(&clients), false), 10).await;
    let asks = async |own| ask(open.port, dir.dialer(&nodes, Some(own)), "localhost").await;

    // Of the same name as the right one.
    let other = Authority::new("clients");
    assert!(asks(other.issue(&["edge-eu"])).await.is_err());
    assert!(asks(clients.issue_to("", &[], None)).await.is_err());
    assert!(asks(clients.issue(&["edge-eu"])).await.is_ok());

    // Our own side refuses to show what has expired, so it is shown by hand.
    let (chain, key) = clients.issue_to("ada", &["edge-eu"], Some(PAST));
    assert!(
        asks((chain.clone(), key.clone()))
            .await
            .unwrap_err()
            .contains("expired")
    );
    let told = authority::ask_showing(open.port, &nodes, &chain, &key).await;
    assert!(told.is_err(), "{told:?}");
    let (chain, key) = clients.issue(&["edge-eu"]);
    let told = authority::ask_showing(open.port, &nodes, &chain, &key).await;
    assert!(told.unwrap().contains("edge-eu false"));
}

#[tokio::test]
async fn where_certificates_must_be_shown_nobody_gets_in_without() {
    let dir = Folder::new();
    let (nodes, clients) = (Authority::new("nodes"), Authority::new("clients"));
    let mut files = dir.listener(&nodes, None, true);
    let open_to_nodes = open(files.clone(), 10).await;
    let port = open_to_nodes.port;
    assert!(
        ask(port, dir.dialer(&nodes, None), "localhost")
            .await
            .is_err()
    );
    let client = dir.dialer(&nodes, Some(clients.issue(&["edge-eu"])));
    assert!(ask(port, client, "localhost").await.is_err());
    let node = || dir.dialer(&nodes, Some(nodes.issue(&["node2"])));
    assert_eq!(ask(port, node(), "localhost").await.unwrap(), "node2 true");

    // And whoever dials looks at the name and at the authority.
    assert!(ask(port, node(), "elsewhere.internal").await.is_err());
    let trusting_others = dir.dialer(&clients, Some(nodes.issue(&["node2"])));
    assert!(ask(port, trusting_others, "localhost").await.is_err());

    // A node that the others would not believe is told so itself.
    let mut foreign = files.clone();
    foreign.node_ca = dir.listener(&clients, None, true).node_ca;
    let said = kept(foreign).err().unwrap();
    assert!(said.contains("would not be believed"), "{said}");

    // One authority for both would make every client a node.
    files.client_ca = files.node_ca.clone();
    assert!(kept(files).err().unwrap().contains("in common"));
}

#[tokio::test]
async fn certificates_are_replaced_while_it_runs_and_broken_ones_leave_those_before() {
    let dir = Folder::new();
    let (nodes, others) = (Authority::new("nodes"), Authority::new("others"));
    let files = dir.listener(&nodes, None, false);
    let mut open = open(files.clone(), 10).await;
    let is_shown_by = async |authority| {
        let asked = ask(open.port, dir.dialer(authority, None), "localhost").await;
        asked.is_ok()
    };
    assert!(is_shown_by(&nodes).await && !is_shown_by(&others).await);

    let (chain, key) = others.issue(&["localhost"]);
    fs::write(&files.certificate.path, &chain).unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&nodes).await, "the key is still the old one");
    fs::write(&files.certificate.path, "-----BEGIN").unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&nodes).await);
    fs::write(&files.certificate.path, &chain).unwrap();
    fs::write(&files.key.path, &key).unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&others).await && !is_shown_by(&nodes).await);

    // Those before stay, whatever is wrong with the new ones.
    let (expired, expired_key) = nodes.issue_to("x", &["localhost"], Some(PAST));
    fs::write(&files.certificate.path, &expired).unwrap();
    fs::write(&files.key.path, &expired_key).unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&others).await);
    let (chain, key) = nodes.issue(&["localhost"]);
    fs::write(&files.certificate.path, &chain).unwrap();
    fs::write(&files.key.path, &key).unwrap();
    fs::set_permissions(&files.key.path, fs::Permissions::from_mode(0o640)).unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&others).await);
    fs::set_permissions(&files.key.path, fs::Permissions::from_mode(0o600)).unwrap();
    open.watch.look_at_once();
    assert!(is_shown_by(&nodes).await);
}

#[tokio::test]
async fn a_key_that_others_can_read_is_refused_and_said_without_a_word_of_it() {
    let dir = Folder::new();
    let nodes = Authority::new("nodes");
    let files = dir.listener(&nodes, None, false);
    for mode in [0o640, 0o604, 0o620, 0o644] {
        fs::set_permissions(&files.key.path, fs::Permissions::from_mode(mode)).unwrap();
        let told = kept(files.clone()).err().unwrap();
        assert!(
            told.contains("tls.key") && told.contains("chmod 600"),
            "{told}"
        );
    }
    fs::set_permissions(&files.key.path, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(kept(files.clone()).is_ok());
    let key = fs::read_to_string(&files.key.path).unwrap();
    let broken = key.replace("PRIVATE KEY", "PUBLIC CAT");
    fs::set_permissions(&files.key.path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&files.key.path, broken).unwrap();
    let told = kept(files).err().unwrap();
    let secret = key.lines().nth(1).unwrap();
    assert!(
        told.contains("no private key") && !told.contains(secret),
        "{told}"
    );
}

#[tokio::test]
async fn what_never_shakes_hands_or_speaks_no_tls_is_closed_and_holds_nobody_up() {
    let dir = Folder::new();
    let nodes = Authority::new("nodes");
    let open = open(dir.listener(&nodes, None, false), 6).await;
    let dial = async || TcpStream::connect(("127.0.0.1", open.port)).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.push(dial().await);
    }
    // In the meantime others are served in the place that is left.
    let asked = ask(open.port, dir.dialer(&nodes, None), "localhost").await;
    assert_eq!(asked.unwrap(), "nobody");
    for mut stream in silent {
        let closed = timeout(Duration::from_secs(20), stream.read(&mut [0; 64])).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
    }
    let mut junk = dial().await;
    // It may be closed while this is being written.
    let _ = junk.write_all(&[0x58; 1 << 20]).await;
    let mut told = Vec::new();
    let closed = timeout(Duration::from_secs(20), junk.read_to_end(&mut told)).await;
    assert!(closed.is_ok());
    assert!(TURNED_AWAY.load(Ordering::Relaxed) >= 6);
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_one_more_is_closed() {
    let dir = Folder::new();
    let nodes = Authority::new("nodes");
    let open = open(dir.listener(&nodes, None, false), 100).await;
    let dial = async || connect(open.port, dir.dialer(&nodes, None), "localhost").await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(dial().await.unwrap());
    }
    assert!(dial().await.is_err());
    held.pop();
    for attempt in 0.. {
        if let Ok(stream) = dial().await {
            held.push(stream);
            break;
        }
        assert!(attempt < 200, "the place is not free again");
        sleep(Duration::from_millis(50)).await;
    }
    // Closing is not held up by those who have nothing under way.
    assert!(open.door.close(Duration::from_secs(20)).await);
}
