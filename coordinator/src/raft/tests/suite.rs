use std::{collections::BTreeSet, sync::Arc};

use leasehold_ledger::Ledger;
use openraft::{
    StorageError,
    storage::RaftLogStorage,
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt,
};
use parking_lot::{Mutex, RwLock};
use tempfile::TempDir;

use crate::{
    raft::{
        log::Log,
        machine::{Belonging, Machine},
        types::{Types, Vote},
    },
    store::{self, Engine, Identity, Loaded, Mark, StoreError, Wal, Watermark, Write},
};

struct Builder;

impl StoreBuilder<Types, Log, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(dir.path(), 1).unwrap();
        let opened = store::open(dir.path(), &identity, |reason| panic!("{reason}")).unwrap();
        let wal = Arc::new(opened.wal);
        let log = Log::new(opened.loaded, Arc::clone(&wal)).unwrap();
        let machine = Machine::new(
            Arc::new(RwLock::new(Ledger::new())),
            Arc::new(Mutex::new(opened.snapshots)),
            Belonging {
                cluster_id: opened.cluster_id,
                wal,
            },
        );
        Ok((dir, log, machine))
    }
}

#[test]
fn the_storage_passes_openrafts_suite() {
    Types::run(async { Suite::test_all(Builder).await.unwrap() });
}

/// An engine whose barriers wait for permission.
struct Gated(Arc<(std::sync::Mutex<bool>, std::sync::Condvar)>);

/// Opens the gate when the test ends, however it ends: the log waits for its engine.
struct OpensAtLast(Arc<(std::sync::Mutex<bool>, std::sync::Condvar)>);

impl OpensAtLast {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

impl Drop for OpensAtLast {
    fn drop(&mut self) {
        self.open();
    }
}

impl Engine for Gated {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        Ok(Loaded::default())
    }

    fn write(&mut self, _: &[Write]) -> Result<(), StoreError> {
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), StoreError> {
        let (is_open, opened) = &*self.0;
        let mut is_open = is_open.lock().unwrap();
        while !*is_open {
            is_open = opened.wait(is_open).unwrap();
        }
        Ok(())
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

#[tokio::test]
async fn a_vote_is_given_only_once_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    let watermark = Watermark::create(dir.path(), Mark::new(&identity)).unwrap();
    let gate = Arc::new((std::sync::Mutex::new(false), std::sync::Condvar::new()));
    let engine = Box::new(Gated(Arc::clone(&gate)));
    let wal = Arc::new(Wal::start(engine, watermark, |reason| panic!("{reason}")).unwrap());
    let mut log = Log::new(Loaded::default(), Arc::clone(&wal)).unwrap();
    let gate = OpensAtLast(gate);
    let vote = Vote::new(3, 1);
    let mut given = Box::pin(log.save_vote(&vote));
    // However long it is asked: nothing can be durable before the barrier.
    for _ in 0..100 {
        assert!(futures::poll!(given.as_mut()).is_pending());
        tokio::task::yield_now().await;
    }
    gate.open();
    given.await.unwrap();
    let mark = *Watermark::open(dir.path()).unwrap().unwrap().mark();
    assert_eq!(mark.vote.map(|vote| vote.term), Some(3));
}

#[test]
fn entries_are_encoded_as_they_were_in_version_1() {
    use openraft::entry::RaftEntry;

    use crate::raft::{
        Member,
        types::{LogEntry, LogId, Proposal},
        wire,
    };

    let id = LogId::new_term_index(3, 7);
    let member = Member {
        node_id: 1,
        peer_addr: "10.0.0.1:7071".to_owned(),
        client_url: "http://10.0.0.1:7070".to_owned(),
        disk_id: 0xabc,
        ..Member::default()
    };
    let membership = openraft::Membership::new(
        vec![BTreeSet::from([1])],
        [(1, member)]
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>(),
    )
    .unwrap();
    let entries = [
        LogEntry::new_blank(id),
        LogEntry::new(
            id,
            openraft::EntryPayload::Normal(Proposal(bytes::Bytes::from_static(b"entry"))),
        ),
        LogEntry::new_membership(id, membership),
    ];
    let mut text = String::new();
    for entry in &entries {
        let bytes = wire::encode_entry(entry).unwrap();
        assert_eq!(&wire::decode_entry(id, &bytes).unwrap(), entry);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&hex);
        text.push('\n');
    }
    insta::assert_snapshot!("entries_v1", text);
}
