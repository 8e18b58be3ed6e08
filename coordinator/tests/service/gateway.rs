//! A node to speak to, and a gateway that speaks the protocol by hand.

use std::{net::SocketAddr, path::Path, time::Duration};

use leasehold_coordinator::{
    node::{Node, NodeConfig},
    raft::{InitialMember, ReplicaConfig},
};
use leasehold_key::{Key, Pattern};
use leasehold_ledger::{
    entry::{Command, Rule},
    outcome::{AccountView, CommandOutcome},
    policy::{Kind, Policy},
    settings::Settings,
};
use leasehold_proto::v1::{
    ClientMessage, Close, CoordinatorMessage, KeyGrant, KeyReport, Open, Opened, Refused, Settle,
    SettledLease, Sync, Synced, client_message, coordinator_message::Kind as Told,
    leasehold_client::LeaseholdClient,
};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Streaming,
    transport::{Channel, Endpoint, Server},
};

/// Far longer than anything here takes.
pub(crate) const WAIT: Duration = Duration::from_secs(30);

/// A node that serves on a loopback port.
pub(crate) struct Coordinator {
    pub(crate) node: Node,
    pub(crate) addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<()>,
}

/// Settings under which a silent session ends within a second.
pub(crate) fn brisk() -> Settings {
    Settings {
        session_ttl_us: 600_000,
        sync_interval_us: 100_000,
        ..Settings::default()
    }
}

impl Coordinator {
    /// Starts one node of a cluster on this data folder.
    pub(crate) async fn start_member(
        node_id: u64,
        dir: &Path,
        settings: Settings,
        peers: (SocketAddr, Vec<InitialMember>),
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut replica = ReplicaConfig::new(node_id, dir.to_owned());
        replica.client_url = format!("http://{addr}");
        (replica.peer_listen, replica.initial_members) = peers;
        let node = Node::start(NodeConfig {
            leader_tls: None,
            replica,
            initial_settings: settings,
        })
        .await
        .unwrap();
        let (stop, stopped) = oneshot::channel();
        let service = node.grpc_service();
        let serving = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, async {
                    drop(stopped.await);
                })
                .await
                .unwrap();
        });
        Self {
            node,
            addr,
            stop: Some(stop),
            serving,
        }
    }

    /// Starts a node of its own and waits until it leads with these settings.
    pub(crate) async fn start(dir: &TempDir, settings: Settings) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let coordinator =
            Self::start_member(1, dir.path(), settings.clone(), (any, Vec::new())).await;
        coordinator.until(|node| node.leader().is_self).await;
        coordinator
            .until(|node| node.local(|ledger| *ledger.settings() == settings))
            .await;
        coordinator
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, mut is_so: impl FnMut(&Node) -> bool) {
        let wait = async {
            while !is_so(&self.node) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(WAIT, wait).await.expect("it never was so");
    }

    pub(crate) async fn submit(&self, command: Command) -> CommandOutcome {
        self.node.submit(command).await.unwrap()
    }

    /// Binds a pattern to a window.
    pub(crate) async fn budget(&self, pattern: &str, kind: Kind) {
        let outcome = self
            .submit(Command::PutBudget {
                pattern: Pattern::parse(pattern).unwrap(),
                rule: Rule::Inline(policy(kind)),
            })
            .await;
        assert_eq!(outcome, CommandOutcome::Done { changed: true });
    }

    pub(crate) async fn account(&self, key: &str) -> AccountView {
        let key = Key::parse(key).unwrap();
        self.node
            .read(|ledger, _| ledger.account(&key))
            .await
            .unwrap()
            .unwrap()
    }

    /// Stops the node and the server, as a process that ends would.
    pub(crate) async fn stop(mut self) {
        self.node.shutdown().await;
        if let Some(stop) = self.stop.take() {
            let _gone = stop.send(());
        }
        self.serving.abort();
        drop(self.serving.await);
    }
}

pub(crate) fn policy(kind: Kind) -> Policy {
    Policy {
        public_name: "orders".to_owned(),
        ..Policy::new(kind)
    }
}

/// A window of a minute.
pub(crate) const fn window(limit: u64) -> Kind {
    Kind::SlidingWindow {
        limit,
        window_us: 60_000_000,
    }
}

/// One stream, message by message.
pub(crate) struct Gateway {
    say: mpsc::Sender<ClientMessage>,
    told: Streaming<CoordinatorMessage>,
    pub(crate) seq: u64,
}

impl Gateway {
    /// A stream that has said nothing yet.
    pub(crate) async fn dial(addr: SocketAddr) -> Self {
        let channel: Channel = Endpoint::from_shared(format!("http://{addr}"))
            .unwrap()
            .connect()
            .await
            .unwrap();
        let (say, said) = mpsc::channel(64);
        let told = LeaseholdClient::new(channel)
            .max_encoding_message_size(64 * 1024 * 1024)
            .session(ReceiverStream::new(said))
            .await
            .unwrap()
            .into_inner();
        Self { say, told, seq: 0 }
    }

    /// A stream that has asked to open or resume a session.
    pub(crate) async fn hello(addr: SocketAddr, instance: u8, resume: &[u8]) -> Self {
        let gateway = Self::dial(addr).await;
        gateway
            .say(client_message::Kind::Open(Open {
                holder: format!("gw-{instance}"),
                instance: vec![instance; 16],
                resume: resume.to_vec(),
            }))
            .await;
        gateway
    }

    /// A new session.
    pub(crate) async fn open(addr: SocketAddr, instance: u8) -> (Self, Opened) {
        let mut gateway = Self::hello(addr, instance, &[]).await;
        match gateway.next().await {
            Told::Opened(opened) => (gateway, opened),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn say(&self, kind: client_message::Kind) {
        // A stream that was ended already takes nothing any more.
        drop(self.say.send(ClientMessage { kind: Some(kind) }).await);
    }

    pub(crate) async fn try_next(&mut self) -> Option<Told> {
        timeout(WAIT, self.told.message())
            .await
            .expect("told nothing")
            .unwrap()
            .map(|message| message.kind.unwrap())
    }

    pub(crate) async fn next(&mut self) -> Told {
        self.try_next().await.expect("the stream ended")
    }

    /// Says a sync and waits for its answer; pushes before it are passed over.
    pub(crate) async fn sync(&mut self, reports: Vec<KeyReport>) -> Synced {
        let seq = self.say_sync(reports).await;
        loop {
            match self.next().await {
                Told::Synced(synced) if synced.seq == seq => return synced,
                Told::Granted(_) | Told::Recall(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) async fn say_sync(&mut self, reports: Vec<KeyReport>) -> u64 {
        self.seq += 1;
        self.say(client_message::Kind::Sync(Sync {
            seq: self.seq,
            reports,
        }))
        .await;
        self.seq
    }

    pub(crate) async fn close(&mut self, reports: Vec<KeyReport>) -> Told {
        self.seq += 1;
        self.say(client_message::Kind::Close(Close {
            seq: self.seq,
            reports,
        }))
        .await;
        self.next().await
    }

    pub(crate) async fn settle(&mut self, session: &[u8], leases: Vec<SettledLease>) -> Told {
        self.say(client_message::Kind::Settle(Settle {
            session: session.to_vec(),
            leases,
        }))
        .await;
        self.next().await
    }

    /// The stream's last word.
    pub(crate) async fn refused(&mut self) -> Refused {
        loop {
            match self.next().await {
                Told::Refused(refused) => {
                    assert_eq!(self.try_next().await, None, "the stream ends with it");
                    return refused;
                }
                Told::Synced(_) | Told::Granted(_) | Told::Recall(_) | Told::Opened(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// What a gateway has of one key, as its client would keep it.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) key_id: u32,
    pub(crate) key: &'static str,
    pub(crate) generation: u64,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
}

impl Lease {
    pub(crate) fn none(key_id: u32, key: &'static str) -> Self {
        Self {
            key_id,
            key,
            generation: 0,
            granted: 0,
            spent: 0,
            returned: 0,
        }
    }

    pub(crate) fn take(&mut self, grant: &KeyGrant) {
        assert_eq!(grant.key_id, self.key_id);
        if grant.generation > self.generation {
            (self.generation, self.granted, self.spent, self.returned) =
                (grant.generation, 0, 0, 0);
        }
        self.granted = self.granted.max(grant.granted_total);
    }

    pub(crate) fn left(&self) -> u64 {
        self.granted - self.spent - self.returned
    }

    /// A report of what it has, wanting nothing.
    pub(crate) fn report(&self) -> KeyReport {
        KeyReport {
            key_id: self.key_id,
            key: self.key.to_owned(),
            generation: self.generation,
            granted_seen: self.granted,
            spent_total: self.spent,
            returned_total: self.returned,
            left: self.left(),
            ..KeyReport::default()
        }
    }

    /// A report with requests that wait for `units`, one each.
    pub(crate) fn ask(&self, units: u64) -> KeyReport {
        KeyReport {
            want: units,
            waiting: units,
            waiting_head: 1,
            ..self.report()
        }
    }
}
