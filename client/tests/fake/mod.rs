//! A coordinator in a few lines, for what a real one does only when it fails: it
//! can fall silent, refuse, move, and forget sessions. It keeps the books of one
//! pot of units per key, and never counts anything as free again by itself.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests; each uses a part"
)]

use std::{collections::HashMap, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use leasehold_client::{Builder, Client};
use leasehold_proto::v1::{
    self, ClientMessage, CoordinatorMessage, client_message, coordinator_message,
    leasehold_server::{Leasehold, LeaseholdServer},
};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::{
    Stream,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use crate::authority::{Authority, Own};

type Answers = mpsc::Sender<Result<CoordinatorMessage, Status>>;

/// What the fake does, and what it saw.
#[derive(Default)]
pub(crate) struct Books {
    /// Units that can still be granted, by key.
    pub(crate) free: HashMap<String, u64>,
    pub(crate) limit: u64,
    pub(crate) fails_open: bool,
    /// Reads everything and answers nothing.
    pub(crate) is_silent: bool,
    /// Refuses with this code and time when nothing is free.
    pub(crate) refusal: (String, u64),
    /// Where the leader is, if not here.
    pub(crate) moved_to: Option<String>,
    /// Refuses the next resume with this code.
    pub(crate) refuse_resume: Option<String>,
    /// Refuses the next stream with this code, whatever it begins with.
    pub(crate) refuse_open: Option<String>,
    /// Knows nobody without this token.
    pub(crate) wants_token: Option<String>,
    /// Lets nobody in whom it knows.
    pub(crate) forbids: bool,
    /// What each stream that was begun came with.
    pub(crate) authorizations: Vec<Option<String>>,
    pub(crate) leases: HashMap<(Vec<u8>, String), Lease>,
    pub(crate) sessions: u8,
    pub(crate) opens: u32,
    pub(crate) resumes: u32,
    pub(crate) syncs: u32,
    /// Reports that carried a want.
    pub(crate) asks: u32,
    /// Of each sync that carried any, the keys that requests wait for.
    pub(crate) waiting: Vec<Vec<String>>,
    pub(crate) settled: Vec<v1::Settle>,
    pub(crate) closed: u32,
    pub(crate) max_wait_us: u64,
    pub(crate) kind: String,
    pub(crate) hold_max_us: u64,
    /// Nothing renews a session.
    pub(crate) renews_nothing: bool,
    pub(crate) sync_interval_us: u64,
    pub(crate) ttl_us: u64,
    /// The greatest number that a key was called by.
    pub(crate) key_ids_max: u32,
    generation: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Lease {
    pub(crate) generation: u64,
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) returned: u64,
    pub(crate) held: u64,
    pub(crate) overrun: u64,
    pub(crate) finals: u32,
}

#[derive(Clone)]
pub(crate) struct Fake {
    address: SocketAddr,
    has_tls: bool,
    pub(crate) books: Arc<Mutex<Books>>,
    /// Bumped to end all streams.
    cut: Arc<watch::Sender<u32>>,
    streams: Arc<Mutex<Vec<Answers>>>,
}

impl Fake {
    /// Serves on a port of its own.
    pub(crate) async fn start() -> (Self, String) {
        Self::serve_with(Server::builder(), false).await
    }

    /// The same with TLS; `callers` signs the certificates that it wants.
    pub(crate) async fn start_tls(
        (chain, key): &Own,
        callers: Option<&Authority>,
    ) -> (Self, String) {
        let identity = Identity::from_pem(chain, key);
        let mut tls = ServerTlsConfig::new().identity(identity);
        if let Some(callers) = callers {
            tls = tls.client_ca_root(Certificate::from_pem(callers.pem()));
        }
        Self::serve_with(Server::builder().tls_config(tls).unwrap(), true).await
    }

    async fn serve_with(mut server: Server, has_tls: bool) -> (Self, String) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let fake = Self {
            address,
            has_tls,
            books: Arc::new(Mutex::new(Books {
                kind: "sliding_window".to_owned(),
                limit: 100,
                refusal: ("limit".to_owned(), 60_000_000),
                max_wait_us: 250_000,
                sync_interval_us: 1_000_000,
                ttl_us: 10_000_000,
                generation: 10,
                ..Books::default()
            })),
            cut: Arc::new(watch::channel(0).0),
            streams: Arc::default(),
        };
        let server = server
            .add_service(LeaseholdServer::new(fake.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        let url = fake.url();
        (fake, url)
    }

    pub(crate) fn url(&self) -> String {
        match self.has_tls {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Books)) {
        change(&mut self.books.lock());
    }

    pub(crate) fn get<T>(&self, look: impl FnOnce(&Books) -> T) -> T {
        look(&self.books.lock())
    }

    pub(crate) fn give(&self, key: &str, units: u64) {
        *self.books.lock().free.entry(key.to_owned()).or_default() += units;
    }

    /// The one lease of a key.
    pub(crate) fn lease(&self, key: &str) -> Lease {
        let books = self.books.lock();
        let found = books.leases.iter().find(|((_, name), _)| name == key);
        found.map(|(_, lease)| lease.clone()).unwrap_or_default()
    }

    /// Ends all streams.
    pub(crate) fn cut(&self) {
        self.cut.send_modify(|cut| *cut += 1);
    }

    /// Pushes a message to every stream.
    pub(crate) async fn push(&self, kind: coordinator_message::Kind) {
        let streams = self.streams.lock().clone();
        for stream in streams {
            drop(stream.send(Ok(say(kind.clone()))).await);
        }
    }

    /// Waits until the books look right; panics after ten seconds.
    pub(crate) async fn until(&self, what: &str, mut look: impl FnMut(&Books) -> bool) {
        for _ in 0..2_000 {
            if look(&self.books.lock()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("waited in vain until {what}");
    }
}

pub(crate) fn builder(url: &str) -> Builder {
    Client::builder().endpoint(url).holder("gw-1")
}

fn say(kind: coordinator_message::Kind) -> CoordinatorMessage {
    CoordinatorMessage { kind: Some(kind) }
}

#[tonic::async_trait]
impl Leasehold for Fake {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<ClientMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        {
            let mut books = self.books.lock();
            let shown = request.metadata().get("authorization");
            let shown = shown.map(|value| value.to_str().unwrap().to_owned());
            books.authorizations.push(shown.clone());
            let wanted = books.wants_token.as_ref();
            if wanted.is_some_and(|token| shown != Some(format!("Bearer {token}"))) {
                return Err(Status::unauthenticated("who is that?"));
            }
            if books.forbids {
                return Err(Status::permission_denied("not here"));
            }
        }
        let (answers, stream) = mpsc::channel(64);
        let fake = self.clone();
        self.streams.lock().push(answers.clone());
        tokio::spawn(async move { fake.serve(request.into_inner(), answers).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

impl Fake {
    async fn serve(&self, mut messages: Streaming<ClientMessage>, answers: Answers) {
        let mut cut = self.cut.subscribe();
        let mut session = Vec::new();
        let mut keys = HashMap::new();
        loop {
            let message = tokio::select! {
                message = messages.message() => message,
                _ = cut.changed() => {
                    drop(answers.send(Err(Status::unavailable("cut"))).await);
                    break;
                }
            };
            let Ok(Some(ClientMessage { kind: Some(kind) })) = message else {
                break;
            };
            let (answer, ends) = self.answer(kind, &mut session, &mut keys);
            if let Some(answer) = answer {
                drop(answers.send(Ok(say(answer))).await);
            }
            if ends {
                break;
            }
        }
        self.streams
            .lock()
            .retain(|stream| !stream.same_channel(&answers));
    }

    fn answer(
        &self,
        kind: client_message::Kind,
        session: &mut Vec<u8>,
        keys: &mut HashMap<u32, String>,
    ) -> (Option<coordinator_message::Kind>, bool) {
        use coordinator_message::Kind;
        let mut books = self.books.lock();
        if books.is_silent {
            return (None, false);
        }
        match kind {
            client_message::Kind::Open(open) => {
                books.opens += 1;
                if let Some(code) = books.refuse_open.take() {
                    let detail = String::new();
                    return (Some(Kind::Refused(v1::Refused { code, detail })), true);
                }
                if let Some(leader) = books.moved_to.clone() {
                    return (Some(Kind::Moved(v1::Moved { leader })), true);
                }
                if open.resume.is_empty() {
                    books.sessions += 1;
                    *session = vec![books.sessions; 16];
                } else {
                    if let Some(code) = books.refuse_resume.take() {
                        let detail = String::new();
                        return (Some(Kind::Refused(v1::Refused { code, detail })), true);
                    }
                    books.resumes += 1;
                    *session = open.resume;
                }
                let leases = books
                    .leases
                    .iter()
                    .filter(|((owner, _), _)| owner == session);
                let leases = leases
                    .map(|((_, key), lease)| v1::LeaseState {
                        key: key.clone(),
                        generation: lease.generation,
                        granted_total: lease.granted,
                        spent_total: lease.spent,
                        returned_total: lease.returned,
                    })
                    .collect();
                let opened = v1::Opened {
                    session: session.clone(),
                    validity_us: books.ttl_us,
                    sync_interval_us: books.sync_interval_us,
                    leases,
                    reports_per_sync_max: 100,
                    keys_per_session_max: 100,
                    session_ttl_us: books.ttl_us,
                };
                (Some(Kind::Opened(opened)), false)
            }
            client_message::Kind::Sync(sync) => {
                books.syncs += 1;
                let mut waiting = Vec::new();
                let waits = |report: &&v1::KeyReport| report.waiting > 0;
                for report in sync.reports.iter().filter(waits) {
                    let known = keys.get(&report.key_id);
                    waiting.push(known.unwrap_or(&report.key).clone());
                }
                if !waiting.is_empty() {
                    waiting.sort();
                    books.waiting.push(waiting);
                }
                let grants = sync
                    .reports
                    .into_iter()
                    .filter_map(|report| books.take_in(report, session, keys, sync.seq))
                    .collect();
                (
                    Some(Kind::Synced(v1::Synced {
                        seq: sync.seq,
                        renewed: !books.renews_nothing,
                        grants,
                    })),
                    false,
                )
            }
            client_message::Kind::Close(close) => {
                for report in close.reports {
                    books.take_in(report, session, keys, close.seq);
                }
                books.closed += 1;
                (Some(Kind::Closed(v1::Closed {})), true)
            }
            client_message::Kind::Settle(settle) => {
                let session = settle.session.clone();
                books.settled.push(settle);
                (Some(Kind::Settled(v1::Settled { session })), false)
            }
        }
    }
}

impl Books {
    fn take_in(
        &mut self,
        report: v1::KeyReport,
        session: &[u8],
        keys: &mut HashMap<u32, String>,
        seq: u64,
    ) -> Option<v1::KeyGrant> {
        let is_new = !report.key.is_empty();
        self.key_ids_max = self.key_ids_max.max(report.key_id);
        if is_new {
            keys.insert(report.key_id, report.key.clone());
        }
        let key = keys.get(&report.key_id).expect("an announced key").clone();
        let owner = (session.to_vec(), key.clone());
        if report.generation != 0
            && let Some(lease) = self.leases.get_mut(&owner)
            && lease.generation == report.generation
        {
            assert!(
                report.spent_total >= lease.spent,
                "spent shrank: {report:?}"
            );
            assert!(
                report.returned_total >= lease.returned,
                "returned shrank: {report:?}"
            );
            assert!(
                report.spent_total + report.returned_total <= lease.granted,
                "{report:?}"
            );
            let back = report.returned_total - lease.returned;
            (lease.spent, lease.returned) = (report.spent_total, report.returned_total);
            lease.held = report.held;
            lease.overrun = lease.overrun.max(report.overrun_total);
            *self.free.entry(key.clone()).or_default() += back;
            if report.r#final {
                lease.finals += 1;
                self.leases.remove(&owner);
            }
        }
        if report.want == 0 && !is_new {
            return None;
        }
        self.asks += u32::from(report.want > 0);
        let free = self.free.entry(key).or_default();
        let units = report.want.min(*free);
        *free -= units;
        let free = *free;
        let refusal = (units < report.want.min(report.waiting.max(1))).then(|| v1::Refusal {
            code: self.refusal.0.clone(),
            retry_after_us: self.refusal.1,
            lane: 0,
        });
        if units > 0 && !self.leases.contains_key(&owner) {
            self.generation += 1;
            let generation = self.generation;
            self.leases.insert(
                owner.clone(),
                Lease {
                    generation,
                    ..Lease::default()
                },
            );
        }
        let lease = self.leases.get_mut(&owner).map(|lease| {
            lease.granted += units;
            lease.clone()
        });
        let lease = lease.unwrap_or_default();
        Some(v1::KeyGrant {
            key_id: report.key_id,
            generation: lease.generation,
            granted_total: lease.granted,
            basis_seq: seq,
            valid_for_us: 0,
            refusal,
            policy: Some(v1::PolicyInfo {
                kind: self.kind.clone(),
                hold_max_us: self.hold_max_us,
                limit: self.limit,
                window_us: 60_000_000,
                timescale_us: 60_000_000,
                max_wait_us: self.max_wait_us,
                failure_mode: i32::from(self.fails_open),
                slice_factor_milli: 1500,
                public_name: String::new(),
                ..v1::PolicyInfo::default()
            }),
            free,
            holders: 0,
            ask_anew: false,
        })
    }
}
