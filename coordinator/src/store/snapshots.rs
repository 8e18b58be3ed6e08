//! Snapshot files. Knows nothing of what a snapshot says: a description and a
//! series of chunks, as bytes.
//!
//! A file is complete, checksummed and durable before it gets its name, and the
//! one before it is deleted only then. It is written in small synced pieces: one
//! big fsync would stall the log on the same disk.
//!
//! Layout: magic and version; the description, then the chunks, each framed by
//! its length and checksum; an empty frame with the checksum of everything before.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{LogPos, StoreError, durable};

const MAGIC: [u8; 8] = *b"LHSNAP\0\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 12;
const FRAME_BYTES: usize = 8;
const FRAME_BYTES_MAX: usize = 1 << 20;
const SYNC_EVERY_BYTES: usize = 1 << 20;
const SUFFIX: &str = "snap";
const UNFINISHED: &str = "part";

/// A snapshot file, whole and checked or about to be. Keeps the file open, so
/// that it can be read to the end even if a newer one replaces it.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    file: Arc<File>,
    path: PathBuf,
}

/// The folder of snapshots.
#[derive(Clone, Debug)]
pub struct SnapshotFolder {
    dir: PathBuf,
    newest: Option<(LogPos, SnapshotFile)>,
    next_part: Arc<AtomicU64>,
}

impl SnapshotFolder {
    /// Opens the folder, checks its newest snapshot and deletes everything else.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the newest snapshot isn't what was written.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        durable::create_dir(dir)?;
        let mut found: Vec<(u64, u64, PathBuf)> = Vec::new();
        for item in fs::read_dir(dir).map_err(|error| StoreError::io(dir, &error))? {
            let path = item.map_err(|error| StoreError::io(dir, &error))?.path();
            match parse_name(&path) {
                Some(at) => found.push((at.index, at.term, path)),
                None => fs::remove_file(&path).map_err(|error| StoreError::io(&path, &error))?,
            }
        }
        found.sort_unstable();
        let newest = match found.pop() {
            None => None,
            Some((index, term, path)) => {
                let file = SnapshotFile::open(&path)?;
                file.verify()?;
                Some((LogPos { term, index }, file))
            }
        };
        for (.., path) in found {
            fs::remove_file(&path).map_err(|error| StoreError::io(&path, &error))?;
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            newest,
            next_part: Arc::default(),
        })
    }

    /// The newest snapshot, and the position that it includes.
    #[must_use]
    pub fn newest(&self) -> Option<&(LogPos, SnapshotFile)> {
        self.newest.as_ref()
    }

    /// A new file for the bytes of a snapshot that another node sends.
    ///
    /// # Errors
    /// The operating system's.
    pub fn receive(&self) -> Result<SnapshotWriter, StoreError> {
        let number = self.next_part.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("{number}.{UNFINISHED}"));
        let file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path);
        let file = file.map_err(|error| StoreError::io(&path, &error))?;
        Ok(SnapshotWriter {
            file,
            path,
            sum: crc32fast::Hasher::new(),
            unsynced: 0,
            finished: false,
        })
    }

    /// A new file for a snapshot of this node's own, begun with its description.
    ///
    /// # Errors
    /// The operating system's.
    pub fn create(&self, description: &[u8]) -> Result<SnapshotWriter, StoreError> {
        let mut writer = self.receive()?;
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..].copy_from_slice(&VERSION.to_le_bytes());
        writer.append(&header)?;
        writer.frame(description)?;
        Ok(writer)
    }

    /// Gives a complete file its name, unless a newer one is there already; the
    /// newest is what [`SnapshotFolder::newest`] says afterwards.
    ///
    /// # Errors
    /// The operating system's; the folder then still has the older snapshot.
    pub fn adopt(&mut self, at: LogPos, file: &SnapshotFile) -> Result<(), StoreError> {
        if let Some((newest, own)) = &self.newest
            && (newest.index >= at.index || own.path == file.path)
        {
            if own.path != file.path && file.path.parent() == Some(&self.dir) {
                fs::remove_file(&file.path).map_err(|error| StoreError::io(&file.path, &error))?;
            }
            return Ok(());
        }
        let source = if file.path.parent() == Some(&self.dir) {
            file.clone()
        } else {
            self.copy(file)?
        };
        let path = self
            .dir
            .join(format!("{:020}-{}.{SUFFIX}", at.index, at.term));
        fs::rename(&source.path, &path).map_err(|error| StoreError::io(&path, &error))?;
        durable::sync_dir(&self.dir)?;
        let replaced = self.newest.replace((
            at,
            SnapshotFile {
                file: source.file,
                path,
            },
        ));
        if let Some((_, old)) = replaced {
            fs::remove_file(&old.path).map_err(|error| StoreError::io(&old.path, &error))?;
        }
        Ok(())
    }

    fn copy(&self, file: &SnapshotFile) -> Result<SnapshotFile, StoreError> {
        let mut writer = self.receive()?;
        let mut source = file.bytes()?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = source
                .read(&mut buffer)
                .map_err(|error| StoreError::io(&file.path, &error))?;
            let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            writer.append(bytes)?;
        }
        writer.close()
    }
}

/// A snapshot file being written. Dropped unfinished, it is deleted.
pub struct SnapshotWriter {
    file: File,
    path: PathBuf,
    sum: crc32fast::Hasher,
    unsynced: usize,
    finished: bool,
}

impl SnapshotWriter {
    /// Writes one chunk.
    ///
    /// # Errors
    /// The operating system's.
    pub fn frame(&mut self, chunk: &[u8]) -> Result<(), StoreError> {
        for piece in chunk.chunks(FRAME_BYTES_MAX) {
            let mut head = [0; FRAME_BYTES];
            let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            head[..4].copy_from_slice(&length.to_le_bytes());
            head[4..].copy_from_slice(&crc32fast::hash(piece).to_le_bytes());
            self.append(&head)?;
            self.append(piece)?;
        }
        Ok(())
    }

    /// Writes raw bytes of a snapshot that another node framed.
    ///
    /// # Errors
    /// The operating system's.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .write_all(bytes)
            .map_err(|error| StoreError::io(&self.path, &error))?;
        self.sum.update(bytes);
        self.unsynced = self.unsynced.saturating_add(bytes.len());
        if self.unsynced >= SYNC_EVERY_BYTES {
            self.file
                .sync_data()
                .map_err(|error| StoreError::io(&self.path, &error))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    /// Ends a snapshot of this node's own; durable when it returns, but without a name.
    ///
    /// # Errors
    /// The operating system's.
    pub fn finish(mut self) -> Result<SnapshotFile, StoreError> {
        let mut end = [0; FRAME_BYTES];
        end[4..].copy_from_slice(&self.sum.clone().finalize().to_le_bytes());
        self.append(&end)?;
        self.close()
    }

    /// Ends a received snapshot; durable when it returns, but without a name.
    /// [`SnapshotFile::verify`] says whether it is whole.
    ///
    /// # Errors
    /// The operating system's.
    pub fn close(mut self) -> Result<SnapshotFile, StoreError> {
        self.file
            .sync_all()
            .map_err(|error| StoreError::io(&self.path, &error))?;
        self.finished = true;
        let file = self
            .file
            .try_clone()
            .map_err(|error| StoreError::io(&self.path, &error))?;
        Ok(SnapshotFile {
            file: Arc::new(file),
            path: self.path.clone(),
        })
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What stays behind is deleted at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl SnapshotFile {
    fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(|error| StoreError::io(path, &error))?;
        Ok(Self {
            file: Arc::new(file),
            path: path.to_path_buf(),
        })
    }

    /// Where it is, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn length(&self) -> Result<u64, StoreError> {
        self.file
            .metadata()
            .map(|data| data.len())
            .map_err(|error| StoreError::io(&self.path, &error))
    }

    /// All its bytes, framing included, for sending it elsewhere.
    ///
    /// # Errors
    /// The operating system's.
    pub fn bytes(&self) -> Result<impl Read + Send + 'static, StoreError> {
        Ok(Positioned {
            file: Arc::clone(&self.file),
            at: 0,
        })
    }

    /// Its description, and then its chunks.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when the beginning isn't what was written.
    pub fn read(&self) -> Result<(Vec<u8>, SnapshotReader), StoreError> {
        let bytes = BufReader::with_capacity(
            256 << 10,
            Positioned {
                file: Arc::clone(&self.file),
                at: 0,
            },
        );
        let mut reader = SnapshotReader {
            bytes,
            path: self.path.clone(),
            sum: crc32fast::Hasher::new(),
            place: 0,
            ended: false,
            rest: Bytes::new(),
        };
        let mut header = [0; HEADER_BYTES];
        reader.fill(&mut header)?;
        if header[..8] != MAGIC {
            return Err(reader.damaged("it is not a snapshot"));
        }
        let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if found != VERSION {
            return Err(StoreError::UnknownFormat {
                path: self.path.clone(),
                found,
                known: VERSION,
            });
        }
        match reader.next_chunk()? {
            Some(description) => Ok((description, reader)),
            None => Err(reader.damaged("it has no description")),
        }
    }

    /// Reads it to its end.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it isn't what was written.
    pub fn verify(&self) -> Result<(), StoreError> {
        let (_, mut reader) = self.read()?;
        while reader.next_chunk()?.is_some() {}
        Ok(())
    }
}

/// The chunks of a snapshot. The last `None` is a promise that all were seen.
pub struct SnapshotReader {
    bytes: BufReader<Positioned>,
    path: PathBuf,
    sum: crc32fast::Hasher,
    /// Bytes read so far.
    place: u64,
    ended: bool,
    /// What `Read` has not handed out yet of the chunk it is in.
    rest: Bytes,
}

impl SnapshotReader {
    /// The next chunk; none after the last.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] when it isn't what was written.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        if self.ended {
            return Ok(None);
        }
        let so_far = self.sum.clone().finalize();
        let begins_at = self.place;
        let mut head = [0; FRAME_BYTES];
        self.fill(&mut head)?;
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let sum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length == 0 {
            let mut more = [0; 1];
            let at_end = self
                .bytes
                .read(&mut more)
                .map_err(|error| StoreError::io(&self.path, &error))?
                == 0;
            if sum != so_far || !at_end {
                return Err(self.damaged_at(begins_at, "its end is wrong"));
            }
            self.ended = true;
            return Ok(None);
        }
        if length > FRAME_BYTES_MAX {
            return Err(self.damaged_at(begins_at, "a chunk is too long"));
        }
        let mut chunk = vec![0; length];
        self.fill(&mut chunk)?;
        if crc32fast::hash(&chunk) != sum {
            return Err(self.damaged_at(begins_at, "the checksum of a chunk is wrong"));
        }
        Ok(Some(chunk))
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), StoreError> {
        match self.bytes.read_exact(buffer) {
            Ok(()) => {
                self.sum.update(buffer);
                self.place = self.place.saturating_add(buffer.len() as u64);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged_at(self.place, "it ends too early"))
            }
            Err(error) => Err(StoreError::io(&self.path, &error)),
        }
    }

    fn damaged_at(&self, place: u64, detail: &str) -> StoreError {
        StoreError::damaged(&self.path, format!("{detail}, at or after byte {place}"))
    }

    fn damaged(&self, detail: &str) -> StoreError {
        StoreError::damaged(&self.path, detail)
    }
}

/// The chunks one after the other, as one stream of bytes.
impl Read for SnapshotReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = self.next_chunk()?.unwrap_or_default().into();
        }
        let length = buffer.len().min(self.rest.len());
        buffer[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

/// Reads a shared file from a position of its own.
struct Positioned {
    file: Arc<File>,
    at: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        let read = self.file.read_at(buffer, self.at)?;
        self.at = self.at.saturating_add(read as u64);
        Ok(read)
    }
}

fn parse_name(path: &Path) -> Option<LogPos> {
    let name = path
        .file_name()?
        .to_str()?
        .strip_suffix(SUFFIX)?
        .strip_suffix('.')?;
    let (index, term) = name.split_once('-')?;
    Some(LogPos {
        term: term.parse().ok()?,
        index: index.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_snapshot_is_synced_before_it_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let folder = SnapshotFolder::open(dir.path()).unwrap();
        folder.create(b"description").unwrap().finish().unwrap();
        let mut writer = folder.create(b"description").unwrap();
        writer.frame(b"chunk").unwrap();
        // The one file that takes everything and refuses to be synced.
        writer.file = File::options().write(true).open("/dev/null").unwrap();
        assert_eq!(writer.finish().unwrap_err().code(), "store_io");
    }
}
