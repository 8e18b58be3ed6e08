//! The gateways: places, and the processes that take them one after another.
//! Knows no fault; what they saw is in the files that they leave behind.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use leasehold_checkers::{Pause, Record};

use super::{
    callers::Callers,
    ground::{CLIENT_PORT, Ground},
    host::Host,
    journal::Recorder,
    keys::{KeyPlan, PROBE},
    process::Process,
    quotas::QUOTAS,
};
use crate::clock_ns;

/// Gateways in their places.
#[derive(Debug)]
pub(crate) struct Fleet {
    folder: PathBuf,
    binary: PathBuf,
    keys: Vec<KeyPlan>,
    places: Vec<Place>,
    recorder: Recorder,
    callers: Option<Callers>,
    started: u64,
    logs: Vec<Log>,
    /// Those that ended by themselves, with what they said last.
    pub(crate) own_ends: Vec<String>,
}

#[derive(Debug, Default)]
struct Place {
    process: Option<Process>,
    holder: String,
    /// The nodes that it was told of.
    nodes: Vec<u64>,
    /// When it was stopped, if it is.
    paused_ns: Option<u64>,
}

/// What one process left behind.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) admissions: PathBuf,
    pub(crate) history: PathBuf,
    /// How much of it was looked at for the probe's admissions.
    seen: u64,
}

impl Fleet {
    pub(crate) fn new(
        folder: &Path,
        binary: &Path,
        keys: Vec<KeyPlan>,
        size: u64,
        recorder: Recorder,
        callers: Option<Callers>,
    ) -> Self {
        Self {
            folder: folder.to_owned(),
            binary: binary.to_owned(),
            keys,
            places: (0..size).map(|_| Place::default()).collect(),
            recorder,
            callers,
            started: 0,
            logs: Vec::new(),
            own_ends: Vec::new(),
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.places.len()
    }

    /// Everything that gateways left behind so far.
    pub(crate) fn logs(&self) -> &[Log] {
        &self.logs
    }

    /// Starts a gateway in every place that has none.
    pub(crate) fn fill(&mut self, ground: &Ground, nodes: &[u64]) -> io::Result<()> {
        for place in 0..self.places.len() {
            if self.places[place].process.is_none() {
                self.start(place, ground, nodes)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, place: usize, ground: &Ground, nodes: &[u64]) -> io::Result<()> {
        self.started += 1;
        let holder = format!("gateway-{}", self.started);
        let file = |what: &str| self.folder.join(format!("{holder}.{what}"));
        let log = Log {
            admissions: file("admissions"),
            history: file("history"),
            seen: 0,
        };
        let host = host(place);
        let mut command = ground.command(host, &self.binary);
        command
            .arg("--holder")
            .arg(&holder)
            .arg("--log")
            .arg(&log.admissions)
            .arg("--history")
            .arg(&log.history);
        for node in nodes {
            let address = ground.advertised(Host::Node(*node))?;
            command
                .arg("--endpoint")
                .arg(format!("http://{address}:{CLIENT_PORT}"));
        }
        let gateways = u64::try_from(self.places.len()).unwrap_or(1);
        let keys = self.keys.iter().flat_map(|key| key.loads(place, gateways));
        for load in keys.chain(QUOTAS.iter().map(|plan| plan.load(gateways))) {
            command.arg("--load").arg(load.to_string());
        }
        let said = File::create(file("log"))?;
        let process = Process::start(
            command
                .stdin(Stdio::piped())
                .stdout(said.try_clone()?)
                .stderr(said),
        )?;
        if let Some(callers) = &self.callers {
            callers.started(process.id(), host);
        }
        self.logs.push(log);
        self.places[place] = Place {
            process: Some(process),
            holder,
            nodes: nodes.to_vec(),
            paused_ns: None,
        };
        Ok(())
    }

    /// Ends one with SIGKILL.
    pub(crate) fn kill(&mut self, place: usize) {
        if let Some(process) = self.places[place].process.take() {
            let before = clock_ns();
            process.kill();
            // What it had not answered it never will.
            self.recorder.note(&Record::Pause(Pause {
                gateway: self.places[place].holder.clone(),
                from_ns: before,
                to_ns: u64::MAX,
            }));
        }
    }

    /// Ends all at one moment.
    pub(crate) fn kill_all(&mut self) {
        for place in &mut self.places {
            if let Some(process) = &mut place.process {
                process.strike();
            }
        }
        for place in 0..self.places.len() {
            self.kill(place);
        }
    }

    pub(crate) fn pause(&mut self, place: usize) {
        let place = &mut self.places[place];
        if let Some(process) = &mut place.process {
            place.paused_ns = Some(clock_ns());
            process.pause();
        }
    }

    pub(crate) fn resume(&mut self, place: usize) {
        let place = &mut self.places[place];
        if let (Some(process), Some(from_ns)) = (&mut place.process, place.paused_ns.take()) {
            process.resume();
            self.recorder.note(&Record::Pause(Pause {
                gateway: place.holder.clone(),
                from_ns,
                to_ns: clock_ns(),
            }));
        }
    }

    /// Notes those that ended by themselves; `fill` starts them again.
    pub(crate) fn supervise(&mut self) {
        for place in &mut self.places {
            if let Some(status) = place.process.as_mut().and_then(Process::ended) {
                let log = self.folder.join(format!("{}.log", place.holder));
                let said = std::fs::read_to_string(log).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(3).collect();
                self.own_ends
                    .push(format!("{} ended with {status}: {last:?}", place.holder));
                place.process = None;
            }
        }
    }

    /// Lets those end in peace that know fewer than `least` of these nodes, so that
    /// `fill` starts others. Says who did not end in time.
    pub(crate) fn renew(&mut self, nodes: &[u64], least: usize, within: Duration) -> Vec<String> {
        let stale: Vec<usize> = (0..self.places.len())
            .filter(|place| {
                let known = self.places[*place].nodes.iter();
                known.filter(|node| nodes.contains(node)).count() < least
            })
            .collect();
        self.finish(&stale, within)
    }

    /// Lets all end in peace. Says who did not in time.
    pub(crate) fn finish_all(&mut self, within: Duration) -> Vec<String> {
        let all: Vec<usize> = (0..self.places.len()).collect();
        self.finish(&all, within)
    }

    fn finish(&mut self, places: &[usize], within: Duration) -> Vec<String> {
        let mut stuck = Vec::new();
        for place in places {
            if let Some(process) = &mut self.places[*place].process {
                process.close_input();
            }
        }
        for place in places {
            let Some(mut process) = self.places[*place].process.take() else {
                continue;
            };
            let holder = &self.places[*place].holder;
            match process.wait(within) {
                Some(status) if status.success() => {}
                Some(status) => stuck.push(format!("{holder} ended with {status}")),
                None => stuck.push(format!(
                    "{holder} did not end within {} s",
                    within.as_secs()
                )),
            }
        }
        stuck
    }

    /// The first admission of the probe that was called at `since_ns` or later and
    /// was not looked at before: when it returned.
    pub(crate) fn probed_since(&mut self, since_ns: u64) -> Option<u64> {
        let needle = format!("\"key\":\"{PROBE}\"");
        let mut first: Option<u64> = None;
        for log in &mut self.logs {
            let Some(fresh) = unread(&log.admissions, log.seen) else {
                continue;
            };
            // The last line may not be whole yet.
            let whole = fresh.rfind('\n').map_or(0, |end| end + 1);
            log.seen += whole as u64;
            for line in fresh[..whole].lines().filter(|line| line.contains(&needle)) {
                let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else {
                    continue;
                };
                if line["call_ns"]
                    .as_u64()
                    .is_some_and(|call| call >= since_ns)
                    && let Some(at) = line["return_ns"].as_u64()
                {
                    first = Some(first.map_or(at, |first| first.min(at)));
                }
            }
        }
        first
    }
}

/// Where a place is.
pub(crate) fn host(place: usize) -> Host {
    Host::Gateway(u64::try_from(place).unwrap_or(u64::MAX))
}

fn unread(path: &Path, seen: u64) -> Option<String> {
    let mut file = File::open(path).ok()?;
    if file.metadata().ok()?.len() <= seen {
        return None;
    }
    file.seek(SeekFrom::Start(seen)).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    Some(text)
}
