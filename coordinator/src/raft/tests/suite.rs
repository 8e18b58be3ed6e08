use std::{collections::BTreeSet, sync::Arc};

use leasehold_ledger::Ledger;
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
    type_config::TypeConfigExt,
};
use parking_lot::{Mutex, RwLock};
use tempfile::TempDir;

use crate::{
    raft::{
        log::Log,
        machine::{Belonging, Machine},
        types::Types,
    },
    store::{self, Identity},
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
