//! Version 1 of every format on disk must always load: these bytes never change.

use super::super::{record, *};

fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(32)
        .map(|line| {
            line.iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
                + "\n"
        })
        .collect()
}

#[test]
fn a_value_of_version_1() {
    let key = 7_u64.to_be_bytes();
    let value = record::seal(&key, &[&3_u64.to_le_bytes(), b"payload"]);
    insta::assert_snapshot!("value_v1", hex(&value));
    assert_eq!(record::unseal(&key, &value).unwrap()[8..], *b"payload");
    record::unseal(&8_u64.to_be_bytes(), &value).unwrap_err();
}

#[test]
fn an_identity_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let text = "leasehold identity 1\nnode_id 7\ndisk_id 000102030405060708090a0b0c0d0e0f\ntook_part true\ncrc32 ";
    let body = text.trim_end_matches("crc32 ");
    let whole = format!("{text}{:08x}\n", crc32fast::hash(body.as_bytes()));
    insta::assert_snapshot!("identity_v1", whole);
    std::fs::write(dir.path().join("identity"), &whole).unwrap();
    let identity = Identity::load_or_create(dir.path(), 7).unwrap();
    assert_eq!(identity.disk_id, 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
    assert!(identity.took_part);
}

#[test]
fn a_watermark_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity {
        node_id: 7,
        disk_id: 0xabcd,
        took_part: true,
    };
    let mark = Mark {
        last: Some(LogPos { term: 3, index: 9 }),
        vote: Some(StoredVote {
            term: 4,
            committed: true,
            node_id: 2,
        }),
        ..Mark::new(&identity)
    };
    Watermark::create(dir.path(), mark).unwrap();
    let bytes = std::fs::read(dir.path().join("watermark")).unwrap();
    insta::assert_snapshot!("watermark_v1", hex(&bytes[..104]));
    assert_eq!(*Watermark::open(dir.path()).unwrap().unwrap().mark(), mark);
}

#[test]
fn a_watermark_of_version_2_names_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity {
        node_id: 7,
        disk_id: 0xabcd,
        took_part: true,
    };
    let mark = Mark {
        cluster_id: Some(0xfeed),
        last: Some(LogPos { term: 3, index: 9 }),
        ..Mark::new(&identity)
    };
    Watermark::create(dir.path(), mark).unwrap();
    let bytes = std::fs::read(dir.path().join("watermark")).unwrap();
    insta::assert_snapshot!("watermark_v2", hex(&bytes[..104]));
    assert_eq!(*Watermark::open(dir.path()).unwrap().unwrap().mark(), mark);
}

#[test]
fn a_snapshot_file_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let mut folder = SnapshotFolder::open(dir.path()).unwrap();
    let mut writer = folder.create(b"description").unwrap();
    writer.frame(b"one").unwrap();
    writer.frame(b"two").unwrap();
    let file = writer.finish().unwrap();
    folder.adopt(LogPos { term: 3, index: 9 }, &file).unwrap();
    let path = dir.path().join("00000000000000000009-3.snap");
    insta::assert_snapshot!("snapshot_v1", hex(&std::fs::read(path).unwrap()));
    let (description, mut reader) = SnapshotFolder::open(dir.path())
        .unwrap()
        .newest()
        .unwrap()
        .1
        .read()
        .unwrap();
    assert_eq!(description, b"description");
    assert_eq!(reader.next_chunk().unwrap().unwrap(), b"one");
    assert_eq!(reader.next_chunk().unwrap().unwrap(), b"two");
    assert_eq!(reader.next_chunk().unwrap(), None);
}

#[test]
fn a_segment_of_the_log_of_version_1() {
    let dir = tempfile::tempdir().unwrap();
    let at = |term, index| LogPos { term, index };
    let (mut engine, _) = SegmentEngine::open(dir.path()).unwrap();
    engine
        .write(&[
            Write::Vote(StoredVote {
                term: 3,
                committed: true,
                node_id: 2,
            }),
            Write::Append {
                at: at(3, 0),
                bytes: b"one".as_slice().into(),
            },
        ])
        .unwrap();
    engine.barrier().unwrap();
    engine
        .write(&[
            Write::TruncateAfter(None),
            Write::PurgeTo(at(3, 7)),
            Write::Append {
                at: at(4, 8),
                bytes: b"two".as_slice().into(),
            },
            Write::Committed(Some(at(3, 7))),
        ])
        .unwrap();
    engine.barrier().unwrap();
    drop(engine);
    let path = dir.path().join("0000000001.log");
    insta::assert_snapshot!("segment_v1", hex(&std::fs::read(path).unwrap()));
    let (_, loaded) = SegmentEngine::open(dir.path()).unwrap();
    assert_eq!(loaded.entries, [(at(4, 8), b"two".as_slice().into())]);
    assert_eq!(
        (loaded.purged, loaded.committed),
        (Some(at(3, 7)), Some(at(3, 7)))
    );
    assert_eq!(
        loaded.vote.map(|vote| (vote.term, vote.node_id)),
        Some((3, 2))
    );
}
