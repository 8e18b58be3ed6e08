//! One segment as bytes: its header, the framing of its records, and how much of
//! it can be believed. Knows nothing of other segments, and writes no file.

use std::{fmt, fs, path::Path};

use bytes::Bytes;

use super::{LogPos, StoreError, StoredVote, engine::ENTRY_BYTES_MAX};

const MAGIC: [u8; 8] = *b"LHLOG\0\0\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
/// Begins every record, so that records can be found behind a broken one.
const MARK: [u8; 4] = [0x4c, 0xf1, 0x9e, 0xd3];
const FRAME_BYTES: usize = 24;
const SUFFIX: &str = ".log";

/// A segment's number, as its file is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentName(pub(super) u64);

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010}{SUFFIX}", self.0)
    }
}

impl SegmentName {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let number = Self(name.strip_suffix(SUFFIX)?.parse().ok()?);
        (number.to_string() == name).then_some(number)
    }

    /// What the file begins with.
    pub(super) fn header(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(self.0.to_le_bytes());
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }
}

/// What the log says at some place, beside its entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Marks {
    pub(super) last: Option<LogPos>,
    pub(super) purged: Option<LogPos>,
    pub(super) vote: Option<StoredVote>,
    pub(super) committed: Option<LogPos>,
}

impl Marks {
    /// Follows a record.
    pub(super) fn apply(&mut self, record: &Record) {
        match record {
            Record::Base(marks) => *self = *marks,
            Record::Append { at, .. } => self.last = Some(*at),
            Record::TruncateAfter(last) => self.last = *last,
            Record::PurgeTo(at) => {
                self.purged = Some(*at);
                if self.last.is_none_or(|last| last.index < at.index) {
                    self.last = Some(*at);
                }
            }
            Record::Vote(vote) => self.vote = Some(*vote),
            Record::Committed(at) => self.committed = *at,
        }
    }
}

/// A record.
#[derive(Clone, Debug)]
pub(super) enum Record {
    /// What was known when the segment was begun: its first record.
    Base(Marks),
    Append {
        at: LogPos,
        bytes: Bytes,
    },
    TruncateAfter(Option<LogPos>),
    PurgeTo(LogPos),
    Vote(StoredVote),
    Committed(Option<LogPos>),
}

impl Record {
    const fn kind(&self) -> u8 {
        match self {
            Self::Base(_) => 1,
            Self::Append { .. } => 2,
            Self::TruncateAfter(_) => 3,
            Self::PurgeTo(_) => 4,
            Self::Vote(_) => 5,
            Self::Committed(_) => 6,
        }
    }

    fn encode(&self, into: &mut Vec<u8>) {
        let mut put = |number: u64| into.extend(number.to_le_bytes());
        match self {
            Self::Base(marks) => {
                for at in [marks.last, marks.purged, marks.committed] {
                    put_position(&mut put, at);
                }
                put(u64::from(marks.vote.is_some()));
                put_vote(&mut put, marks.vote.unwrap_or(NO_VOTE));
            }
            Self::Append { at, bytes } => {
                put(at.term);
                put(at.index);
                into.extend(bytes);
            }
            Self::TruncateAfter(at) | Self::Committed(at) => put_position(&mut put, *at),
            Self::PurgeTo(at) => {
                put(at.term);
                put(at.index);
            }
            Self::Vote(vote) => put_vote(&mut put, *vote),
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Option<Self> {
        let mut numbers = Numbers(payload);
        let record = match kind {
            1 => {
                let last = numbers.position()?;
                let purged = numbers.position()?;
                let committed = numbers.position()?;
                let voted = numbers.next()? != 0;
                let vote = numbers.vote()?;
                Self::Base(Marks {
                    last,
                    purged,
                    committed,
                    vote: voted.then_some(vote),
                })
            }
            2 => {
                let at = LogPos {
                    term: numbers.next()?,
                    index: numbers.next()?,
                };
                // A copy: entries outlive the segment's buffer.
                let bytes = Bytes::copy_from_slice(numbers.0);
                return Some(Self::Append { at, bytes });
            }
            3 => Self::TruncateAfter(numbers.position()?),
            4 => Self::PurgeTo(LogPos {
                term: numbers.next()?,
                index: numbers.next()?,
            }),
            5 => Self::Vote(numbers.vote()?),
            6 => Self::Committed(numbers.position()?),
            _ => return None,
        };
        numbers.0.is_empty().then_some(record)
    }
}

const NO_VOTE: StoredVote = StoredVote {
    term: 0,
    committed: false,
    node_id: 0,
};

fn put_position(put: &mut impl FnMut(u64), at: Option<LogPos>) {
    put(u64::from(at.is_some()));
    put(at.map_or(0, |at| at.term));
    put(at.map_or(0, |at| at.index));
}

fn put_vote(put: &mut impl FnMut(u64), vote: StoredVote) {
    put(vote.term);
    put(vote.node_id);
    put(u64::from(vote.committed));
}

struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn position(&mut self) -> Option<Option<LogPos>> {
        let some = self.next()? != 0;
        let (term, index) = (self.next()?, self.next()?);
        Some(some.then_some(LogPos { term, index }))
    }

    fn vote(&mut self) -> Option<StoredVote> {
        let (term, node_id) = (self.next()?, self.next()?);
        Some(StoredVote {
            term,
            node_id,
            committed: self.next()? != 0,
        })
    }
}

/// Adds a record to `buffer`, which begins at byte `begin` of the segment; the
/// segment is durable up to `durable`.
pub(super) fn seal(
    buffer: &mut Vec<u8>,
    begin: u64,
    segment: SegmentName,
    durable: u64,
    record: &Record,
) {
    let start = buffer.len();
    buffer.extend(MARK);
    buffer.extend([0; FRAME_BYTES - MARK.len()]);
    record.encode(buffer);
    // Entries are far shorter than 4 GiB.
    let length = u32::try_from(buffer.len() - start - FRAME_BYTES).unwrap_or(u32::MAX);
    let frame = &mut buffer[start..start + FRAME_BYTES];
    frame[8..12].copy_from_slice(&length.to_le_bytes());
    frame[12] = record.kind();
    frame[16..24].copy_from_slice(&durable.to_le_bytes());
    let place = begin + start as u64;
    let sum = checksum(segment, place, &buffer[start + 8..]);
    buffer[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// The checksum covers the place too: a sound record elsewhere is damage.
fn checksum(segment: SegmentName, place: u64, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&segment.0.to_le_bytes());
    hasher.update(&place.to_le_bytes());
    hasher.update(rest);
    hasher.finalize()
}

/// What can be believed of a segment.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) records: Vec<Record>,
    /// Where the last sound record ends.
    pub(super) end: u64,
    /// How long the file is.
    pub(super) length: u64,
}

impl Contents {
    /// The newest entry.
    pub(super) fn newest(&self) -> Option<u64> {
        let entries = self.records.iter().filter_map(|record| match record {
            Record::Append { at, .. } => Some(at.index),
            _ => None,
        });
        entries.max()
    }

    /// The error that it ends too early.
    pub(super) fn damaged(&self, path: &Path) -> StoreError {
        StoreError::damaged(
            path,
            format!(
                "the record at byte {} is not what was written there",
                self.end
            ),
        )
    }
}

/// Reads a segment up to its first broken record.
///
/// # Errors
/// [`StoreError::Damaged`] when that record was durable once.
pub(super) fn read(path: &Path, segment: SegmentName) -> Result<Contents, StoreError> {
    let bytes = fs::read(path).map_err(|error| StoreError::io(path, &error))?;
    let mut contents = Contents {
        length: bytes.len() as u64,
        ..Contents::default()
    };
    let mut place = 0;
    match header(&bytes, segment) {
        Some(VERSION) => {
            place = HEADER_BYTES;
            while let Some((record, next, _)) = record_at(&bytes, place, segment) {
                let is_base = matches!(record, Record::Base(_));
                if is_base != contents.records.is_empty() {
                    break;
                }
                contents.records.push(record);
                place = next;
            }
        }
        Some(found) => {
            return Err(StoreError::UnknownFormat {
                path: path.to_path_buf(),
                found,
                known: VERSION,
            });
        }
        None => {}
    }
    contents.end = place as u64;
    // Whatever comes later was written later: does it say that this was durable?
    let mut later = place + 1;
    while let Some(found) = bytes
        .get(later..)
        .and_then(|rest| rest.windows(MARK.len()).position(|window| window == MARK))
    {
        later += found;
        if let Some((_, _, durable)) = record_at(&bytes, later, segment)
            && durable > contents.end
        {
            return Err(contents.damaged(path));
        }
        later += 1;
    }
    Ok(contents)
}

fn header(bytes: &[u8], segment: SegmentName) -> Option<u32> {
    let (body, sum) = bytes.get(..HEADER_BYTES)?.split_at(HEADER_BYTES - 4);
    let version = body.get(8..12)?.try_into().ok().map(u32::from_le_bytes)?;
    let number = body.get(12..20)?.try_into().ok().map(u64::from_le_bytes)?;
    let sound = body.starts_with(&MAGIC)
        && sum == crc32fast::hash(body).to_le_bytes()
        && number == segment.0;
    sound.then_some(version)
}

/// A sound record, where it ends, and up to where the segment was durable before it.
fn record_at(bytes: &[u8], place: usize, segment: SegmentName) -> Option<(Record, usize, u64)> {
    let frame = bytes.get(place..place + FRAME_BYTES)?;
    let number = |from: usize| -> Option<u32> {
        Some(u32::from_le_bytes(
            frame.get(from..from + 4)?.try_into().ok()?,
        ))
    };
    let length = usize::try_from(number(8)?).ok()?;
    if !frame.starts_with(&MARK) || length > ENTRY_BYTES_MAX + 16 {
        return None;
    }
    let end = place + FRAME_BYTES + length;
    let rest = bytes.get(place + 8..end)?;
    if number(4)? != checksum(segment, place as u64, rest) {
        return None;
    }
    let durable = frame.get(16..24)?.try_into().ok().map(u64::from_le_bytes)?;
    let record = Record::decode(frame[12], bytes.get(place + FRAME_BYTES..end)?)?;
    Some((record, end, durable))
}
