use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use super::{super::*, append, content, write};

/// An engine whose barriers wait for permission, and fail from a given one on.
struct Scripted {
    written: Arc<Mutex<Vec<u64>>>,
    barriers: Arc<AtomicUsize>,
    permits: Arc<(Mutex<usize>, Condvar)>,
    fail_from: usize,
}

impl Engine for Scripted {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        Ok(Loaded::default())
    }

    fn write(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        for write in writes {
            if let Write::Append { at, .. } = write {
                self.written.lock().unwrap().push(at.index);
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), StoreError> {
        let mut permits = self.permits.0.lock().unwrap();
        while *permits == 0 {
            permits = self.permits.1.wait(permits).unwrap();
        }
        *permits -= 1;
        let number = self.barriers.fetch_add(1, Ordering::SeqCst);
        if number >= self.fail_from {
            return Err(StoreError::io(
                "db",
                &std::io::Error::other("the disk is gone"),
            ));
        }
        Ok(())
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

struct Fixture {
    _dir: tempfile::TempDir,
    wal: Wal,
    written: Arc<Mutex<Vec<u64>>>,
    barriers: Arc<AtomicUsize>,
    permits: Arc<(Mutex<usize>, Condvar)>,
    failures: mpsc::Receiver<String>,
}

impl Fixture {
    fn new(fail_from: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::load_or_create(dir.path(), 1).unwrap();
        let watermark = Watermark::create(dir.path(), Mark::new(&identity)).unwrap();
        let (written, barriers, permits) = (Arc::default(), Arc::default(), Arc::default());
        let engine = Scripted {
            written: Arc::clone(&written),
            barriers: Arc::clone(&barriers),
            permits: Arc::clone(&permits),
            fail_from,
        };
        let (failed, failures) = mpsc::channel();
        let wal = Wal::start(Box::new(engine), watermark, move |reason| {
            failed.send(reason).unwrap()
        })
        .unwrap();
        Self {
            _dir: dir,
            wal,
            written,
            barriers,
            permits,
            failures,
        }
    }

    fn permit(&self, barriers: usize) {
        *self.permits.0.lock().unwrap() += barriers;
        self.permits.1.notify_all();
    }
}

#[test]
fn everything_that_waits_shares_one_barrier_and_hears_of_it_in_order() {
    let fixture = Fixture::new(usize::MAX);
    let (done, wait) = mpsc::channel();
    for index in 0..100 {
        let done = done.clone();
        let callback =
            move |result: Result<(), StoreError>| done.send((index, result.is_ok())).unwrap();
        fixture
            .wal
            .submit(vec![append(LogPos { term: 1, index })], Box::new(callback));
    }
    // The first barrier may have taken a part only; everything else queued up behind it.
    fixture.permit(3);
    let heard: Vec<(u64, bool)> = wait.iter().take(100).collect();
    assert_eq!(
        heard,
        (0..100).map(|index| (index, true)).collect::<Vec<_>>()
    );
    assert_eq!(
        *fixture.written.lock().unwrap(),
        (0..100).collect::<Vec<_>>()
    );
    assert!(fixture.barriers.load(Ordering::SeqCst) <= 2);
}

#[test]
fn after_a_failed_fsync_nothing_is_written_or_acknowledged_any_more() {
    let fixture = Fixture::new(1);
    fixture.permit(10);
    let submit = |index| {
        let (done, wait) = mpsc::channel();
        let callback = move |result| done.send(result).unwrap();
        fixture
            .wal
            .submit(vec![append(LogPos { term: 1, index })], Box::new(callback));
        wait.recv().unwrap()
    };
    submit(0).unwrap();
    submit(1).unwrap_err();
    assert!(
        fixture
            .failures
            .recv()
            .unwrap()
            .contains("the disk is gone")
    );
    let refused = submit(2).unwrap_err();
    assert_eq!(refused.code(), "store_failed");
    assert_eq!(*fixture.written.lock().unwrap(), [0, 1]);
    assert_eq!(fixture.barriers.load(Ordering::SeqCst), 2);
    assert!(fixture.failures.try_recv().is_err(), "said once");
}

#[test]
fn a_vote_is_in_the_watermark_when_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    let opened = open(dir.path(), &identity, |_| {}).unwrap();
    let vote = StoredVote {
        term: 3,
        committed: false,
        node_id: 1,
    };
    write(&opened, vec![Write::Vote(vote)]).unwrap();
    let mark = *Watermark::open(dir.path()).unwrap().unwrap().mark();
    assert_eq!(mark.vote, Some(vote));
}

#[test]
fn a_torn_watermark_leaves_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    let mark = |index| Mark {
        last: Some(LogPos { term: 1, index }),
        ..Mark::new(&identity)
    };
    let mut watermark = Watermark::create(dir.path(), mark(1)).unwrap();
    for index in 2..6 {
        watermark.write(mark(index)).unwrap();
        assert_eq!(
            *Watermark::open(dir.path()).unwrap().unwrap().mark(),
            mark(index)
        );
        // Tear what was just written: slots alternate, and number 1 went to the first.
        let path = dir.path().join("watermark");
        let whole = std::fs::read(&path).unwrap();
        let mut torn = whole.clone();
        let slot = if index % 2 == 0 { 4096 } else { 0 };
        torn[slot + 20..slot + 60].fill(0xee);
        std::fs::write(&path, torn).unwrap();
        assert_eq!(
            *Watermark::open(dir.path()).unwrap().unwrap().mark(),
            mark(index - 1)
        );
        std::fs::write(&path, whole).unwrap();
    }
}

#[test]
fn what_was_cut_off_and_purged_is_gone_after_a_restart_and_long_entries_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    let opened = open(dir.path(), &identity, |_| {}).unwrap();
    let at = |term, index| LogPos { term, index };
    write(
        &opened,
        (0..400).map(|index| append(at(1, index))).collect(),
    )
    .unwrap();
    write(&opened, vec![Write::TruncateAfter(Some(at(1, 349)))]).unwrap();
    write(
        &opened,
        vec![append(at(2, 350)), Write::Committed(Some(at(1, 340)))],
    )
    .unwrap();
    write(&opened, vec![Write::PurgeTo(at(1, 299))]).unwrap();
    drop(opened);

    let opened = open(dir.path(), &identity, |_| {}).unwrap();
    let loaded = &opened.loaded;
    assert_eq!(loaded.purged, Some(at(1, 299)));
    assert_eq!(loaded.committed, Some(at(1, 340)));
    let expected: Vec<LogPos> = (300..350)
        .map(|index| at(1, index))
        .chain([at(2, 350)])
        .collect();
    assert_eq!(
        loaded.entries.iter().map(|(at, _)| *at).collect::<Vec<_>>(),
        expected
    );
    assert!(
        loaded
            .entries
            .iter()
            .all(|(at, bytes)| *bytes == content(*at))
    );
    // A log that is cut to nothing and one purged beyond its end.
    write(&opened, vec![Write::TruncateAfter(Some(at(1, 299)))]).unwrap();
    write(&opened, vec![Write::PurgeTo(at(5, 1_000))]).unwrap();
    drop(opened);
    let opened = open(dir.path(), &identity, |_| {}).unwrap();
    assert_eq!(opened.loaded.last(), Some(at(5, 1_000)));
    assert!(opened.loaded.entries.is_empty());
}

#[test]
fn a_closed_store_says_so_and_its_folder_can_be_opened_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::load_or_create(dir.path(), 1).unwrap();
    for round in 0..10 {
        let opened = open(dir.path(), &identity, |_| {}).unwrap();
        let other = thread::scope(|scope| {
            let opened = &opened;
            let writer = scope.spawn(move || {
                write(
                    opened,
                    vec![append(LogPos {
                        term: 1,
                        index: round,
                    })],
                )
            });
            writer.join().unwrap()
        });
        other.unwrap();
        opened.wal.close();
        let (done, wait) = mpsc::channel();
        opened.wal.submit(
            Vec::new(),
            Box::new(move |result| done.send(result).unwrap()),
        );
        assert_eq!(wait.recv().unwrap().unwrap_err().code(), "store_closed");
    }
}
