//! The log's files: what a torn end, a broken middle and a purge do to them, and
//! where the logs of the first engine go.

use std::fs;

use super::{super::*, append, content, write};

fn at(term: u64, index: u64) -> LogPos {
    LogPos { term, index }
}

fn commit(engine: &mut SegmentEngine, writes: &[Write]) {
    engine.write(writes).unwrap();
    engine.barrier().unwrap();
}

fn indexes(loaded: &Loaded) -> Vec<u64> {
    loaded.entries.iter().map(|(at, _)| at.index).collect()
}

#[test]
fn a_torn_end_is_dropped_and_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = SegmentEngine::open(dir.path()).unwrap();
    commit(&mut engine, &[append(at(1, 0)), append(at(1, 1))]);
    let file = dir.path().join("0000000001.log");
    let durable = fs::metadata(&file).unwrap().len();
    // One group: nothing in it says that any of it was durable.
    commit(
        &mut engine,
        &[append(at(1, 2)), append(at(1, 3)), append(at(1, 4))],
    );
    drop(engine);
    let whole = fs::read(&file).unwrap();
    for broken in durable as usize..whole.len() {
        let mut bytes = whole.clone();
        bytes[broken] ^= 1;
        fs::write(&file, &bytes).unwrap();
        let (mut engine, loaded) = SegmentEngine::open(dir.path()).unwrap();
        let kept = loaded.entries.len() as u64;
        assert_eq!(indexes(&loaded), (0..kept).collect::<Vec<_>>());
        assert!((2..5).contains(&kept), "byte {broken}: {kept} entries");
        if broken % 16 == 0 {
            // What was behind the tear never comes back.
            commit(&mut engine, &[append(at(2, kept))]);
            drop(engine);
            let (_, loaded) = SegmentEngine::open(dir.path()).unwrap();
            assert_eq!(loaded.last(), Some(at(2, kept)));
        }
    }
}

#[test]
fn a_broken_record_that_a_later_one_says_was_durable_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = SegmentEngine::open(dir.path()).unwrap();
    commit(&mut engine, &[append(at(1, 0)), append(at(1, 1))]);
    let file = dir.path().join("0000000001.log");
    let durable = fs::metadata(&file).unwrap().len() as usize;
    commit(&mut engine, &[append(at(1, 2))]);
    drop(engine);
    let whole = fs::read(&file).unwrap();
    for broken in 0..durable {
        let mut bytes = whole.clone();
        bytes[broken] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
        let error = SegmentEngine::open(dir.path()).err().unwrap();
        assert_eq!(error.code(), "damaged_store", "byte {broken}: {error}");
        assert!(error.to_string().contains("0000000001.log"), "{error}");
    }
    fs::write(&file, &whole).unwrap();
    SegmentEngine::open(dir.path()).unwrap();
}

#[test]
fn segments_follow_each_other_and_go_when_all_in_them_is_purged() {
    let dir = tempfile::tempdir().unwrap();
    let (mut engine, _) = SegmentEngine::open(dir.path()).unwrap();
    let vote = StoredVote {
        term: 1,
        committed: true,
        node_id: 3,
    };
    commit(&mut engine, &[Write::Vote(vote)]);
    let long = |index| Write::Append {
        at: at(1, index),
        bytes: vec![index as u8; 1 << 20].into(),
    };
    for index in 0..39 {
        commit(&mut engine, &[long(index)]);
    }
    let files = || {
        let names = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".log"))
            .collect();
        names.sort();
        names
    };
    assert_eq!(files().len(), 5);
    commit(&mut engine, &[Write::PurgeTo(at(1, 30))]);
    while engine.tidy().unwrap() {}
    assert_eq!(files(), ["0000000004.log", "0000000005.log"]);
    drop(engine);
    let (engine, loaded) = SegmentEngine::open(dir.path()).unwrap();
    assert_eq!(indexes(&loaded), (31..39).collect::<Vec<_>>());
    assert_eq!((loaded.purged, loaded.vote), (Some(at(1, 30)), Some(vote)));
    drop(engine);

    // A cut may bring a deleted segment back, whether it joins the others or not.
    let broken = dir.path().join("0000000002.log");
    fs::write(&broken, b"whatever").unwrap();
    let (mut engine, again) = SegmentEngine::open(dir.path()).unwrap();
    assert_eq!(indexes(&again), indexes(&loaded));
    commit(&mut engine, &[long(39)]);
    assert!(!broken.exists());
    drop(engine);

    // One in the middle is not missing without a word.
    fs::remove_file(dir.path().join("0000000004.log")).unwrap();
    let (_, loaded) = SegmentEngine::open(dir.path()).unwrap();
    loaded.check().unwrap_err();
}

#[test]
fn a_second_process_is_told_that_the_folder_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let _engine = SegmentEngine::open(dir.path()).unwrap();
    let error = SegmentEngine::open(dir.path()).err().unwrap();
    assert_eq!(error.code(), "store_locked");
}

#[test]
fn a_log_of_the_first_engine_is_rewritten_whole_or_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    let log = dir.path().join("log");
    let vote = StoredVote {
        term: 2,
        committed: true,
        node_id: 1,
    };
    let mark = Mark {
        last: Some(at(2, 99)),
        vote: Some(vote),
        ..Mark::new(&identity)
    };
    drop(Watermark::create(dir.path(), mark).unwrap());
    let (mut first, _) = SledEngine::open(&log).unwrap();
    let writes: Vec<Write> = (0..100).map(|index| append(at(2, index))).collect();
    first.write(&writes).unwrap();
    first
        .write(&[
            Write::Vote(vote),
            Write::PurgeTo(at(2, 9)),
            Write::Committed(Some(at(2, 50))),
        ])
        .unwrap();
    first.barrier().unwrap();
    drop(first);

    for _ in 0..2 {
        let opened = open(dir.path(), &identity, |reason| panic!("{reason}")).unwrap();
        let loaded = &opened.loaded;
        assert_eq!(indexes(loaded), (10..100).collect::<Vec<_>>());
        let same = |(at, bytes): &(LogPos, bytes::Bytes)| *bytes == content(*at);
        assert!(loaded.entries.iter().all(same));
        assert_eq!(
            (loaded.vote, loaded.committed),
            (Some(vote), Some(at(2, 50)))
        );
        assert_eq!(loaded.purged, Some(at(2, 9)));
        assert!(!log.join("db").exists() && !log.join("blobs").exists());
    }
    let opened = open(dir.path(), &identity, |reason| panic!("{reason}")).unwrap();
    write(&opened, vec![append(at(2, 100))]).unwrap();
}
