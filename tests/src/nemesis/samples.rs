//! Looks at the cluster while faults are injected, and writes down what it saw:
//! every node's digests with their log indexes, and the books of all accounts, as
//! the leader and as every node has them. Judges nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use leasehold_checkers::{AccountSample, DigestSample, Lifetime, Position, Record};
use serde_json::Value;

use super::{
    cluster::{Directory, Place},
    journal::Recorder,
};
use crate::{LocalCluster, clock_ns};

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// One look at the books for so many at the digests.
const DIGESTS_PER_BOOKS: usize = 5;
/// Digests at every so many log indexes, the same on all nodes: a long run has
/// more than anybody wants to keep.
const EVERY_INDEXES: u64 = 4;

/// Looks until it is told to stop.
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Looks at every account now and then, and at the leases of these in turn.
    pub(crate) fn start(directory: Directory, recorder: Recorder, keys: Vec<String>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut digests = Digests::default();
            for look in 0_usize.. {
                if told.load(Ordering::Relaxed) {
                    return;
                }
                digests.look(&directory, &recorder);
                let places = directory.places();
                if let Some(place) = places.get(look % places.len().max(1))
                    && let Some(key) = keys.get(look % keys.len().max(1))
                {
                    leased_books(place, key, &recorder);
                }
                if look.is_multiple_of(DIGESTS_PER_BOOKS) {
                    let turn = look / DIGESTS_PER_BOOKS;
                    if let Some(place) = places.get(turn % places.len().max(1)) {
                        books(place, &recorder);
                        replica_books(place, &recorder);
                    }
                }
                thread::sleep(LOOK_EVERY);
            }
        });
        Self { stop, thread }
    }

    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        // Its panic shows as samples that are missing.
        let _ = self.thread.join();
    }
}

/// Digests, and which of them were written down already.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    /// By node: the indexes of its last answer.
    noted: BTreeMap<u64, BTreeSet<u64>>,
}

impl Digests {
    /// One look at every running node: by node, how far it is.
    pub(crate) fn look(&mut self, directory: &Directory, recorder: &Recorder) -> Vec<(u64, u64)> {
        let mut seen = Vec::new();
        for place in directory.places() {
            let Ok(answer) = LocalCluster::ask(place.client, "GET", "/v1/replica", None) else {
                continue;
            };
            let said = answer.json();
            if said["node_id"] != place.id {
                continue;
            }
            let noted = self.noted.entry(place.id).or_default();
            let mut now = BTreeSet::new();
            for digest in said["digests"].as_array().into_iter().flatten() {
                let (Some(index), Some(value)) =
                    (digest["index"].as_u64(), digest["value"].as_str())
                else {
                    continue;
                };
                now.insert(index);
                if !noted.contains(&index) && index.is_multiple_of(EVERY_INDEXES) {
                    recorder.note(&Record::Digest(DigestSample {
                        node: place.id,
                        index,
                        value: value.to_owned(),
                    }));
                }
            }
            *noted = now;
            if let Some(index) = said["index"].as_u64() {
                seen.push((place.id, index));
            }
        }
        seen
    }
}

/// The books of all accounts as one node itself has them.
pub(crate) fn replica_books(place: &Place, recorder: &Recorder) {
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/replica/accounts?prefix=nemesis/{cursor}");
        let call_ns = clock_ns();
        let Ok(answer) = LocalCluster::ask(place.client, "GET", &path, None) else {
            return;
        };
        let return_ns = clock_ns();
        let page = answer.json();
        let at = page["node_id"].as_u64().zip(page["index"].as_u64());
        let Some((node, index)) = at.filter(|_| answer.status == 200) else {
            return;
        };
        for account in page["accounts"].as_array().into_iter().flatten() {
            if let Some(mut sample) = sample(account, call_ns, return_ns) {
                sample.replica = Some(Position { node, index });
                recorder.note(&Record::Account(sample));
            }
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return,
        }
    }
}

/// The books of all accounts as the leader has them, page by page; false: they were
/// not all read.
pub(crate) fn books(place: &Place, recorder: &Recorder) -> bool {
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/accounts?prefix=nemesis/&limit=200{cursor}");
        let call_ns = clock_ns();
        let Ok(answer) = LocalCluster::ask(place.client, "GET", &path, None) else {
            return false;
        };
        let return_ns = clock_ns();
        if answer.status != 200 {
            return false;
        }
        let page = answer.json();
        for account in page["accounts"].as_array().into_iter().flatten() {
            if let Some(sample) = sample(account, call_ns, return_ns) {
                recorder.note(&Record::Account(sample));
            }
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return true,
        }
    }
}

/// The books of one account as the leader has them, with its leases.
pub(crate) fn leased_books(place: &Place, key: &str, recorder: &Recorder) {
    let call_ns = clock_ns();
    let path = format!("/v1/accounts/{key}");
    let Ok(answer) = LocalCluster::ask(place.client, "GET", &path, None) else {
        return;
    };
    if answer.status == 200
        && let Some(sample) = sample(&answer.json(), call_ns, clock_ns())
    {
        recorder.note(&Record::Account(sample));
    }
}

fn figure(of: &Value, name: &str) -> Option<i128> {
    let value = &of[name];
    let small = value.as_i64().map(i128::from);
    small.or_else(|| value.as_u64().map(i128::from))
}

fn sample(account: &Value, call_ns: u64, return_ns: u64) -> Option<AccountSample> {
    let lifetime = &account["lifetime"];
    let total = |name| figure(lifetime, name);
    let lifetime = || {
        Some(Lifetime {
            granted: total("granted")?,
            spent: total("spent")?,
            returned: total("returned")?,
            presumed_spent: total("presumed_spent")?,
        })
    };
    let leased = |leases: &Vec<Value>| {
        let each = leases.iter().map(|lease| figure(lease, "outstanding"));
        each.sum::<Option<i128>>()
    };
    Some(AccountSample {
        key: account["key"].as_str()?.to_owned(),
        call_ns,
        return_ns,
        replica: None,
        limit: figure(account, "limit")?,
        debt: figure(account, "debt")?,
        counted: figure(account, "counted")?,
        outstanding: figure(account, "outstanding")?,
        free: figure(account, "free")?,
        leased: account["leases"].as_array().and_then(leased),
        lifetime: lifetime(),
    })
}
