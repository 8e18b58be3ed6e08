//! Disks that are slow, full, read-only or fail to sync: the system calls of a
//! running node on its files are made to, by strace.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    machine::Tampering,
    world::World,
};

const SYNCS: &str = "fsync,fdatasync,sync_file_range";
const WRITES: &str = "write,pwrite64,pwritev,fallocate,ftruncate";

pub(super) fn kinds() -> Vec<Kind> {
    let kind = |name, lasts_ms, make| Kind {
        name,
        scope: Scope::Nodes,
        lasts_ms,
        needs: |machine| machine.strace.clone(),
        make,
    };
    vec![
        kind("slow-fsync", 4_000..9_000, || {
            Box::new(Disk::new(Trouble::Slow, "leader"))
        }),
        kind("slow-fsync-everywhere", 3_000..6_000, || {
            Box::new(Disk::new(Trouble::Slow, "all"))
        }),
        kind("fsync-error", 1_500..4_000, || {
            Box::new(Disk::new(Trouble::SyncFails, "any"))
        }),
        kind("disk-full", 1_500..4_000, || {
            Box::new(Disk::new(Trouble::Full, "any"))
        }),
        kind("read-only-disk", 1_500..4_000, || {
            Box::new(Disk::new(Trouble::ReadOnly, "any"))
        }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Slow,
    SyncFails,
    Full,
    ReadOnly,
}

struct Disk {
    trouble: Trouble,
    whose: &'static str,
    at_work: Vec<Tampering>,
    /// The processes that must not go on once they have written something.
    doomed: Vec<Doomed>,
}

struct Doomed {
    node: u64,
    pid: u32,
    /// The last entry in its log.
    had: u64,
}

/// One entry may be on its way without a write that anybody waits for.
const ENTRIES_UNWRITTEN_MAX: u64 = 2;
/// A node notices a failed write with the next entry, which comes with a tick.
const NOTICES_WITHIN: Duration = Duration::from_secs(10);
const ATTACHES_WITHIN: Duration = Duration::from_secs(5);

impl Disk {
    fn new(trouble: Trouble, whose: &'static str) -> Self {
        Self {
            trouble,
            whose,
            at_work: Vec::new(),
            doomed: Vec::new(),
        }
    }
}

impl Fault for Disk {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let running = world.cluster.running();
        let victims: Vec<u64> = match self.whose {
            "leader" => world.cluster.leader().into_iter().collect(),
            "all" => running,
            _ => draw.pick(&running).into_iter().collect(),
        };
        let delay_ms = draw.number(20..250);
        let (calls, what, only_files) = match self.trouble {
            Trouble::Slow => (SYNCS, format!("delay_exit={}", delay_ms * 1_000), false),
            Trouble::SyncFails => (SYNCS, "error=EIO".to_owned(), false),
            Trouble::Full => (WRITES, "error=ENOSPC".to_owned(), true),
            Trouble::ReadOnly => (WRITES, "error=EROFS".to_owned(), true),
        };
        if victims.is_empty() {
            return Err("there is no such node".to_owned());
        }
        let log = world.folder.join("strace.log");
        for id in &victims {
            let Some(node) = world.cluster.node(*id) else {
                continue;
            };
            let files = if only_files {
                files_below(&node.data)
            } else {
                Vec::new()
            };
            let Some(process) = node.process() else {
                continue;
            };
            let pid = process.id();
            if tracer(pid) != Some(0) {
                return Err(format!("the calls of node {id} are tampered with already"));
            }
            let had = node.position().map_or(u64::MAX, |position| position.last);
            let tampering = Tampering::begin(pid, calls, &what, &files, &log);
            self.at_work
                .push(tampering.map_err(|error| error.to_string())?);
            if self.trouble != Trouble::Slow {
                world.excused.push(*id);
            }
            if !world.until(ATTACHES_WITHIN, |_| tracer(pid) != Some(0)) {
                return Err(format!("strace cannot attach to node {id}"));
            }
            if self.trouble != Trouble::Slow {
                let node = *id;
                self.doomed.push(Doomed { node, pid, had });
            }
        }
        Ok(format!("{calls} of nodes {victims:?}: {what}"))
    }

    fn heal(&mut self, world: &mut World) {
        for Doomed { node, pid, had } in std::mem::take(&mut self.doomed) {
            // The supervisor starts another process: the first one must be gone.
            let gone = world.until(NOTICES_WITHIN, |world| {
                let node = world.cluster.node(node);
                let now = node.and_then(|node| node.process().map(|process| process.id()));
                now != Some(pid)
            });
            // One that is cut off has nothing to write, and so nothing to notice.
            let position = world.cluster.node(node).and_then(|node| node.position());
            let wrote = position
                .is_some_and(|position| position.last > had.saturating_add(ENTRIES_UNWRITTEN_MAX));
            if !gone && wrote && !world.is_over() {
                world.found(format!(
                    "node {node} went on for {} s and wrote entries although its disk failed it",
                    NOTICES_WITHIN.as_secs()
                ));
            }
        }
        self.at_work.clear();
        world.supervise();
        world.excused.clear();
    }
}

/// Who traces a process; 0: nobody.
fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok()
}

/// All files below a folder.
pub(super) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for item in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = item.path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}
