//! A data folder of which one file holds anything: it is refused as damaged, or
//! everything is there that must be. Knows nothing of what entries say.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{OnceLock, mpsc},
};

use bytes::Bytes;
use leasehold_coordinator::store::{self, Identity, LogPos, StoredVote, Write};
use tempfile::TempDir;

const NODE_ID: u64 = 1;

/// A small store that is whole: its files, in order, and its entries.
pub struct Whole {
    dir: TempDir,
    files: Vec<PathBuf>,
    entries: Vec<(LogPos, Bytes)>,
}

impl Whole {
    /// The one store of this process.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn get() -> &'static Self {
        static WHOLE: OnceLock<Whole> = OnceLock::new();
        WHOLE.get_or_init(|| build().expect("a store can be made in a temporary folder"))
    }

    /// A file's number, which is an input's first byte, and what it holds.
    ///
    /// # Panics
    /// When the store is gone.
    pub fn files(&self) -> impl Iterator<Item = (u8, Vec<u8>)> {
        let read = |path: &PathBuf| fs::read(self.dir.path().join(path)).expect("it is there");
        (0..).zip(self.files.iter().map(read))
    }
}

fn scratch() -> std::io::Result<TempDir> {
    // In memory, where the machine has such a place.
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

fn build() -> Result<Whole, Box<dyn std::error::Error>> {
    let dir = scratch()?;
    let mut identity = Identity::load_or_create(dir.path(), NODE_ID)?;
    let mut opened = store::open(dir.path(), &identity, |_| {})?;
    identity.take_part(dir.path())?;
    let at = |index| LogPos { term: 1, index };
    let vote = StoredVote {
        term: 1,
        committed: true,
        node_id: NODE_ID,
    };
    let mut writes = vec![Write::Vote(vote)];
    writes.extend((0..6_u64).map(|index| Write::Append {
        at: at(index),
        bytes: vec![b'e'; 20].into(),
    }));
    let write = |writes: Vec<Write>| -> Result<(), Box<dyn std::error::Error>> {
        let (done, wait) = mpsc::channel();
        let report = move |result| drop(done.send(result));
        opened.wal.submit(writes, Box::new(report));
        Ok(wait.recv()??)
    };
    write(writes)?;
    write(vec![Write::Committed(Some(at(4)))])?;
    let mut writer = opened.snapshots.create(b"a snapshot")?;
    writer.frame(&[7; 40])?;
    let file = writer.finish()?;
    opened.snapshots.adopt(at(3), &file)?;
    write(vec![Write::PurgeTo(at(2))])?;
    drop(opened);
    let opened = store::open(dir.path(), &identity, |_| {})?;
    let entries = opened.loaded.entries.clone();
    drop(opened);
    let mut files = Vec::new();
    for below in ["", "log", "snapshots"] {
        for item in fs::read_dir(dir.path().join(below))? {
            let item = item?;
            if item.metadata()?.len() > 0 && item.file_type()?.is_file() {
                files.push(Path::new(below).join(item.file_name()));
            }
        }
    }
    files.sort();
    Ok(Whole {
        dir,
        files,
        entries,
    })
}

/// Opens the store with a file's content replaced: which one, then the content.
pub(crate) fn open(bytes: &[u8]) {
    let whole = Whole::get();
    let Some((which, content)) = bytes.split_first() else {
        return;
    };
    let replaced = &whole.files[usize::from(*which) % whole.files.len()];
    let dir = scratch().expect("a temporary folder");
    fs::create_dir(dir.path().join("log")).expect("a folder");
    fs::create_dir(dir.path().join("snapshots")).expect("a folder");
    for file in &whole.files {
        let to = dir.path().join(file);
        let copied = match file == replaced {
            true => fs::write(to, content),
            false => fs::copy(whole.dir.path().join(file), to).map(drop),
        };
        copied.expect("a file");
    }
    let opened = Identity::load_or_create(dir.path(), NODE_ID)
        .and_then(|identity| store::open(dir.path(), &identity, |_| {}));
    match opened {
        Ok(opened) => assert_eq!(opened.loaded.entries, whole.entries, "{replaced:?}"),
        Err(error) => {
            let code = error.code();
            // Another node's identity, well formed, is no damage.
            let known = ["damaged_store", "unknown_format", "invalid_config"];
            assert!(known.contains(&code), "{replaced:?}: {error}");
        }
    }
}
