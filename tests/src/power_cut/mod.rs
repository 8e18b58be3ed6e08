//! The power cut: what a store writes and what it syncs is recorded from real
//! processes under strace, the folder is rebuilt as a cut at any moment could leave
//! it, and opened again. Knows nothing of consensus or of the ledger.
//!
//! Every acknowledged entry and vote must be there, with its bytes, and nothing
//! that never was; the newest durable snapshot must be there and whole; and a node
//! must start: one that refuses after each power failure is of no use. A flipped
//! bit in any file must be noticed, or do no harm.

mod check;
mod disk;
mod flip;
mod history;
mod life;
mod record;
mod serve;
mod trace;

use std::{
    collections::{BTreeMap, VecDeque},
    error::Error,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use rand::{
    Rng, SeedableRng,
    rngs::StdRng,
    seq::{IndexedRandom as _, IteratorRandom as _},
};
use serde::Serialize;

use self::{
    check::{Verdict, Whole, judge},
    disk::{Cut, Fate, Names, Tree},
    history::{History, Note},
    record::{Recorder, Recording},
    trace::{Call, Step},
};

pub use life::live;
pub use record::missing;
pub use serve::{ServePlan, ServeReport, cut_serve};

/// What can go wrong here goes wrong for whoever runs it.
pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const NODE_ID: u64 = 1;
/// Cuts that share recordings.
const ROUND: usize = 200;
/// Recordings of a round that begin where a cut left a folder.
const AFTER_CUTS: usize = 6;
const LIVES: u64 = 4;
const DEMANDS: u32 = 60;
/// Violations that are described; all are counted.
const TOLD: usize = 20;

/// What is to be tried.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How often power is cut.
    pub cuts: usize,
    /// How often bits are flipped.
    pub flips: usize,
    /// Decides everything but the moments at which threads run.
    pub seed: u64,
    /// The program whose `live` command is [`live`].
    pub program: PathBuf,
    /// Where folders that break a promise are kept.
    pub keep: Option<PathBuf>,
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Cuts by how names and unsynced writes were treated.
    pub cuts: BTreeMap<String, usize>,
    /// Stores that refused to start after a cut alone, by what they said.
    pub cut_refusals: BTreeMap<String, usize>,
    /// Cuts while a store was opened, and before it had told anything.
    pub cuts_while_opening: usize,
    /// Flips in a folder as a killed process leaves it, by file: they did no harm, or
    /// were refused.
    pub flips: BTreeMap<String, FlipCount>,
    /// Flips in a folder that a cut left.
    pub flips_after_cut: BTreeMap<String, FlipCount>,
    /// A cut alone broke a promise.
    pub cut_violations: usize,
    /// A flip broke one.
    pub flip_violations: usize,
    /// A flip took what was acknowledged within the last moments, before the watermark
    /// said it: the process was killed, or the power cut, in just those moments.
    pub flips_ahead_of_watermark: usize,
    /// The most bytes that were unsynced at one moment.
    pub unsynced_bytes_max: usize,
    /// Recordings, and the steps in them.
    pub recordings: usize,
    /// Beginnings and ends of system calls that concern the folder.
    pub steps: usize,
    /// Some of the violations, in words.
    pub told: Vec<String>,
}

/// What came of flips.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct FlipCount {
    /// Everything was there all the same.
    pub harmless: usize,
    /// The store said that it is damaged.
    pub refused: usize,
    /// Something was lost without a word.
    pub silent: usize,
}

/// Cuts power and flips bits.
///
/// # Errors
/// When something cannot be recorded. What a store did wrong is in the report.
pub fn run(plan: &Plan) -> Outcome<Report> {
    let mut report = Report::default();
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let rounds = plan.cuts.div_ceil(ROUND).max(1);
    for round in 0..rounds {
        let share = |all: usize| (all * (round + 1) / rounds) - (all * round / rounds);
        let (cuts, flips) = (share(plan.cuts), share(plan.flips));
        // Nothing of it is there at first. A name alone has no folder before it.
        let place = if round % 2 == 0 {
            "srv/leasehold/data"
        } else {
            "data"
        };
        let mut origins = VecDeque::from([Origin {
            place: place.into(),
            ..Origin::default()
        }]);
        for number in 0..=AFTER_CUTS {
            let Some(origin) = origins.pop_front() else {
                break;
            };
            // Half of all in the first recording, which is the longest.
            let share = |all: usize| match number {
                0 => all.div_ceil(2),
                _ => (all / 2).div_ceil(AFTER_CUTS),
            };
            let taken = Taken {
                cuts: share(cuts),
                flips: share(flips),
                origins: if number == 0 { AFTER_CUTS } else { 1 },
            };
            let recording = record(plan, &origin, &mut rng, number == 0)?;
            origins.extend(try_out(
                plan,
                &origin,
                &recording,
                &taken,
                &mut rng,
                &mut report,
            )?);
        }
    }
    Ok(report)
}

/// A folder to go on from, and what is known of it.
#[derive(Clone, Debug, Default)]
struct Origin {
    tree: Tree,
    history: History,
    /// The data folder, below the root.
    place: PathBuf,
}

/// How much is tried in one recording.
struct Taken {
    cuts: usize,
    flips: usize,
    /// Folders that cuts left, to go on from.
    origins: usize,
}

fn record(plan: &Plan, origin: &Origin, rng: &mut StdRng, first: bool) -> Outcome<Recording> {
    let mut recorder = Recorder::new(origin.tree.clone())?;
    for _ in 0..if first { LIVES } else { 1 } {
        let status = recorder
            .strace()
            .arg(&plan.program)
            .arg("live")
            // As a person types it: absolute, or relative.
            .arg(match origin.place.components().count() {
                1 => origin.place.clone(),
                _ => recorder.root().join(&origin.place),
            })
            .arg(recorder.notes())
            .arg(rng.random::<u64>().to_string())
            .arg(if first { DEMANDS } else { DEMANDS / 2 }.to_string())
            .status()?;
        // strace ends as its process did.
        if !status.success() && std::os::unix::process::ExitStatusExt::signal(&status) != Some(9) {
            return Err(format!("the recorded process failed: {status}").into());
        }
        recorder.ended()?;
    }
    recorder.finish()
}

/// A folder to be judged.
struct Trial {
    tree: Tree,
    history: History,
    what: What,
    place: PathBuf,
    /// The folder is to be gone on from.
    origin: bool,
}

enum What {
    Cut {
        cut: Cut,
        step: usize,
    },
    Flip {
        file: PathBuf,
        place: usize,
        after_cut: bool,
        step: usize,
        /// The watermark says everything that was acknowledged.
        covered: bool,
    },
}

fn try_out(
    plan: &Plan,
    origin: &Origin,
    recording: &Recording,
    taken: &Taken,
    rng: &mut StdRng,
    report: &mut Report,
) -> Outcome<Vec<Origin>> {
    report.recordings += 1;
    report.steps += recording.steps.len();
    let workers = thread::available_parallelism().map_or(2, usize::from);
    let (trials, queue) = sync_channel(workers);
    let (verdicts, judged) = sync_channel(workers);
    let queue = Mutex::new(queue);
    thread::scope(|scope| {
        for _ in 0..workers {
            let (queue, verdicts) = (&queue, verdicts.clone());
            scope.spawn(move || work(queue, &verdicts));
        }
        drop(verdicts);
        let made = scope.spawn({
            let seed = rng.random();
            move || make(origin, recording, taken, seed, &trials)
        });
        // All are taken before an error ends it: whoever makes them waits otherwise.
        let counted: Vec<Outcome<Option<Origin>>> = judged
            .into_iter()
            .map(|(trial, verdict)| report.count(plan, trial, verdict?))
            .collect();
        let unsynced = made.join().map_err(|_| "making trials panicked")??;
        report.unsynced_bytes_max = report.unsynced_bytes_max.max(unsynced);
        let counted: Vec<Option<Origin>> = counted.into_iter().collect::<Outcome<_>>()?;
        Ok(counted.into_iter().flatten().collect())
    })
}

/// Walks through a recording and cuts the power at random moments of it.
fn make(
    origin: &Origin,
    recording: &Recording,
    taken: &Taken,
    seed: u64,
    trials: &SyncSender<Trial>,
) -> Outcome<usize> {
    let mut rng = StdRng::seed_from_u64(seed);
    let steps = recording.steps.len();
    let heard: Vec<usize> = (1..)
        .zip(&recording.steps)
        .filter(|(_, step)| is_acknowledgement(step))
        .map(|(after, _)| after)
        .collect();
    let mut moments = |count: usize| {
        // Half of them just after somebody heard that something is durable.
        let any = |rng: &mut StdRng| rng.random_range(0..=steps);
        let mut chosen: Vec<usize> = (0..count)
            .map(|number| match heard.choose(&mut rng) {
                Some(after) if number % 2 == 0 => *after,
                _ => any(&mut rng),
            })
            .collect();
        chosen.sort_unstable();
        VecDeque::from(chosen)
    };
    let (mut cuts, mut flips) = (moments(taken.cuts), moments(taken.flips));
    let go_on = (0..taken.cuts).choose_multiple(&mut rng, taken.origins);
    let (mut disk, mut history) = (recording.disk()?, origin.history.clone());
    let (mut number, mut unsynced) = (0, 0);
    for step in 0..=steps {
        while cuts.front() == Some(&step) {
            cuts.pop_front();
            let cut = disk.draw(&mut rng);
            let trial = Trial {
                tree: disk.cut(&cut, &mut rng),
                history: history.clone(),
                what: What::Cut { cut, step },
                place: origin.place.clone(),
                origin: go_on.contains(&number),
            };
            number += 1;
            trials.send(trial)?;
        }
        while flips.front() == Some(&step) {
            flips.pop_front();
            // Half of them in a folder that was left by a cut.
            let after_cut = rng.random();
            let mut tree = if after_cut {
                disk.cut(&disk.draw(&mut rng), &mut rng)
            } else {
                disk.as_it_is(&mut rng)
            };
            let covered = history.is_covered(&tree, &origin.place)?;
            let Some((file, place)) = flip::flip(&mut tree, &mut rng) else {
                continue;
            };
            trials.send(Trial {
                tree,
                history: history.clone(),
                what: What::Flip {
                    file,
                    place,
                    after_cut,
                    step,
                    covered,
                },
                place: origin.place.clone(),
                origin: false,
            })?;
        }
        let Some(next) = recording.steps.get(step) else {
            break;
        };
        disk.step(next)?;
        unsynced = unsynced.max(disk.unsynced_bytes());
        if let Step::Begin {
            call: Call::Said { bytes },
            ..
        } = next
            && let Ok(note) = serde_json::from_slice::<Note>(bytes)
        {
            history
                .note(note)
                .map_err(|error| format!("without any cut: {error}"))?;
        }
    }
    Ok(unsynced)
}

fn is_acknowledgement(step: &Step) -> bool {
    let Step::Begin {
        call: Call::Said { bytes },
        ..
    } = step
    else {
        return false;
    };
    let note = serde_json::from_slice::<Note>(bytes);
    matches!(note, Ok(Note::Done | Note::SnapshotDone(_)))
}

fn work(queue: &Mutex<Receiver<Trial>>, verdicts: &SyncSender<(Trial, Outcome<Verdict>)>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(trial) = next else { return };
        let verdict = rebuilt(&trial.tree).map(|dir| {
            let verdict = judge(&dir.path().join(&trial.place), &trial.history);
            drop(dir);
            verdict
        });
        if verdicts.send((trial, verdict)).is_err() {
            return;
        }
    }
}

/// A folder with what is in the tree, in memory where the machine has such a place:
/// whether it is durable does not matter any more.
fn rebuilt(tree: &Tree) -> Outcome<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let dir = match tempfile::tempdir_in(memory) {
        Ok(dir) => dir,
        Err(_) => tempfile::tempdir()?,
    };
    tree.write(dir.path())?;
    Ok(dir)
}

impl Report {
    /// Nothing was lost, and every store started after a cut alone.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.cut_violations == 0 && self.flip_violations == 0 && self.cut_refusals.is_empty()
    }

    fn count(&mut self, plan: &Plan, trial: Trial, verdict: Verdict) -> Outcome<Option<Origin>> {
        let (describes, is_cut) = match &trial.what {
            What::Cut { cut, step } => {
                *self.cuts.entry(cut.name()).or_default() += 1;
                if trial.history.joined.is_none() {
                    self.cuts_while_opening += 1;
                }
                (format!("cut at step {step} ({cut:?})"), true)
            }
            What::Flip {
                file,
                place,
                after_cut,
                step,
                ..
            } => {
                let counts = match after_cut {
                    true => &mut self.flips_after_cut,
                    false => &mut self.flips,
                };
                let kind = kind_of(file.strip_prefix(&trial.place).unwrap_or(file));
                let count = counts.entry(kind).or_default();
                match &verdict {
                    Verdict::Whole(_) => count.harmless += 1,
                    Verdict::Refused { .. } => count.refused += 1,
                    Verdict::Broken(_) => count.silent += 1,
                }
                let when = if *after_cut { "after a cut " } else { "" };
                let file = file.display();
                (
                    format!("flip in {file} at {place}, {when}at step {step}"),
                    false,
                )
            }
        };
        let bad = match verdict {
            Verdict::Whole(whole) => {
                return Ok(trial.origin.then(|| Origin::after(&trial, *whole)));
            }
            Verdict::Refused { .. } if !is_cut => return Ok(None),
            Verdict::Refused { code, says } => {
                let detail = says.split(". Keep the folder").next().unwrap_or_default();
                let detail = match detail.split_once(trial.place.to_str().unwrap_or_default()) {
                    Some((_, below)) => below,
                    None => detail,
                };
                // Which position it was does not matter.
                let detail: String = detail
                    .chars()
                    .filter(|sign| !sign.is_ascii_digit())
                    .take(100)
                    .collect();
                *self
                    .cut_refusals
                    .entry(format!("{code}: {detail}"))
                    .or_default() += 1;
                format!("{describes}: refused: {says}")
            }
            Verdict::Broken(how) => {
                match &trial.what {
                    What::Cut { .. } => self.cut_violations += 1,
                    What::Flip { covered: true, .. } => self.flip_violations += 1,
                    What::Flip { covered: false, .. } => {
                        self.flips_ahead_of_watermark += 1;
                        return Ok(None);
                    }
                }
                format!("{describes}: {how}")
            }
        };
        if self.told.len() < TOLD {
            if let Some(keep) = &plan.keep {
                let folder = keep.join(format!("{}", self.told.len()));
                trial.tree.write(&folder)?;
                std::fs::write(folder.join("what"), &bad)?;
            }
            self.told.push(bad);
        }
        Ok(None)
    }
}

impl Origin {
    fn after(trial: &Trial, whole: Whole) -> Self {
        Self {
            tree: trial.tree.clone(),
            history: History {
                kept: whole.state,
                wanted: Vec::new(),
                joined: trial.history.joined,
                snapshot: whole.snapshot,
                snapshots_wanted: Vec::new(),
            },
            place: trial.place.clone(),
        }
    }
}

impl Cut {
    fn name(&self) -> String {
        let names = match self.names {
            Names::Posix => "posix",
            Names::Journal => "journal",
        };
        let fate = match self.fate {
            Fate::Lost => "lost",
            Fate::Kept => "kept",
            Fate::Prefix => "prefix",
            Fate::Mixed => "mixed",
        };
        format!("{names} {fate}")
    }
}

/// What a file is, without the numbers in its name.
fn kind_of(file: &Path) -> String {
    let name = file.to_string_lossy();
    name.split(['/', '.'])
        .filter(|part| !part.starts_with(|sign: char| sign.is_ascii_digit()))
        .collect::<Vec<_>>()
        .join("/")
}
