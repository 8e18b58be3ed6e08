//! A bit of a stopped node's store that is not what was written. The node refuses
//! to start, with an error that is documented, or comes up whole: which digests and
//! books then show. What is refused is replaced by an empty node under a new id.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{disks::files_below, members};
use crate::nemesis::{
    draw::Draw,
    fault::{Fault, Kind, Scope},
    world::World,
};

pub(super) fn kinds() -> Vec<Kind> {
    vec![Kind {
        name: "flipped-byte",
        scope: Scope::Members,
        lasts_ms: 100..1_000,
        needs: |_| Ok(()),
        make: || Box::new(Flip),
    }]
}

/// Invalid configuration, damaged store, disk lost, unknown format: what deploy's
/// documents tell of a start that is refused.
const REFUSALS: [i32; 4] = [2, 4, 5, 7];
/// What a node says when its cluster takes it for the disk that is lost.
const WRONG_DISK: &str = "refused a message for another disk";
/// How long a node that has somebody to ask may take to refuse.
const REFUSES_WITHIN: Duration = Duration::from_secs(10);
const DECIDES_WITHIN: Duration = Duration::from_secs(40);

struct Flip;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// By an error that is documented.
    Refused,
    /// Ready.
    Whole,
    /// Neither: nobody is left whom it could ask, and it refuses what the leader says to
    /// the disk that is lost.
    Waits,
}

impl Fault for Flip {
    fn inject(&mut self, world: &mut World, draw: &mut Draw) -> Result<String, String> {
        let victim = draw.pick(&world.followers()).ok_or("nobody follows")?;
        world.cluster.kill(victim);
        let data = world
            .cluster
            .node(victim)
            .map(|node| node.data.clone())
            .ok_or("it is gone")?;
        let mut files: Vec<PathBuf> = files_below(&data);
        files.retain(|file| {
            let is_store = file
                .file_name()
                .is_some_and(|name| name != "addresses.json");
            is_store && fs::metadata(file).is_ok_and(|meta| meta.len() > 0)
        });
        draw.shuffle(&mut files);
        let mut said = Vec::new();
        let mut refused = false;
        for file in &files {
            let Ok(flipped) = Flipped::begin(file, draw) else {
                // A start has taken it away.
                continue;
            };
            let outcome = start(world, victim);
            world.cluster.kill(victim);
            let name = file.strip_prefix(&data).unwrap_or(file).display();
            let what = format!("{name} at {} bit {}", flipped.offset, flipped.bit);
            match outcome {
                Ok(Outcome::Waits) => {
                    world.found(format!("node {victim} with {what} took itself for empty"));
                    refused = true;
                    break;
                }
                Ok(outcome) => {
                    said.push(format!("{what}: {outcome:?}"));
                    refused = outcome == Outcome::Refused;
                    if refused {
                        // Nothing ran on it, so what was written is still good.
                        flipped.undo().map_err(|error| error.to_string())?;
                    }
                }
                Err(wrong) => {
                    world.found(format!("node {victim} with {what}: {wrong}"));
                    refused = true;
                    break;
                }
            }
        }
        if refused || start(world, victim) != Ok(Outcome::Whole) {
            let new =
                members::replace(world, victim).inspect_err(|error| world.found(error.clone()))?;
            said.push(format!("then replaced by node {new}"));
        }
        Ok(format!("node {victim}: {}", said.join("; ")))
    }
}

/// Starts the node, and says what it makes of its store.
pub(super) fn start(world: &mut World, id: u64) -> Result<Outcome, String> {
    let before = world.cluster.node(id).map_or(0, |node| node.log_length());
    world
        .cluster
        .run(id, &world.ground)
        .map_err(|error| error.to_string())?;
    let began = Instant::now();
    loop {
        let node = world.cluster.node(id).ok_or("it is gone")?;
        if node.is_ready() {
            return Ok(Outcome::Whole);
        }
        if let Some(status) = node.take_ended() {
            node.is_wanted = false;
            let log = node.log_since(before);
            let last = log.lines().last().unwrap_or_default();
            return match status.code() {
                Some(code) if REFUSALS.contains(&code) => Ok(Outcome::Refused),
                _ => Err(format!(
                    "it ended with {status}, which is no refusal: {last}"
                )),
            };
        }
        if began.elapsed() > REFUSES_WITHIN && node.log_since(before).contains(WRONG_DISK) {
            return Ok(Outcome::Waits);
        }
        if began.elapsed() > DECIDES_WITHIN {
            let log = node.log_since(before);
            return Err(format!(
                "it neither refuses nor is ready after {} s:\n{log}",
                DECIDES_WITHIN.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A file with one bit the other way.
struct Flipped<'a> {
    file: &'a Path,
    offset: usize,
    bit: u8,
}

impl<'a> Flipped<'a> {
    fn begin(file: &'a Path, draw: &mut Draw) -> io::Result<Self> {
        let length = usize::try_from(fs::metadata(file)?.len()).unwrap_or(0);
        let mut offset = draw.index(length);
        let bit = u8::try_from(draw.index(8)).unwrap_or(0);
        // A log file is mostly room that was never written: half of the flips are
        // where something is.
        if draw.chance(50) {
            let bytes = fs::read(file)?;
            let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            offset = draw.pick(&written).unwrap_or(offset);
        }
        let flipped = Self { file, offset, bit };
        flipped.flip()?;
        Ok(flipped)
    }

    fn flip(&self) -> io::Result<()> {
        use std::os::unix::fs::FileExt as _;
        let file = fs::File::options().read(true).write(true).open(self.file)?;
        let mut byte = [0];
        let at = u64::try_from(self.offset).unwrap_or(0);
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << self.bit;
        file.write_all_at(&byte, at)?;
        file.sync_all()
    }

    fn undo(self) -> io::Result<()> {
        self.flip()
    }
}
