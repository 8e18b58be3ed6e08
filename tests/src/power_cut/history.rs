//! What a store was asked to keep and what it acknowledged, in the order of a
//! trace. Knows nothing of files: it says which states may be found after a cut.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use leasehold_coordinator::store::{Loaded, LogPos, StoredVote, Watermark, Write};
use serde::{Deserialize, Serialize};

use super::{Outcome, disk::Tree};

/// A position: term, then index.
pub(super) type At = (u64, u64);

/// One write, as a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Deed {
    Append(At),
    TruncateAfter(Option<At>),
    PurgeTo(At),
    /// Term, node, committed.
    Vote(u64, u64, bool),
    Committed(Option<At>),
}

/// What a store holds, without the entries' bytes: they follow from the position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// Index and term.
    pub(super) entries: BTreeMap<u64, u64>,
    pub(super) purged: Option<At>,
    pub(super) vote: Option<(u64, u64, bool)>,
    pub(super) committed: Option<At>,
}

/// What a process that writes says, a line each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Note {
    /// The store is open: all that it holds counts as durable from now on.
    Opened(State),
    /// The identity says that this disk took part in a cluster.
    Joined { disk_id: u128 },
    /// These writes are about to be queued.
    Wanted(Vec<Deed>),
    /// The oldest wanted writes that were not acknowledged before now are durable.
    Done,
    /// A snapshot of everything up to a position is about to be written.
    SnapshotWanted(At),
    /// It is durable, under its name.
    SnapshotDone(At),
}

/// Where notes go: one line is one system call, so that its place in the trace is
/// the moment at which it was said.
#[derive(Clone, Debug)]
pub(super) struct Notes(Arc<Mutex<File>>);

impl Notes {
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    pub(super) fn say(&self, note: &Note) -> Outcome<()> {
        let line = format!("{}\n", serde_json::to_string(note)?);
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(file.write_all(line.as_bytes())?)
    }
}

pub(super) fn pos((term, index): At) -> LogPos {
    LogPos { term, index }
}

pub(super) fn at(pos: LogPos) -> At {
    (pos.term, pos.index)
}

impl Deed {
    /// The write itself.
    pub(super) fn write(self) -> Write {
        match self {
            Self::Append(at) => Write::Append {
                at: pos(at),
                bytes: content(at),
            },
            Self::TruncateAfter(last) => Write::TruncateAfter(last.map(pos)),
            Self::PurgeTo(upto) => Write::PurgeTo(pos(upto)),
            Self::Vote(term, node_id, committed) => Write::Vote(StoredVote {
                term,
                committed,
                node_id,
            }),
            Self::Committed(upto) => Write::Committed(upto.map(pos)),
        }
    }
}

impl State {
    /// What a store says that it holds.
    pub(super) fn of(loaded: &Loaded) -> Self {
        Self {
            entries: loaded
                .entries
                .iter()
                .map(|(at, _)| (at.index, at.term))
                .collect(),
            purged: loaded.purged.map(at),
            vote: loaded
                .vote
                .map(|vote| (vote.term, vote.node_id, vote.committed)),
            committed: loaded.committed.map(at),
        }
    }

    pub(super) fn apply(&mut self, deed: Deed) {
        match deed {
            Deed::Append((term, index)) => {
                self.entries.insert(index, term);
            }
            Deed::TruncateAfter(last) => {
                let from = last.map_or(0, |(_, index)| index + 1);
                self.entries.split_off(&from);
            }
            Deed::PurgeTo(upto) => {
                self.entries = self.entries.split_off(&(upto.1 + 1));
                self.purged = Some(upto);
            }
            Deed::Vote(term, node_id, committed) => self.vote = Some((term, node_id, committed)),
            Deed::Committed(upto) => self.committed = upto,
        }
    }

    /// The last position: of the last entry, or where the log was purged to.
    pub(super) fn last(&self) -> Option<At> {
        let entry = self.entries.last_key_value();
        entry.map(|(index, term)| (*term, *index)).or(self.purged)
    }
}

/// What is known of a store at a moment of the trace.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// What was there for certain when the last process opened it, with everything
    /// that was acknowledged since.
    pub(super) kept: State,
    /// What was asked for in addition, in order: any part of it from the beginning
    /// may be there.
    pub(super) wanted: Vec<Vec<Deed>>,
    /// The disk, once it took part.
    pub(super) joined: Option<u128>,
    /// The newest durable snapshot.
    pub(super) snapshot: Option<At>,
    /// Newer ones that were begun, and may be there.
    pub(super) snapshots_wanted: Vec<At>,
}

impl History {
    /// Follows a note.
    pub(super) fn note(&mut self, note: Note) -> Outcome<()> {
        match note {
            Note::Opened(found) => {
                self.may_find(&found)?;
                self.kept = found;
                self.wanted.clear();
            }
            Note::Joined { disk_id } => {
                if self.joined.is_some_and(|before| before != disk_id) {
                    return Err("the disk is another one".into());
                }
                self.joined = Some(disk_id);
            }
            Note::Wanted(deeds) => self.wanted.push(deeds),
            Note::Done => {
                if self.wanted.is_empty() {
                    return Err("what was not wanted was acknowledged".into());
                }
                for deed in self.wanted.remove(0) {
                    self.kept.apply(deed);
                }
            }
            Note::SnapshotWanted(at) => self.snapshots_wanted.push(at),
            Note::SnapshotDone(at) => {
                self.snapshot = Some(at);
                self.snapshots_wanted.retain(|wanted| wanted.1 > at.1);
            }
        }
        Ok(())
    }

    /// A store may hold this now: everything that was acknowledged, and what was
    /// asked for since up to some write.
    pub(super) fn may_find(&self, found: &State) -> Outcome<()> {
        let mut may_be = self.kept.clone();
        if may_be == *found {
            return Ok(());
        }
        for deed in self.wanted.iter().flatten() {
            may_be.apply(*deed);
            if may_be == *found {
                return Ok(());
            }
        }
        Err(self.difference(found).into())
    }

    /// Whether the watermark in a folder says everything that was acknowledged.
    pub(super) fn is_covered(&self, tree: &Tree, place: &Path) -> Outcome<bool> {
        let Some(Some(bytes)) = tree.0.get(&place.join("watermark")) else {
            return Ok(false);
        };
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("watermark"), bytes)?;
        let Ok(Some(watermark)) = Watermark::open(dir.path()) else {
            return Ok(false);
        };
        let mark = watermark.mark();
        let vote = mark
            .vote
            .map(|vote| (vote.term, vote.node_id, vote.committed));
        let index = |at: Option<At>| at.map(|(_, index)| index);
        Ok(index(mark.last.map(at)) >= index(self.kept.last()) && vote >= self.kept.vote)
    }

    /// What is wrong, in words.
    fn difference(&self, found: &State) -> String {
        let kept = &self.kept;
        let lost = kept
            .entries
            .iter()
            .find(|(index, term)| found.entries.get(index) != Some(term));
        let dropped = self
            .wanted
            .iter()
            .flatten()
            .any(|deed| matches!(deed, Deed::TruncateAfter(_) | Deed::PurgeTo(_)));
        let what = match lost {
            Some((index, term)) if !dropped => {
                format!("acknowledged entry {index} of term {term} is lost")
            }
            _ if found.vote < kept.vote => format!("acknowledged vote {:?} is lost", kept.vote),
            _ => "it holds what it never held".to_owned(),
        };
        format!(
            "{what}: found up to {:?}, purged {:?}, vote {:?}, committed {:?}; acknowledged up to {:?}, \
             purged {:?}, vote {:?}, committed {:?}; {} more writes were wanted",
            found.last(),
            found.purged,
            found.vote,
            found.committed,
            kept.last(),
            kept.purged,
            kept.vote,
            kept.committed,
            self.wanted.iter().flatten().count(),
        )
    }
}

/// The bytes of an entry. Most are short, some are longer than one value of the
/// engine, and some than the sector of a disk.
pub(super) fn content(at: At) -> Bytes {
    let seed = mix(at.0.wrapping_mul(0x1_0000_0001) ^ at.1);
    let length = match seed % 60 {
        0 => 70_000 + seed / 60 % 100_000,
        1..8 => 2_000 + seed / 60 % 6_000,
        _ => 20 + seed / 60 % 400,
    };
    bytes(seed, length)
}

/// The chunks of a snapshot.
pub(super) fn chunks(at: At) -> impl Iterator<Item = Bytes> {
    let seed = mix(at.0.wrapping_mul(0x2_0000_0001) ^ at.1);
    let count = match seed % 8 {
        0 => 60,
        small => small,
    };
    (0..count).map(move |chunk| bytes(mix(seed ^ chunk), 1_000 + mix(seed ^ chunk) % 40_000))
}

fn bytes(seed: u64, length: u64) -> Bytes {
    let words = (0..length.div_ceil(8)).flat_map(|word| mix(seed ^ word << 32).to_le_bytes());
    words
        .take(usize::try_from(length).unwrap_or(0))
        .collect::<Vec<u8>>()
        .into()
}

/// splitmix64's last step: every bit of the result depends on every bit given.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
