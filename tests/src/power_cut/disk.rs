//! A folder on a disk that can lose power: what is durable of it, what is only in
//! the page cache, and what a cut may leave. Knows nothing of what the files mean.
//! Past 600 lines: one model of what a file system may keep, which is read as a whole.
//!
//! What is kept of an unsynced write is decided sector by sector: a sector has the
//! content that it had at some moment since the file's last sync, since the page
//! cache writes back whatever it holds, in any order. A file's length is kept or
//! lost apart from its data. `sync_file_range` is no barrier.
//!
//! Names follow one of two models. *POSIX*: a name is durable once its folder was
//! synced; before, each change of it may be kept or lost, in any combination, and
//! a file's fsync says nothing of its name. *Journal* (as ext4 and XFS do): changes
//! of names are kept up to some moment, and any sync makes all before it durable.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    fs, io,
    path::{Component, Path, PathBuf},
};

use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

use super::{
    Outcome,
    trace::{Call, Step},
};

/// How names become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Names {
    /// Each with its folder's sync, and in any combination before.
    Posix,
    /// All of them up to some moment, at the latest the last sync of anything.
    Journal,
}

/// What becomes of unsynced changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// All are lost.
    Lost,
    /// All are kept, as after a crash of the process alone.
    Kept,
    /// Those before some moment are kept.
    Prefix,
    /// Each is kept, lost, or torn by itself.
    Mixed,
}

/// How power is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) names: Names,
    pub(super) fate: Fate,
    /// What the disk writes in one piece, in bytes.
    pub(super) sector: usize,
    /// The moment of [`Fate::Prefix`] and of [`Names::Journal`].
    moment: u64,
}

/// What a cut left: folders, and files with their content, relative to the root;
/// folders come before what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tree(pub(super) BTreeMap<PathBuf, Option<Vec<u8>>>);

impl Tree {
    /// Reads a folder.
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        fn walk(root: &Path, below: &Path, tree: &mut Tree) -> io::Result<()> {
            for item in fs::read_dir(root.join(below))? {
                let item = item?;
                let path = below.join(item.file_name());
                if item.file_type()?.is_dir() {
                    tree.0.insert(path.clone(), None);
                    walk(root, &path, tree)?;
                } else {
                    tree.0.insert(path, Some(fs::read(item.path())?));
                }
            }
            Ok(())
        }
        let mut tree = Self::default();
        walk(root, Path::new(""), &mut tree)?;
        Ok(tree)
    }

    /// The first difference, in words.
    pub(super) fn difference(&self, other: &Self) -> String {
        let paths = self.0.keys().chain(other.0.keys());
        for path in paths {
            let (mine, theirs) = (self.0.get(path), other.0.get(path));
            if mine == theirs {
                continue;
            }
            let (Some(Some(mine)), Some(Some(theirs))) = (mine, theirs) else {
                return format!("{} is in one of them only", path.display());
            };
            let pairs = mine.iter().zip(theirs);
            let same = pairs.take_while(|(one, other)| one == other).count();
            return format!(
                "{} differs from byte {same} on, of {} and {}",
                path.display(),
                mine.len(),
                theirs.len()
            );
        }
        "none".to_owned()
    }

    /// Writes a folder.
    pub(super) fn write(&self, root: &Path) -> io::Result<()> {
        fs::create_dir_all(root)?;
        for (path, content) in &self.0 {
            match content {
                None => fs::create_dir(root.join(path))?,
                Some(bytes) => fs::write(root.join(path), bytes)?,
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
enum What {
    Write { offset: usize, bytes: Vec<u8> },
    Resize(usize),
}

#[derive(Debug)]
struct Change {
    begun: u64,
    done: Option<u64>,
    what: What,
}

#[derive(Debug, Default)]
struct File {
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    /// Where a write without a place goes.
    place: usize,
}

#[derive(Debug)]
enum Naming {
    Link(OsString, usize),
    Unlink(OsString),
    Rename(OsString, OsString, usize),
}

#[derive(Debug)]
struct Renaming {
    begun: u64,
    done: Option<u64>,
    /// Its folder was synced.
    posix: bool,
    /// Anything was synced.
    journal: bool,
    what: Naming,
}

#[derive(Debug, Default)]
struct Folder {
    first: BTreeMap<OsString, usize>,
    changes: Vec<Renaming>,
    now: BTreeMap<OsString, usize>,
}

#[derive(Debug)]
enum Node {
    File(File),
    Folder(Folder),
}

/// A call that has begun.
#[derive(Debug)]
enum Running {
    Open { node: Option<usize> },
    Write { node: usize, begun: u64 },
    Seek { node: usize },
    Sync { node: usize, begun: u64 },
    Name { folders: Vec<usize>, begun: u64 },
}

/// The disk below one folder.
#[derive(Debug)]
pub(super) struct Disk {
    root: PathBuf,
    nodes: Vec<Node>,
    running: HashMap<u32, Running>,
    /// Files that lost their name and may still be written to.
    nameless: HashMap<PathBuf, usize>,
    /// Counts calls.
    now: u64,
}

impl Disk {
    /// A disk on which everything in `tree` is durable.
    pub(super) fn new(root: &Path, tree: &Tree) -> Outcome<Self> {
        let mut disk = Self {
            root: root.to_owned(),
            nodes: vec![Node::Folder(Folder::default())],
            running: HashMap::new(),
            nameless: HashMap::new(),
            now: 0,
        };
        for (path, content) in &tree.0 {
            let node = match content {
                None => Node::Folder(Folder::default()),
                Some(bytes) => Node::File(File {
                    durable: bytes.clone(),
                    ..File::default()
                }),
            };
            let (folder, name) = disk.place(&root.join(path))?;
            let number = disk.nodes.len();
            disk.nodes.push(node);
            let folder = disk.folder(folder)?;
            folder.first.insert(name.clone(), number);
            folder.now.insert(name, number);
        }
        Ok(disk)
    }

    /// Follows the trace by one step.
    pub(super) fn step(&mut self, step: &Step) -> Outcome<()> {
        self.now += 1;
        match step {
            Step::Begin { thread, call } => {
                if let Some(running) = self.begin(call)? {
                    self.running.insert(*thread, running);
                }
            }
            Step::End { thread, result } => {
                if let Some(running) = self.running.remove(thread) {
                    self.end(running, *result)?;
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, call: &Call) -> Outcome<Option<Running>> {
        let begun = self.now;
        match call {
            Call::Said { .. } => Ok(None),
            Call::Open {
                path,
                create,
                empty,
            } => {
                let found = self.find(path);
                let node = match found {
                    None if *create => {
                        let node = self.nodes.len();
                        self.nodes.push(Node::File(File::default()));
                        let (folder, name) = self.place(path)?;
                        self.name(folder, Naming::Link(name, node), Some(begun))?;
                        Some(node)
                    }
                    found => found,
                };
                if let Some(node) = node
                    && let Node::File(file) = &mut self.nodes[node]
                {
                    file.place = 0;
                    if *empty && found.is_some() {
                        file.unsynced.push(Change {
                            begun,
                            done: Some(begun),
                            what: What::Resize(0),
                        });
                    }
                }
                Ok(Some(Running::Open { node }))
            }
            Call::Write { path, at, bytes } => {
                let node = self.must_find(path)?;
                let file = self.file(node)?;
                let offset = match at {
                    Some(at) => usize::try_from(*at)?,
                    None => file.place,
                };
                if at.is_none() {
                    file.place += bytes.len();
                }
                let what = What::Write {
                    offset,
                    bytes: bytes.clone(),
                };
                file.unsynced.push(Change {
                    begun,
                    done: None,
                    what,
                });
                Ok(Some(Running::Write { node, begun }))
            }
            Call::Resize { path, length } => {
                let node = self.must_find(path)?;
                let what = What::Resize(usize::try_from(*length)?);
                self.file(node)?.unsynced.push(Change {
                    begun,
                    done: None,
                    what,
                });
                Ok(Some(Running::Write { node, begun }))
            }
            Call::Seek { path } => Ok(self.find(path).map(|node| Running::Seek { node })),
            Call::Sync { path } => {
                let node = self.must_find(path)?;
                Ok(Some(Running::Sync { node, begun }))
            }
            Call::MakeDir { path } => {
                // Whoever makes a folder and its parents tries the innermost first.
                let above = path.parent().and_then(|above| self.find(above));
                if above.is_none() || self.find(path).is_some() {
                    return Ok(None);
                }
                let (folder, name) = self.place(path)?;
                let node = self.nodes.len();
                self.nodes.push(Node::Folder(Folder::default()));
                self.name(folder, Naming::Link(name, node), None)?;
                Ok(Some(Running::Name {
                    folders: vec![folder],
                    begun,
                }))
            }
            Call::Unlink { path } => {
                let Some(node) = self.find(path) else {
                    return Ok(None);
                };
                self.nameless.insert(path.clone(), node);
                let (folder, name) = self.place(path)?;
                self.name(folder, Naming::Unlink(name), None)?;
                Ok(Some(Running::Name {
                    folders: vec![folder],
                    begun,
                }))
            }
            Call::Rename { from, to } => {
                let Some(node) = self.find(from) else {
                    return Ok(None);
                };
                let (folder, old) = self.place(from)?;
                let (other, new) = self.place(to)?;
                if folder != other {
                    return Err("a rename between folders is not followed".into());
                }
                self.name(folder, Naming::Rename(old, new, node), None)?;
                Ok(Some(Running::Name {
                    folders: vec![folder],
                    begun,
                }))
            }
        }
    }

    fn end(&mut self, running: Running, result: i64) -> Outcome<()> {
        let now = self.now;
        match running {
            Running::Open { node } => {
                if node.is_some() && result < 0 {
                    return Err("an open that failed is not followed".into());
                }
            }
            Running::Write { node, begun } => {
                let changes = &mut self.file(node)?.unsynced;
                // A sync that began later cannot have taken it away: it was not done.
                let place = changes.iter().position(|change| change.begun == begun);
                let place = place.ok_or("a write ended that never began")?;
                let change = &mut changes[place];
                change.done = Some(now);
                match (&mut change.what, usize::try_from(result)) {
                    (What::Write { bytes, .. }, Ok(written)) => bytes.truncate(written),
                    (What::Resize(_), Ok(_)) => {}
                    (_, Err(_)) => drop(changes.remove(place)),
                }
            }
            Running::Seek { node } => {
                let result = usize::try_from(result);
                if let (Node::File(file), Ok(place)) = (&mut self.nodes[node], result) {
                    file.place = place;
                }
            }
            Running::Name { folders, begun } => {
                for folder in folders {
                    let folder = self.folder(folder)?;
                    if result < 0 {
                        folder.changes.retain(|change| change.begun != begun);
                        folder.now = folder.first.clone();
                        for change in &folder.changes {
                            change.what.apply(&mut folder.now);
                        }
                    }
                    for change in &mut folder.changes {
                        if change.begun == begun {
                            change.done = Some(now);
                        }
                    }
                }
            }
            Running::Sync { node, begun } if result >= 0 => self.sync(node, begun),
            Running::Sync { .. } => {}
        }
        Ok(())
    }

    fn sync(&mut self, node: usize, begun: u64) {
        let was_done = |done: Option<u64>| done.is_some_and(|done| done <= begun);
        match &mut self.nodes[node] {
            Node::File(file) => {
                let mut left = Vec::new();
                for change in file.unsynced.drain(..) {
                    if was_done(change.done) {
                        change.what.apply(&mut file.durable);
                    } else {
                        left.push(change);
                    }
                }
                file.unsynced = left;
            }
            Node::Folder(folder) => {
                for change in &mut folder.changes {
                    change.posix |= was_done(change.done);
                }
            }
        }
        for node in &mut self.nodes {
            if let Node::Folder(folder) = node {
                for change in &mut folder.changes {
                    change.journal |= was_done(change.done);
                }
            }
        }
    }

    fn name(&mut self, folder: usize, what: Naming, done: Option<u64>) -> Outcome<()> {
        let begun = self.now;
        let folder = self.folder(folder)?;
        what.apply(&mut folder.now);
        folder.changes.push(Renaming {
            begun,
            done,
            posix: false,
            journal: false,
            what,
        });
        Ok(())
    }

    /// The folder and the name of a path, whose folder must be there.
    fn place(&self, path: &Path) -> Outcome<(usize, OsString)> {
        let name = path.file_name().ok_or("a path without a name")?;
        let folder = path.parent().ok_or("a path without a folder")?;
        let folder = self
            .find(folder)
            .ok_or_else(|| format!("{} is not there", folder.display()))?;
        Ok((folder, name.to_owned()))
    }

    fn find(&self, path: &Path) -> Option<usize> {
        let below = path.strip_prefix(&self.root).ok()?;
        let named = below.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        let step = |node: usize, name: &OsStr| match self.nodes.get(node)? {
            Node::Folder(folder) => folder.now.get(name).copied(),
            Node::File(_) => None,
        };
        named.into_iter().try_fold(0, step)
    }

    fn must_find(&self, path: &Path) -> Outcome<usize> {
        let found = self.find(path).or(self.nameless.get(path).copied());
        found.ok_or_else(|| format!("{} is not there", path.display()).into())
    }

    fn file(&mut self, node: usize) -> Outcome<&mut File> {
        match &mut self.nodes[node] {
            Node::File(file) => Ok(file),
            Node::Folder(_) => Err("a folder where a file was expected".into()),
        }
    }

    fn folder(&mut self, node: usize) -> Outcome<&mut Folder> {
        match &mut self.nodes[node] {
            Node::Folder(folder) => Ok(folder),
            Node::File(_) => Err("a file where a folder was expected".into()),
        }
    }

    /// Bytes that were written to files and are not durable.
    pub(super) fn unsynced_bytes(&self) -> usize {
        let in_file = |node: &Node| match node {
            Node::File(file) => file
                .unsynced
                .iter()
                .map(|change| change.what.length())
                .sum(),
            Node::Folder(_) => 0,
        };
        self.nodes.iter().map(in_file).sum()
    }

    /// A way to cut the power now.
    pub(super) fn draw(&self, rng: &mut StdRng) -> Cut {
        let fates = [
            (Fate::Lost, 2),
            (Fate::Kept, 1),
            (Fate::Prefix, 2),
            (Fate::Mixed, 5),
        ];
        let drawn = fates.choose_weighted(rng, |(_, weight)| *weight);
        Cut {
            names: if rng.random() {
                Names::Posix
            } else {
                Names::Journal
            },
            fate: drawn.map_or(Fate::Mixed, |(fate, _)| *fate),
            sector: if rng.random() { 512 } else { 4_096 },
            moment: rng.random_range(0..=self.now),
        }
    }

    /// What a process finds that is started now, without any cut.
    pub(super) fn as_it_is(&self, rng: &mut StdRng) -> Tree {
        let cut = Cut {
            names: Names::Posix,
            fate: Fate::Kept,
            sector: 512,
            moment: self.now,
        };
        self.cut(&cut, rng)
    }

    /// What is there once power is back.
    pub(super) fn cut(&self, cut: &Cut, rng: &mut StdRng) -> Tree {
        let mut tree = Tree::default();
        self.leave(0, Path::new(""), cut, rng, &mut tree);
        tree
    }

    fn leave(&self, node: usize, path: &Path, cut: &Cut, rng: &mut StdRng, tree: &mut Tree) {
        match &self.nodes[node] {
            Node::File(file) => {
                tree.0.insert(path.to_owned(), Some(file.left_by(cut, rng)));
            }
            Node::Folder(folder) => {
                if path != Path::new("") {
                    tree.0.insert(path.to_owned(), None);
                }
                for (name, node) in folder.left_by(cut, rng) {
                    self.leave(node, &path.join(name), cut, rng, tree);
                }
            }
        }
    }
}

impl What {
    fn length(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Resize(_) => 0,
        }
    }

    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if content.len() < end {
                    content.resize(end, 0);
                }
                content[*offset..end].copy_from_slice(bytes);
            }
            Self::Resize(length) => content.resize(*length, 0),
        }
    }
}

impl Naming {
    fn apply(&self, names: &mut BTreeMap<OsString, usize>) {
        match self {
            Self::Link(name, node) => {
                names.insert(name.clone(), *node);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
            Self::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }
}

/// What a torn write leaves of its sectors.
enum Tear {
    All,
    None,
    First(usize),
    After(usize),
    Some,
}

impl Tear {
    fn draw(cut: &Cut, begun: u64, sectors: usize, rng: &mut StdRng) -> Self {
        match cut.fate {
            Fate::Lost => Self::None,
            Fate::Kept => Self::All,
            Fate::Prefix if begun <= cut.moment => Self::All,
            Fate::Prefix => Self::None,
            Fate::Mixed => match rng.random_range(0..10) {
                0..4 => Self::All,
                4..7 => Self::None,
                7 => Self::First(rng.random_range(0..=sectors)),
                8 => Self::After(rng.random_range(0..=sectors)),
                _ => Self::Some,
            },
        }
    }

    fn keeps(&self, sector: usize, rng: &mut StdRng) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::First(count) => sector < *count,
            Self::After(count) => sector >= *count,
            Self::Some => rng.random(),
        }
    }
}

impl File {
    fn left_by(&self, cut: &Cut, rng: &mut StdRng) -> Vec<u8> {
        let mut cache = self.durable.clone();
        let mut left = self.durable.clone();
        for change in &self.unsynced {
            change.what.apply(&mut cache);
            match &change.what {
                What::Resize(length) => {
                    if matches!(Tear::draw(cut, change.begun, 1, rng), Tear::All) {
                        left.resize(*length, 0);
                    }
                }
                What::Write { offset, bytes } if !bytes.is_empty() => {
                    let first = offset / cut.sector;
                    let last = (offset + bytes.len() - 1) / cut.sector;
                    let tear = Tear::draw(cut, change.begun, last - first + 1, rng);
                    for sector in first..=last {
                        if !tear.keeps(sector - first, rng) {
                            continue;
                        }
                        let from = sector * cut.sector;
                        let to = (from + cut.sector).min(cache.len());
                        if left.len() < to {
                            left.resize(to, 0);
                        }
                        left[from..to].copy_from_slice(&cache[from..to]);
                    }
                }
                What::Write { .. } => {}
            }
        }
        // The length is metadata: it may be ahead of the data, or behind.
        if cut.fate == Fate::Mixed && !self.unsynced.is_empty() {
            match rng.random_range(0..8) {
                0 if cache.len() > left.len() => left.resize(cache.len(), 0),
                1 if self.durable.len() < left.len() => left.truncate(self.durable.len()),
                _ => {}
            }
        }
        left
    }
}

impl Folder {
    fn left_by(&self, cut: &Cut, rng: &mut StdRng) -> BTreeMap<OsString, usize> {
        let mut names = self.first.clone();
        for change in &self.changes {
            let durable = match cut.names {
                Names::Posix => change.posix,
                Names::Journal => change.journal,
            };
            let kept = durable
                || match (cut.fate, cut.names) {
                    (Fate::Lost, _) => false,
                    (Fate::Kept, _) => true,
                    (Fate::Prefix, _) | (Fate::Mixed, Names::Journal) => change.begun <= cut.moment,
                    (Fate::Mixed, Names::Posix) => rng.random(),
                };
            if kept {
                change.what.apply(&mut names);
            }
        }
        names
    }
}
