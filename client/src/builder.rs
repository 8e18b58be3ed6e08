//! How a client is set up. Everything is checked here, once.

use std::{path::PathBuf, sync::Arc, time::Duration};

use leasehold_credentials::{Credentials, CredentialsError, Names};
use leasehold_spend::{ClientCore, CoreSettings, FailureMode, Line};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::{
    client::Client,
    clock::SystemClock,
    convert::Identity,
    driver::{Alive, Driver, Progress, Shared},
    error::BuildError,
    registry::Registry,
    transport,
};

const HOLDER_BYTES_MAX: usize = 128;
const KEYS_MAX: u64 = 1 << 20;
const WAITERS_MAX: u64 = 1 << 20;

const NAMES: Names = Names {
    ca: "ca_file",
    certificate: "identity_files",
    key: "identity_files",
    token: "token",
    token_file: "token_file",
};

/// Sets a [`Client`] up. Obtained from [`Client::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until connect"]
pub struct Builder {
    endpoints: Vec<String>,
    holder: String,
    keys_max: u32,
    waiters_max: u32,
    connect_timeout: Duration,
    is_strict: bool,
    before_contact: FailureMode,
    credentials: Credentials,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            holder: String::new(),
            keys_max: 16_384,
            waiters_max: 4_096,
            connect_timeout: Duration::from_secs(10),
            is_strict: false,
            before_contact: FailureMode::Closed,
            credentials: Credentials::new(NAMES),
        }
    }
}

impl Builder {
    /// Adds a coordinator's client URL, like `https://node1.internal:7070`, or
    /// `http://127.0.0.1:7070` without TLS. Any node will do; several are tried in turn.
    /// `https` needs a [`ca_file`](Self::ca_file) and the crate's feature `tls`, which is
    /// on by default. A leader that a node names is called with the same credentials, and
    /// never without TLS by a client that was sent there over TLS.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoints.push(url.into());
        self
    }

    /// Adds several URLs.
    pub fn endpoints<S: Into<String>>(mut self, urls: impl IntoIterator<Item = S>) -> Self {
        self.endpoints.extend(urls.into_iter().map(Into::into));
        self
    }

    /// The authority that vouches for the coordinators: a file with its certificate in
    /// PEM, or with several of them. No other authority is trusted, the system's neither.
    ///
    /// Like every file that is named here, it is read at each attempt to connect, so that
    /// a new one needs no restart; a connection that stands goes on with what it began
    /// with.
    ///
    /// ```no_run
    /// # async fn gateway() -> Result<(), leasehold_client::BuildError> {
    /// let client = leasehold_client::Client::builder()
    ///     .endpoint("https://node1.internal:7070")
    ///     .ca_file("/etc/leasehold/node-ca.pem")
    ///     .token_file("/etc/leasehold/token")
    ///     .holder("gw-1")
    ///     .connect()
    ///     .await?;
    /// # drop(client);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials.set_ca_file(path);
        self
    }

    /// The client's own certificate, with its chain, and the certificate's key, both in
    /// PEM, for coordinators that know their callers by certificate. Shown to `https`
    /// endpoints alone. A key that others than its owner can read is not used.
    pub fn identity_files(
        mut self,
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.credentials.set_identity_files(certificate, key);
        self
    }

    /// A file whose one line is the client's token. A file that others than its owner can
    /// read is not used.
    ///
    /// A token is sent over TLS, or to a loopback address, and to nobody else: with an
    /// `http` endpoint on another machine no client is built, and there is no setting
    /// that changes this. What encrypts in the client's stead, like a mesh's proxy, is to
    /// be called on loopback.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials.set_token_file(path);
        self
    }

    /// The client's token itself, as in [`token_file`](Self::token_file), for programs
    /// that get it otherwise. It is not shown when the builder is printed.
    pub fn token(mut self, text: impl Into<String>) -> Self {
        self.credentials.set_token(text);
        self
    }

    /// Whom to trust and as whom to call, as a whole: for a program whose settings have
    /// names of their own, by which errors are to call them.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// The holder's name in the coordinator's books, 1 to 128 bytes. For people:
    /// it need not be unique.
    pub fn holder(mut self, name: impl Into<String>) -> Self {
        self.holder = name.into();
        self
    }

    /// The most keys that the client keeps (16,384). Idle ones make room.
    pub fn keys_max(mut self, keys: u32) -> Self {
        self.keys_max = keys;
        self
    }

    /// The most requests that wait for one key (4,096).
    pub fn waiters_max(mut self, waiters: u32) -> Self {
        self.waiters_max = waiters;
        self
    }

    /// How long [`connect`](Self::connect) waits for a first session (10 s).
    pub fn connect_timeout(mut self, wait: Duration) -> Self {
        self.connect_timeout = wait;
        self
    }

    /// Read two clocks at every request, so that not even the first moments after
    /// the machine was suspended are outside of the promise. Costs some tens of
    /// nanoseconds.
    pub fn strict_clock(mut self, is_strict: bool) -> Self {
        self.is_strict = is_strict;
        self
    }

    /// What becomes of requests of a key of which no coordinator was ever heard, when
    /// nobody can be asked: refused ([`FailureMode::Closed`]), unless this says
    /// otherwise. Once the key's policy is known, that alone says. With another mode
    /// than `Closed`, [`connect`](Self::connect) returns a client when its time is up
    /// though there is no session, and the client goes on looking for one. An emergency
    /// allowance is for a minute then, and of one unit if none is stated.
    pub fn before_contact(mut self, failure: FailureMode) -> Self {
        self.before_contact = failure;
        self
    }

    /// Connects, and waits for the first session. Must be called inside a tokio
    /// runtime, which then runs the client's one task.
    ///
    /// # Errors
    /// When a setting is wrong, or no coordinator opened a session in time (see
    /// [`before_contact`](Self::before_contact)). Nothing is left running then.
    pub async fn connect(self) -> Result<Client, BuildError> {
        let waits_for_good = self.before_contact != FailureMode::Closed;
        let (wait, endpoints) = (self.connect_timeout, self.endpoints.join(", "));
        // Dropped on failure, and the driver ends with it.
        let client = self.start()?;
        let is_open = matches!(
            tokio::time::timeout(wait, client.was_open()).await,
            Ok(true)
        );
        if is_open || waits_for_good {
            return Ok(client);
        }
        Err(BuildError::NoSession {
            endpoints,
            waited: wait,
            last: client.last_error(),
        })
    }

    /// A client that looks for its first session by itself, for as long as it takes: for
    /// a process that must answer meanwhile (see [`before_contact`](Self::before_contact)).
    /// Must be called inside a tokio runtime, which then runs the client's one task.
    ///
    /// # Errors
    /// When a setting is wrong. Nothing is left running then.
    pub fn start(self) -> Result<Client, BuildError> {
        self.check()?;
        let mut instance = [0; 16];
        getrandom::fill(&mut instance)
            .map_err(|error| BuildError::NoRandomness(error.to_string()))?;
        let notify = Arc::new(Notify::new());
        let bell = Arc::clone(&notify);
        let line = Arc::new(Line::new(self.keys_max, move || bell.notify_one()));
        let settings = CoreSettings {
            waiters_max: usize::try_from(self.waiters_max).unwrap_or(usize::MAX),
            ..CoreSettings::default()
        };
        let registry = Registry::new(
            Arc::clone(&line),
            settings.waiters_max,
            settings.max_wait_ns,
            self.before_contact,
        );
        let shared = Arc::new(Shared {
            clock: SystemClock::new(self.is_strict),
            registry,
            line: Arc::clone(&line),
            notify: Arc::clone(&notify),
            is_closing: false.into(),
            last_error: Mutex::new("no answer yet".to_owned()),
        });
        let alive = Arc::new(Alive(notify));
        let (progress, seen) = watch::channel(Progress::default());
        let driver = Driver {
            core: ClientCore::new(settings, line),
            shared: Arc::clone(&shared),
            alive: Arc::downgrade(&alive),
            progress,
            identity: Identity {
                holder: self.holder,
                instance,
            },
            endpoints: self.endpoints,
            credentials: Arc::new(self.credentials),
        };
        tokio::spawn(driver.run());
        Ok(Client::new(shared, alive, seen))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.endpoints.is_empty() {
            return Err(BuildError::NoEndpoint);
        }
        for url in &self.endpoints {
            transport::check(url, &self.credentials).map_err(|error| {
                let endpoint = url.clone();
                match error {
                    CredentialsError::NoUrl | CredentialsError::OtherScheme { .. } => {
                        BuildError::BadEndpoint {
                            endpoint,
                            reason: error.to_string(),
                        }
                    }
                    error => BuildError::Credentials { endpoint, error },
                }
            })?;
        }
        let bytes = self.holder.len();
        if !(1..=HOLDER_BYTES_MAX).contains(&bytes) {
            return Err(BuildError::BadHolder {
                bytes,
                max: HOLDER_BYTES_MAX,
            });
        }
        for (field, value, most) in [
            ("keys_max", self.keys_max, KEYS_MAX),
            ("waiters_max", self.waiters_max, WAITERS_MAX),
        ] {
            let value = u64::from(value);
            if !(1..=most).contains(&value) {
                return Err(BuildError::OutOfRange {
                    field,
                    value,
                    least: 1,
                    most,
                });
            }
        }
        Ok(())
    }
}
