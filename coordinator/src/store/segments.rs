//! The engine: records appended to files, which are never written to again
//! elsewhere. Knows nothing of who writes and when.
//!
//! - `log/N.log` are *segments*, numbered without a gap. Only the last one grows;
//!   it gets a successor when it is long enough, and the oldest go once everything
//!   in them is purged.
//! - A record has a checksum over its content and its place, and says up to where
//!   its segment was durable when it was written.
//! - A power cut may leave any part of what was written after the last barrier. What
//!   comes after the first broken record of the last segment is dropped; but a
//!   broken record that a later one says was durable is damage, and so is one in any
//!   other segment: those were durable before their successor was begun.
//! - A segment begins with the marks as they were, so that none needs an older one
//!   for its vote.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{ErrorKind, Write as _},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use rustix::fs::{FlockOperation, flock};

use super::{
    Engine, Loaded, LogPos, StoreError, Write, durable,
    engine::ENTRY_BYTES_MAX,
    segment::{Contents, Marks, Record, SegmentName, read, seal},
};

/// A segment gets a successor once it is as long as this.
const SEGMENT_BYTES: u64 = 8 << 20;
/// Staged records are handed to the operating system at the latest when they are
/// as long as this.
const BUFFER_BYTES: usize = 1 << 20;
const LOCK: &str = "lock";
const LOCK_PATIENCE: Duration = Duration::from_secs(3);

/// The engine.
pub struct SegmentEngine {
    dir: PathBuf,
    /// Held as long as the engine lives.
    _lock: File,
    /// From the oldest on, without the last one: number, and the newest entry in it.
    older: VecDeque<(u64, Option<u64>)>,
    /// The last one; none: there is none yet.
    last: Option<Last>,
    /// Files that a cut or a deletion left behind.
    left_over: Vec<PathBuf>,
    marks: Marks,
}

/// The segment that grows.
struct Last {
    number: u64,
    file: File,
    /// The newest entry in it.
    newest: Option<u64>,
    /// Records that were not handed over yet, and where they begin.
    staged: Vec<u8>,
    end: u64,
    /// Up to where it is durable.
    durable: u64,
    /// What a cut left behind the end has to go before anything is written there.
    has_tail: bool,
}

impl SegmentEngine {
    /// Opens or creates the engine's folder, and reads everything.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it isn't what was written; nothing is changed then.
    pub fn open(dir: &Path) -> Result<(Self, Loaded), StoreError> {
        durable::create_dir(dir)?;
        let lock = lock(dir)?;
        let mut engine = Self {
            dir: dir.to_path_buf(),
            _lock: lock,
            older: VecDeque::new(),
            last: None,
            left_over: Vec::new(),
            marks: Marks::default(),
        };
        let loaded = engine.load()?;
        Ok((engine, loaded))
    }

    /// Whether a folder holds a log of this engine.
    pub(super) fn is_in(dir: &Path) -> Result<bool, StoreError> {
        Ok(!segments_in(dir)?.0.is_empty())
    }

    /// Creates a log with what another engine held, in a folder without one.
    pub(super) fn import(dir: &Path, loaded: &Loaded) -> Result<(), StoreError> {
        let mut bytes = SegmentName(1).header();
        let base = Marks {
            // The entries follow.
            last: loaded.purged,
            purged: loaded.purged,
            vote: loaded.vote,
            committed: loaded.committed,
        };
        seal(&mut bytes, 0, SegmentName(1), 0, &Record::Base(base));
        for (at, content) in &loaded.entries {
            let record = Record::Append {
                at: *at,
                bytes: content.clone(),
            };
            seal(&mut bytes, 0, SegmentName(1), 0, &record);
        }
        durable::replace(dir, &SegmentName(1).to_string(), &bytes)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(SegmentName(number).to_string())
    }

    /// Begins a segment. Everything in the one before is durable.
    fn begin(&mut self) -> Result<(), StoreError> {
        let number = self.last.as_ref().map_or(1, |last| last.number + 1);
        let path = self.path(number);
        let mut bytes = SegmentName(number).header();
        seal(
            &mut bytes,
            0,
            SegmentName(number),
            0,
            &Record::Base(self.marks),
        );
        let create = || {
            let mut file = File::options()
                .create(true)
                .truncate(true)
                .read(true)
                .write(true)
                .open(&path)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            Ok(file)
        };
        let file = create().map_err(|error| StoreError::io(&path, &error))?;
        durable::sync_dir(&self.dir)?;
        let end = bytes.len() as u64;
        let begun = Last {
            number,
            file,
            newest: None,
            staged: Vec::new(),
            end,
            durable: end,
            has_tail: false,
        };
        if let Some(before) = self.last.replace(begun) {
            self.older.push_back((before.number, before.newest));
        }
        Ok(())
    }

    /// Makes the folder ready for the first write.
    fn clear(&mut self) -> Result<(), StoreError> {
        for path in self.left_over.drain(..) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(StoreError::io(path, &error));
                }
                _ => {}
            }
        }
        let Some(last) = &mut self.last else {
            return Ok(());
        };
        if last.has_tail {
            let end = last.end;
            let cut = last.file.set_len(end).and_then(|()| last.file.sync_all());
            last.has_tail = false;
            let number = last.number;
            cut.map_err(|error| StoreError::io(self.path(number), &error))?;
        }
        Ok(())
    }

    fn stage(&mut self, record: &Record) -> Result<(), StoreError> {
        self.marks.apply(record);
        let path = self.dir.clone();
        let Some(last) = &mut self.last else {
            return Err(StoreError::Closed);
        };
        let name = SegmentName(last.number);
        if let Record::Append { at, .. } = record {
            last.newest = last.newest.max(Some(at.index));
        }
        seal(&mut last.staged, last.end, name, last.durable, record);
        if last.staged.len() >= BUFFER_BYTES {
            last.hand_over()
                .map_err(|error| StoreError::io(path.join(name.to_string()), &error))?;
        }
        Ok(())
    }
}

impl Last {
    fn hand_over(&mut self) -> std::io::Result<()> {
        self.file.write_all_at(&self.staged, self.end)?;
        self.end += self.staged.len() as u64;
        self.staged.clear();
        Ok(())
    }
}

impl Engine for SegmentEngine {
    fn load(&mut self) -> Result<Loaded, StoreError> {
        let (mut numbers, mut left_over) = segments_in(&self.dir)?;
        let mut replay = Replay::default();
        let mut last = None;
        // A segment whose beginning is not there was being created when it ended.
        while let Some(number) = numbers.last().copied() {
            let path = self.path(number);
            let file = open_durable(&path)?;
            let contents = read(&path, SegmentName(number))?;
            if contents.records.is_empty() {
                left_over.push(path);
                numbers.pop();
                continue;
            }
            last = Some((number, file, contents));
            break;
        }
        // Older ones that do not lead up to it were purged, and came back with a cut.
        let run = numbers
            .iter()
            .rev()
            .zip(1..)
            .take_while(|(number, back)| numbers.last() == Some(&(**number + back - 1)))
            .count();
        let gone = numbers.len() - run;
        left_over.extend(numbers.drain(..gone).map(|number| self.path(number)));
        let mut older = VecDeque::new();
        numbers.pop();
        for number in numbers {
            let path = self.path(number);
            open_durable(&path)?;
            let contents = read(&path, SegmentName(number))?;
            if contents.end != contents.length || contents.records.is_empty() {
                return Err(contents.damaged(&path));
            }
            older.push_back((number, contents.newest()));
            replay.follow(contents, &path)?;
        }
        self.last = match last {
            None => None,
            Some((number, file, contents)) => {
                let path = self.path(number);
                let last = Last {
                    number,
                    file,
                    newest: contents.newest(),
                    staged: Vec::new(),
                    end: contents.end,
                    durable: contents.end,
                    has_tail: contents.end != contents.length,
                };
                replay.follow(contents, &path)?;
                Some(last)
            }
        };
        durable::sync_dir(&self.dir)?;
        self.older = older;
        self.left_over = left_over;
        self.marks = replay.marks;
        Ok(replay.loaded())
    }

    fn write(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.clear()?;
        let is_full = |last: &Last| {
            last.end >= SEGMENT_BYTES && last.staged.is_empty() && last.durable == last.end
        };
        if self.last.as_ref().is_none_or(is_full) {
            self.begin()?;
        }
        for write in writes {
            let record = match write {
                Write::Append { at, bytes } => {
                    if bytes.len() > ENTRY_BYTES_MAX {
                        let (index, length) = (at.index, bytes.len());
                        let detail = format!("entry {index} of {length} bytes cannot be stored");
                        return Err(StoreError::Latched(detail));
                    }
                    Record::Append {
                        at: *at,
                        bytes: bytes.clone(),
                    }
                }
                Write::TruncateAfter(last) => Record::TruncateAfter(*last),
                Write::PurgeTo(at) => Record::PurgeTo(*at),
                Write::Vote(vote) => Record::Vote(*vote),
                Write::Committed(at) => Record::Committed(*at),
            };
            self.stage(&record)?;
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), StoreError> {
        let Some(last) = &mut self.last else {
            return Ok(());
        };
        if last.staged.is_empty() && last.durable == last.end {
            return Ok(());
        }
        let number = last.number;
        let synced = last.hand_over().and_then(|()| last.file.sync_data());
        last.durable = last.end;
        synced.map_err(|error| StoreError::io(self.path(number), &error))
    }

    fn tidy(&mut self) -> Result<bool, StoreError> {
        let purged = self.marks.purged.map(|purged| purged.index);
        let Some((number, newest)) = self.older.front().copied() else {
            return Ok(false);
        };
        if newest > purged {
            return Ok(false);
        }
        let path = self.path(number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(StoreError::io(path, &error));
            }
            _ => {}
        }
        self.older.pop_front();
        Ok(true)
    }
}

/// What the records add up to.
#[derive(Default)]
struct Replay {
    entries: Vec<(LogPos, Bytes)>,
    marks: Marks,
    begun: bool,
}

impl Replay {
    fn follow(&mut self, contents: Contents, path: &Path) -> Result<(), StoreError> {
        for record in contents.records {
            match &record {
                Record::Base(marks) => {
                    let same = !self.begun
                        || (marks.last, marks.purged, marks.vote)
                            == (self.marks.last, self.marks.purged, self.marks.vote);
                    if !same {
                        let detail = "it does not begin where the one before it ends";
                        return Err(StoreError::damaged(path, detail));
                    }
                    self.begun = true;
                }
                Record::Append { at, bytes } => {
                    let before = self.marks.last;
                    if before.is_some_and(|before| before.index.checked_add(1) != Some(at.index)) {
                        let before = before.map_or(0, |before| before.index);
                        let detail = format!("entry {} follows entry {before}", at.index);
                        return Err(StoreError::damaged(path, detail));
                    }
                    self.entries.push((*at, bytes.clone()));
                }
                Record::TruncateAfter(last) => {
                    let last = last.map(|last| last.index);
                    while self
                        .entries
                        .pop_if(|(at, _)| Some(at.index) > last)
                        .is_some()
                    {}
                }
                Record::PurgeTo(upto) => {
                    if self.marks.last.is_none_or(|last| last.index <= upto.index) {
                        self.entries.clear();
                    }
                }
                Record::Vote(_) | Record::Committed(_) => {}
            }
            self.marks.apply(&record);
        }
        Ok(())
    }

    fn loaded(mut self) -> Loaded {
        if let Some(purged) = self.marks.purged {
            self.entries.retain(|(at, _)| at.index > purged.index);
        }
        Loaded {
            entries: self.entries,
            vote: self.marks.vote,
            committed: self.marks.committed,
            purged: self.marks.purged,
        }
    }
}

/// The numbers of the segments in a folder, in order, and unfinished files.
fn segments_in(dir: &Path) -> Result<(Vec<u64>, Vec<PathBuf>), StoreError> {
    let read = fs::read_dir(dir).map_err(|error| StoreError::io(dir, &error))?;
    let (mut numbers, mut unfinished) = (Vec::new(), Vec::new());
    for item in read {
        let path = item.map_err(|error| StoreError::io(dir, &error))?.path();
        if let Some(SegmentName(number)) = SegmentName::of(&path) {
            numbers.push(number);
        } else if path.extension().is_some_and(|extension| extension == "new") {
            unfinished.push(path);
        }
    }
    numbers.sort_unstable();
    Ok((numbers, unfinished))
}

/// Opens a segment, and makes durable what a process left in the page cache that
/// was killed before its barrier: from now on it counts as written.
fn open_durable(path: &Path) -> Result<File, StoreError> {
    let open = || {
        let file = File::options().read(true).write(true).open(path)?;
        file.sync_all()?;
        Ok(file)
    };
    open().map_err(|error| StoreError::io(path, &error))
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(LOCK);
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = open.map_err(|error| StoreError::io(&path, &error))?;
    let give_up = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                return Err(StoreError::io(path, &error.into()));
            }
            Err(_) if Instant::now() >= give_up => {
                return Err(StoreError::Locked {
                    path: dir.to_path_buf(),
                });
            }
            // A process that was killed may take a moment to be gone.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}
