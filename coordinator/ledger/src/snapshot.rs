//! The ledger as canonical bytes, in chunks: equal ledgers give equal bytes.
//! Knows nothing of files.
//!
//! Eight bytes of magic, the format version (u32, little endian), length-delimited
//! records (header, policies, budgets, periods, nodes, sessions, tombstones, accounts,
//! remembered spends, footer), and the xxh3 hash of all that (u64, little endian).

use std::{
    collections::BTreeMap,
    io::{self, Read},
    sync::Arc,
};

use leasehold_key::Key;
use prost::Message;
use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

use crate::{
    account::Account,
    entry::SessionId,
    kind::Periods,
    ledger::Ledger,
    policy::Policy,
    rules::{Rules, Source as RuleSource},
    sessions::{Session, Tombstone},
    settings::Settings,
    shards::Shards,
    spent_once::{Name, Remembered},
    wire::{self, FormatError, Header, Record, RecordKind, VERSION},
};

/// The longest chunk: stores keep values below this.
pub const CHUNK_BYTES_MAX: usize = 64 * 1024;

const MAGIC: &[u8; 8] = b"LEASEHLD";
/// No record is longer: an account with a million leases stays below.
const RECORD_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Why bytes are not a ledger.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes could not be read, or end too early.
    #[error("the snapshot cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The bytes are something else.
    #[error("the bytes are not a ledger's snapshot")]
    NotALedger,
    /// Written by a version that this one does not know.
    #[error("snapshot format version {found} is unknown: this version reads up to {VERSION}")]
    UnknownVersion {
        /// What the bytes say.
        found: u32,
    },
    /// A record is not one that any writer makes.
    #[error("the snapshot is damaged: {0}")]
    Record(#[from] FormatError),
    /// The bytes contradict themselves.
    #[error("the snapshot is damaged: {0}")]
    Damaged(&'static str),
}

/// A ledger as it was at a moment. Cheap to make and to keep: it shares what has
/// not changed since.
#[derive(Clone, Debug)]
pub struct FrozenLedger {
    header: Header,
    digest: u64,
    rules: Rules,
    nodes: Arc<BTreeMap<u64, u128>>,
    sessions: Shards<SessionId, Session>,
    tombstones: Shards<SessionId, Tombstone>,
    accounts: Shards<Key, Account>,
    periods: Arc<Periods>,
    spent_once: Shards<Name, Remembered>,
}

impl Ledger {
    /// The ledger as it is now; later entries do not change it.
    #[must_use]
    pub fn freeze(&self) -> FrozenLedger {
        FrozenLedger {
            header: Header {
                now_us: self.now_us,
                last_index: self.last_index,
                settings: (*self.settings).clone(),
                default_strict_from_us: self.rules.default_strict_from_us(),
                cluster_id: self.cluster_id,
                ancestors: Arc::clone(&self.ancestors),
                inherited_until_us: self.inherited_until_us,
                format_version: self.format_version,
            },
            digest: self.digest(),
            rules: self.rules.clone(),
            nodes: Arc::clone(&self.nodes),
            sessions: self.sessions.live().clone(),
            tombstones: self.sessions.tombstones().clone(),
            accounts: self.accounts.shards().clone(),
            periods: Arc::clone(self.accounts.periods()),
            spent_once: self.spent_once.all().clone(),
        }
    }

    /// Reads what [`FrozenLedger::chunks`] gave, one chunk after the other.
    ///
    /// # Errors
    /// When the bytes cannot be read, are damaged, or were written by an unknown
    /// version.
    pub fn decode(reader: impl Read) -> Result<Self, SnapshotError> {
        let mut source = Source {
            reader: io::BufReader::new(reader),
            hash: Xxh3::new(),
        };
        let mut magic = [0; MAGIC.len()];
        source.fill(&mut magic)?;
        if magic != *MAGIC {
            return Err(SnapshotError::NotALedger);
        }
        let mut version = [0; 4];
        source.fill(&mut version)?;
        let version = u32::from_le_bytes(version);
        if !(1..=VERSION).contains(&version) {
            return Err(SnapshotError::UnknownVersion { found: version });
        }

        let RecordKind::Header(header) = source.record()? else {
            return Err(SnapshotError::Damaged("it does not begin with a header"));
        };
        let header = wire::read_header(header)?;
        let mut ledger = Self::new();
        ledger.now_us = header.now_us;
        ledger.last_index = header.last_index;
        ledger.cluster_id = header.cluster_id;
        ledger.ancestors = header.ancestors;
        ledger.inherited_until_us = header.inherited_until_us;
        ledger.format_version = header.format_version;
        ledger.set_settings(header.settings);
        let drift_ppm = ledger.settings.max_drift_ppm;
        let mut records = 1_u64;
        // Accounts need the rules, which are complete once the first session,
        // tombstone or account is there.
        let mut default = Some(header.default_strict_from_us);
        let footer = loop {
            let record = source.record()?;
            records = records.saturating_add(1);
            if !matches!(record, RecordKind::Policy(_))
                && let Some(strict_from_us) = default.take()
            {
                let name = ledger.settings.default_policy.clone();
                if !ledger
                    .rules
                    .restore_default(name.as_deref(), strict_from_us)
                {
                    return Err(SnapshotError::Damaged("the default policy is missing"));
                }
            }
            match record {
                RecordKind::Header(_) => return Err(SnapshotError::Damaged("a second header")),
                RecordKind::Policy(message) => {
                    let (name, policy) = wire::read_named_policy(message)?;
                    ledger.rules.restore_policy(&name, policy);
                }
                RecordKind::Budget(message) => {
                    let budget = wire::read_budget(message)?;
                    if !ledger.rules.restore_budget(
                        budget.pattern,
                        budget.terms,
                        budget.strict_from_us,
                        budget.history,
                    ) {
                        return Err(SnapshotError::Damaged("a budget's policy is missing"));
                    }
                }
                RecordKind::Node(message) => {
                    let (node_id, disk_id) = message.read();
                    ledger.add_node(node_id, disk_id);
                }
                RecordKind::Session(message) => {
                    let (id, session) = wire::read_session(message)?;
                    ledger.sessions.open(id, session);
                }
                RecordKind::Tombstone(message) => {
                    let (id, tombstone) = wire::read_tombstone(message)?;
                    ledger.sessions.bury(id, tombstone);
                }
                RecordKind::Account(message) => {
                    let periods = ledger.accounts.periods();
                    let account = wire::read_account(message, &ledger.rules, drift_ppm, periods)?;
                    for id in account.leases.keys() {
                        ledger.sessions.hold(id.session, &account.key);
                    }
                    ledger.accounts.insert(account);
                }
                RecordKind::Period(message) => {
                    let (calendar, period) = wire::read_period(message)?;
                    ledger.accounts.begin_period(calendar, period);
                }
                RecordKind::SpentOnce(message) => {
                    let (name, remembered) = wire::read_spent_once(message)?;
                    ledger.spent_once.insert(name, remembered);
                }
                RecordKind::Footer(footer) => break footer,
            }
        };
        let computed = source.hash.digest();
        let mut checksum = [0; 8];
        source.reader.read_exact(&mut checksum)?;
        if u64::from_le_bytes(checksum) != computed {
            return Err(SnapshotError::Damaged("its checksum does not match"));
        }
        if source.reader.read(&mut [0; 1])? != 0 {
            return Err(SnapshotError::Damaged("bytes follow its end"));
        }
        if footer.records != records || footer.digest != ledger.digest() {
            return Err(SnapshotError::Damaged("its digest does not match"));
        }
        Ok(ledger)
    }
}

impl FrozenLedger {
    /// The log index of the last entry in it.
    #[must_use]
    pub const fn last_index(&self) -> u64 {
        self.header.last_index
    }

    /// Cluster time in microseconds, as of that entry.
    #[must_use]
    pub const fn now_us(&self) -> u64 {
        self.header.now_us
    }

    /// Which cluster's books these are.
    #[must_use]
    pub const fn cluster_id(&self) -> Option<u128> {
        self.header.cluster_id
    }

    /// Its digest.
    #[must_use]
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) const fn settings(&self) -> &Settings {
        &self.header.settings
    }

    pub(crate) fn periods(&self) -> &Periods {
        &self.periods
    }

    pub(crate) const fn inherited_until_us(&self) -> u64 {
        self.header.inherited_until_us
    }

    /// In the order of their keys.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = &Account> {
        self.accounts.iter().map(|(_, account)| account)
    }

    /// The lowest version that says all of it.
    fn version(&self) -> u32 {
        // A restored ledger has an id, and one that knows its ancestors is restored.
        let named = match self.header.cluster_id {
            _ if !self.header.ancestors.is_empty() => wire::VERSION_OF_ANCESTORS,
            Some(_) => wire::VERSION_OF_IDS,
            None => 1,
        };
        let newer = self.header.format_version > 0
            || !self.spent_once.is_empty()
            || self.rules.is_newer()
            || self.accounts.iter().any(|(_, a)| a.is_newer());
        let least = if newer { wire::VERSION_OF_KINDS } else { 1 };
        let policies = self.stored_policies().map(wire::version_of);
        let periods = self.periods.calendars().map(wire::calendar_version);
        policies.chain(periods).fold(
            named
                .max(least)
                .max(wire::settings_version(&self.header.settings)),
            u32::max,
        )
    }

    /// Every policy that some record holds.
    fn stored_policies(&self) -> impl Iterator<Item = &Policy> {
        let rules = self.rules.policies_in_force();
        let rules = rules.chain(self.rules.policies_of_histories());
        let accounts = self.accounts.iter();
        let kept = accounts
            .filter(|(_, account)| account.binding.source == RuleSource::Gone)
            .map(|(_, account)| &*account.binding.policy);
        rules.chain(kept)
    }

    /// Its canonical bytes, in chunks of at most [`CHUNK_BYTES_MAX`].
    pub fn chunks(&self) -> Chunks<'_> {
        let rules = &self.rules;
        let records = std::iter::once_with(|| wire::header_record(&self.header))
            .chain(
                rules
                    .policies()
                    .iter()
                    .map(|(name, policy)| wire::named_policy_record(name, policy)),
            )
            .chain(
                rules
                    .budgets()
                    .iter()
                    .map(|(pattern, budget)| wire::budget_record(pattern, budget)),
            )
            .chain(
                self.periods
                    .iter()
                    .map(|(calendar, period)| wire::period_record(calendar, period)),
            )
            .chain(
                self.nodes
                    .iter()
                    .map(|(id, disk)| wire::node_record(*id, *disk)),
            )
            .chain(
                self.sessions
                    .iter()
                    .map(|(id, session)| wire::session_record(*id, session)),
            )
            .chain(
                self.tombstones
                    .iter()
                    .map(|(id, stone)| wire::tombstone_record(*id, stone)),
            )
            .chain(
                self.accounts
                    .iter()
                    .map(|(key, account)| wire::account_record(key, account)),
            )
            .chain(
                self.spent_once
                    .iter()
                    .map(|(name, remembered)| wire::spent_once_record(name, remembered)),
            );
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&self.version().to_le_bytes());
        let mut hash = Xxh3::new();
        hash.update(&start);
        Chunks {
            records: Some(Box::new(records)),
            count: 0,
            ready: start,
            sent: 0,
            hash,
            digest: self.digest,
        }
    }
}

/// Gives a ledger's bytes, made as they are asked for.
pub struct Chunks<'a> {
    records: Option<Box<dyn Iterator<Item = RecordKind> + Send + 'a>>,
    count: u64,
    /// Bytes made; those before `sent` are given out.
    ready: Vec<u8>,
    sent: usize,
    hash: Xxh3,
    digest: u64,
}

impl std::fmt::Debug for Chunks<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Chunks")
            .field("records", &self.count)
            .finish_non_exhaustive()
    }
}

impl Chunks<'_> {
    fn write(&mut self, kind: RecordKind) {
        let from = self.ready.len();
        let bytes = Record { kind: Some(kind) }.encode_length_delimited_to_vec();
        self.ready.extend_from_slice(&bytes);
        self.hash.update(self.ready.get(from..).unwrap_or_default());
    }

    /// Makes bytes until a whole chunk is ready or nothing is left.
    fn make(&mut self) {
        while self.ready.len().saturating_sub(self.sent) < CHUNK_BYTES_MAX
            && let Some(records) = &mut self.records
        {
            match records.next() {
                Some(record) => {
                    self.count = self.count.saturating_add(1);
                    self.write(record);
                }
                None => {
                    self.records = None;
                    let records = self.count.saturating_add(1);
                    let digest = self.digest;
                    self.write(wire::footer_record(digest, records));
                    let checksum = self.hash.digest();
                    self.ready.extend_from_slice(&checksum.to_le_bytes());
                }
            }
        }
    }
}

impl Iterator for Chunks<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        self.make();
        let left = self.ready.get(self.sent..).unwrap_or_default();
        let chunk = left.get(..CHUNK_BYTES_MAX).unwrap_or(left).to_vec();
        if chunk.is_empty() {
            return None;
        }
        self.sent = self.sent.saturating_add(chunk.len());
        // A record can be many chunks long: what is sent goes once it is the
        // larger part.
        if self.sent >= self.ready.len().saturating_sub(self.sent) {
            self.ready.drain(..self.sent);
            self.sent = 0;
        }
        Some(chunk)
    }
}

/// Reads and hashes.
struct Source<R> {
    reader: R,
    hash: Xxh3,
}

impl<R: Read> Source<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.reader.read_exact(bytes)?;
        self.hash.update(bytes);
        Ok(())
    }

    fn record(&mut self) -> Result<RecordKind, SnapshotError> {
        let mut length = 0_u64;
        for shift in (0..64).step_by(7) {
            let mut byte = [0; 1];
            self.fill(&mut byte)?;
            let [byte] = byte;
            length |= u64::from(byte & 0x7f).unbounded_shl(shift);
            if byte < 0x80 {
                break;
            }
        }
        if length > RECORD_BYTES_MAX {
            return Err(SnapshotError::Damaged("a record is impossibly long"));
        }
        let mut bytes = Vec::new();
        (&mut self.reader).take(length).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).ok() != Some(length) {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.hash.update(&bytes);
        let record = Record::decode(bytes.as_slice()).map_err(FormatError::from)?;
        record
            .kind
            .ok_or(SnapshotError::Damaged("a record of an unknown kind"))
    }
}
