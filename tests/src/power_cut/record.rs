//! Recording: processes run under strace, one after the other on one folder, and
//! the trace is held against what is really there afterwards. Knows nothing of
//! what the processes do.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rand::{SeedableRng, rngs::StdRng};

use super::{
    Outcome,
    disk::{Disk, Tree},
    trace::{self, Call, Step},
};

/// A trace, and where it begins.
pub(super) struct Recording {
    /// The folder as it was, relative to [`Recording::root`].
    pub(super) start: Tree,
    /// What the traced processes took for the folder; it is gone.
    pub(super) root: PathBuf,
    pub(super) steps: Vec<Step>,
}

impl Recording {
    /// The disk at the beginning.
    pub(super) fn disk(&self) -> Outcome<Disk> {
        Disk::new(&self.root, &self.start)
    }
}

/// Why nothing can be recorded on this machine; none: it can.
#[must_use]
pub fn missing() -> Option<String> {
    let tried = Command::new("strace")
        .args(["-f", "-e", "trace=none", "true"])
        .stdin(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "strace cannot trace here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("strace cannot be started: {error}")),
    }
}

/// A folder whose processes are recorded.
pub(super) struct Recorder {
    work: tempfile::TempDir,
    root: PathBuf,
    start: Tree,
    steps: Vec<Step>,
}

impl Recorder {
    pub(super) fn new(start: Tree) -> Outcome<Self> {
        let work = tempfile::Builder::new().prefix("power-cut-").tempdir()?;
        // As the traced processes see it, whatever links lead to it.
        let root = fs::canonicalize(work.path())?.join("root");
        start.write(&root)?;
        Ok(Self {
            work,
            root,
            start,
            steps: Vec::new(),
        })
    }

    /// The working folder of recorded processes.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Where recorded processes may say something.
    pub(super) fn notes(&self) -> PathBuf {
        self.root.with_file_name("notes")
    }

    fn output(&self) -> PathBuf {
        self.work.path().join("trace")
    }

    /// strace, to be given a program. [`Recorder::ended`] comes after each.
    pub(super) fn strace(&self) -> Command {
        let mut command = Command::new("strace");
        command
            .args(["-f", "-y", "-xx", "--seccomp-bpf", "-s", "1000000000"])
            .args(["-e", &format!("trace={}", trace::TRACED), "-o"])
            .arg(self.output())
            .current_dir(&self.root)
            .stdin(Stdio::null());
        command
    }

    /// Reads the trace of a process that has ended.
    pub(super) fn ended(&mut self) -> Outcome<()> {
        let text = fs::read_to_string(self.output())?;
        let mut steps = trace::read(&text, &self.root, &self.notes())?;
        forget_ends_of_the_killed(&text, &mut steps);
        let mut unfinished: BTreeMap<u32, &Call> = BTreeMap::new();
        for step in &steps {
            match step {
                Step::Begin { thread, call } => unfinished.insert(*thread, call),
                Step::End { thread, .. } => unfinished.remove(thread),
            };
        }
        // A call that was cut off by a SIGKILL may have done its work, or a part.
        let mut ends = Vec::new();
        for (thread, call) in unfinished {
            let result = done_by(call)?;
            ends.push(Step::End { thread, result });
        }
        self.steps.extend(steps);
        self.steps.extend(ends);
        Ok(())
    }

    /// Ends the recording.
    pub(super) fn finish(self) -> Outcome<Recording> {
        let recording = Recording {
            start: self.start,
            root: self.root.clone(),
            steps: self.steps,
        };
        let mut disk = recording.disk()?;
        for step in &recording.steps {
            disk.step(step)?;
        }
        let followed = disk.as_it_is(&mut StdRng::seed_from_u64(0));
        let real = Tree::read(&self.root)?;
        if followed != real {
            return Err(format!(
                "the trace does not explain the folder: {}; both are in {}",
                followed.difference(&real),
                self.work.keep().display()
            )
            .into());
        }
        Ok(recording)
    }
}

/// A thread that is killed while it leaves a call may have no registers left to read
/// the result from, and strace then prints what it last read of another thread. Whether
/// the last write of each is done is better seen from what is there.
fn forget_ends_of_the_killed(text: &str, steps: &mut Vec<Step>) {
    let killed = text.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let is_killed = rest.trim_start().starts_with("+++ killed");
        is_killed.then(|| thread.parse::<u32>().ok())?
    });
    for killed in killed {
        let mut own = (0..steps.len()).rev().filter(|place| {
            let (Step::Begin { thread, .. } | Step::End { thread, .. }) = &steps[*place];
            *thread == killed
        });
        let (Some(last), Some(before)) = (own.next(), own.next()) else {
            continue;
        };
        let is_write = |step: &Step| {
            matches!(
                step,
                Step::Begin {
                    call: Call::Write { at: Some(_), .. },
                    ..
                }
            )
        };
        if matches!(steps[last], Step::End { .. }) && is_write(&steps[before]) {
            steps.remove(last);
        }
    }
}

/// What a call that never returned would have returned, from what is there.
fn done_by(call: &Call) -> Outcome<i64> {
    let said = |done: bool| if done { 0 } else { -1 };
    Ok(match call {
        Call::Write {
            path,
            at: Some(at),
            bytes,
        } => {
            let content = fs::read(path)?;
            let there = content.get(usize::try_from(*at)?..).unwrap_or_default();
            let pairs = there.iter().zip(bytes);
            let same = pairs.take_while(|(one, other)| one == other).count();
            i64::try_from(same)?
        }
        Call::Write { path, at: None, .. } => {
            return Err(format!("a cut off write to {} is not followed", path.display()).into());
        }
        Call::Resize { path, length } => said(fs::metadata(path)?.len() == *length),
        Call::Open { path, .. } | Call::MakeDir { path } => said(path.exists()),
        Call::Unlink { path } => said(!path.exists()),
        Call::Rename { from, .. } => said(!from.exists()),
        Call::Sync { .. } | Call::Seek { .. } | Call::Said { .. } => -1,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// As strace wrote it: the second result is the first thread's.
    #[test]
    fn the_result_of_a_killed_threads_last_write_is_not_believed() {
        let text = "7 <... write resumed>) = 53\n8 <... pwrite64 resumed>) = 53\n\
                    8 +++ killed by SIGKILL +++\n7 +++ exited with 0 +++\n";
        let write = |thread| Step::Begin {
            thread,
            call: Call::Write {
                path: "file".into(),
                at: Some(0),
                bytes: vec![0; 100],
            },
        };
        let end = |thread| Step::End { thread, result: 53 };
        let mut steps = vec![write(7), write(8), end(7), end(8)];
        forget_ends_of_the_killed(text, &mut steps);
        assert_eq!(steps, [write(7), write(8), end(7)]);
    }
}
