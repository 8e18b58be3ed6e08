//! One life of a process that writes to a store, under seeded random demands like
//! those of a replica: entries in groups small and large, votes, conflicts that
//! cut the log, snapshots built and received, purges. Knows nothing of cuts: it
//! says what it asks for and what was acknowledged, and ends cleanly or with
//! SIGKILL in the midst of it.

use std::{
    io::Read as _,
    path::Path,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

use leasehold_coordinator::store::{self, Identity, Opened, SnapshotFolder};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    NODE_ID, Outcome,
    history::{At, Deed, Note, Notes, State, at, chunks, pos},
};

/// Requests that may be under way, unless they come in a burst.
const UNDER_WAY: u64 = 8;

/// Lives once.
///
/// # Errors
/// When the store fails.
pub fn live(dir: &Path, notes: &Path, seed: u64, demands: u32) -> Outcome<()> {
    let mut rng = StdRng::seed_from_u64(seed);
    let notes = Notes::open(notes)?;
    let mut identity = Identity::load_or_create(dir, NODE_ID)?;
    let opened = store::open(dir, &identity, |reason| {
        eprintln!("the store failed: {reason}");
        std::process::abort();
    })?;
    let state = State::of(&opened.loaded);
    notes.say(&Note::Opened(state.clone()))?;
    identity.take_part(dir)?;
    notes.say(&Note::Joined {
        disk_id: identity.disk_id,
    })?;
    let term = state
        .last()
        .map_or(0, |(term, _)| term)
        .max(state.vote.map_or(0, |(term, ..)| term));
    let snapshot = opened.snapshots.newest().map(|(found, _)| at(*found));
    let mut life = Life {
        opened,
        notes,
        // As in a replica: nothing is appended before a vote.
        term: term + 1,
        state,
        snapshot,
        progress: Arc::default(),
        asked: 0,
    };
    life.ask(vec![Deed::Vote(life.term, NODE_ID, true)], UNDER_WAY)?;
    for _ in 0..demands {
        life.demand(&mut rng)?;
    }
    if rng.random() {
        // With writes under way.
        let process = rustix::process::getpid();
        rustix::process::kill_process(process, rustix::process::Signal::KILL)?;
    }
    life.wait(0);
    drop(life.opened);
    Ok(())
}

struct Life {
    opened: Opened,
    notes: Notes,
    term: u64,
    /// What the store holds once everything asked for is written.
    state: State,
    snapshot: Option<At>,
    progress: Arc<(Mutex<u64>, Condvar)>,
    asked: u64,
}

impl Life {
    fn demand(&mut self, rng: &mut StdRng) -> Outcome<()> {
        match rng.random_range(0..1_000) {
            0..760 => self.append(rng, 5, UNDER_WAY),
            760..800 => {
                let requests = rng.random_range(20..400);
                for _ in 0..requests {
                    self.append(rng, 4, u64::MAX)?;
                }
                Ok(())
            }
            800..870 => {
                self.term += 1;
                let committed = rng.random();
                let node = rng.random_range(1..4);
                self.ask(vec![Deed::Vote(self.term, node, committed)], UNDER_WAY)?;
                // Nobody is told before it is durable.
                self.wait(0);
                Ok(())
            }
            870..910 => self.conflict(rng),
            910..980 => self.build(rng),
            _ => self.receive(rng),
        }
    }

    fn next(&self) -> u64 {
        self.state.last().map_or(0, |(_, index)| index + 1)
    }

    fn append(&mut self, rng: &mut StdRng, max: u64, under_way: u64) -> Outcome<()> {
        let first = self.next();
        let count = rng.random_range(1..=max);
        let mut deeds: Vec<Deed> = (first..first + count)
            .map(|index| Deed::Append((self.term, index)))
            .collect();
        if rng.random_range(0..4) == 0 {
            deeds.push(Deed::Committed(self.state.last()));
        }
        self.ask(deeds, under_way)
    }

    /// A new leader's entries replace the last ones.
    fn conflict(&mut self, rng: &mut StdRng) -> Outcome<()> {
        let first = self.state.entries.first_key_value();
        let first = first.map_or(0, |(index, _)| *index);
        let end = self.next();
        if end <= first + 1 {
            return Ok(());
        }
        let keep = rng.random_range(first.max(end.saturating_sub(40))..end);
        let keep = self.state.entries.get(&keep).map(|term| (*term, keep));
        self.term += 1;
        self.ask(vec![Deed::Vote(self.term, 2, false)], UNDER_WAY)?;
        self.ask(vec![Deed::TruncateAfter(keep)], UNDER_WAY)?;
        if rng.random() {
            self.append(rng, 30, UNDER_WAY)?;
        }
        Ok(())
    }

    /// A snapshot of everything so far, and a purge once it is durable.
    fn build(&mut self, rng: &mut StdRng) -> Outcome<()> {
        // Only what is durable is applied.
        self.wait(0);
        let Some(upto) = self.state.last() else {
            return Ok(());
        };
        if self.snapshot.is_some_and(|newest| newest.1 >= upto.1) {
            return Ok(());
        }
        self.notes.say(&Note::SnapshotWanted(upto))?;
        let description = serde_json::to_vec(&upto)?;
        let mut writer = self.opened.snapshots.create(&description)?;
        for (number, chunk) in chunks(upto).enumerate() {
            writer.frame(&chunk)?;
            if number % 3 == 0 {
                self.append(rng, 3, UNDER_WAY)?;
            }
        }
        let file = writer.finish()?;
        self.opened.snapshots.adopt(pos(upto), &file)?;
        self.snapshot = Some(upto);
        self.notes.say(&Note::SnapshotDone(upto))?;
        let keep = rng.random_range(0..60);
        let purge = upto.1.saturating_sub(keep);
        match self.state.entries.get(&purge) {
            Some(term) => self.ask(vec![Deed::PurgeTo((*term, purge))], UNDER_WAY),
            None => Ok(()),
        }
    }

    /// A leader's snapshot that is ahead of the log, which it then replaces.
    fn receive(&mut self, rng: &mut StdRng) -> Outcome<()> {
        self.wait(0);
        let upto = (self.term, self.next() + rng.random_range(0..50));
        let leader = tempfile::tempdir()?;
        let sent = SnapshotFolder::open(leader.path())?;
        let mut writer = sent.create(&serde_json::to_vec(&upto)?)?;
        for chunk in chunks(upto) {
            writer.frame(&chunk)?;
        }
        let sent = writer.finish()?;
        let mut bytes = Vec::new();
        sent.bytes()?.read_to_end(&mut bytes)?;

        self.notes.say(&Note::SnapshotWanted(upto))?;
        let mut writer = self.opened.snapshots.receive()?;
        for piece in bytes.chunks(100_000) {
            writer.append(piece)?;
        }
        let file = writer.close()?;
        file.verify()?;
        self.opened.snapshots.adopt(pos(upto), &file)?;
        self.snapshot = Some(upto);
        self.notes.say(&Note::SnapshotDone(upto))?;
        self.ask(vec![Deed::PurgeTo(upto)], UNDER_WAY)
    }

    /// Queues writes, with at most so many others under way.
    fn ask(&mut self, deeds: Vec<Deed>, under_way: u64) -> Outcome<()> {
        self.wait(under_way.saturating_sub(1));
        for deed in &deeds {
            self.state.apply(*deed);
        }
        let writes = deeds.iter().map(|deed| deed.write()).collect();
        self.notes.say(&Note::Wanted(deeds))?;
        self.asked += 1;
        let (notes, progress) = (self.notes.clone(), Arc::clone(&self.progress));
        self.opened.wal.submit(
            writes,
            Box::new(move |result| {
                if result.is_err() || notes.say(&Note::Done).is_err() {
                    std::process::abort();
                }
                let mut done = progress.0.lock().unwrap_or_else(PoisonError::into_inner);
                *done += 1;
                progress.1.notify_all();
            }),
        );
        Ok(())
    }

    /// Returns when at most so many requests are under way.
    fn wait(&self, under_way: u64) {
        let mut done = self
            .progress
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while self.asked - *done > under_way {
            done = self
                .progress
                .1
                .wait(done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
