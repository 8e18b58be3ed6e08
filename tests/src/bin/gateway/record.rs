//! What this gateway writes down: admissions, what became of requests, how long they
//! waited, and what else checkers want to know. Knows neither client nor load.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_checkers::{HistoryWriter, Pause, Record as Noted, Request};
use leasehold_tests::{
    Admission, AdmissionWriter, NotedRequest, RequestWriter, Summary, Told, clock_ns,
};

/// Waits of so long are all noted, of shorter ones some.
const SLOW: Duration = Duration::from_millis(400);
const ONE_IN: u64 = 8;
/// A request that waits for so long is noted while it waits.
pub(crate) const OVERDUE: Duration = Duration::from_secs(5);
const PULSE: Duration = Duration::from_millis(20);
/// A process that misses its pulse for so long did not run.
const PAUSED: Duration = Duration::from_millis(100);

/// The log and the counts, written by all streams of requests.
pub(crate) struct Record {
    log: AdmissionWriter,
    requests: Option<RequestWriter>,
    notes: Option<Notes>,
    pub(crate) summary: Summary,
}

/// Requests that wait, and what is noted of them and of others.
struct Notes {
    gateway: String,
    history: HistoryWriter,
    next: u64,
    pending: BTreeMap<u64, Pending>,
}

#[derive(Clone)]
struct Pending {
    key: Arc<str>,
    call_ns: u64,
    patience: Duration,
}

/// Shared by all streams of requests.
pub(crate) type Shared = Arc<Mutex<Record>>;

pub(crate) fn lock(shared: &Shared) -> MutexGuard<'_, Record> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Record {
    pub(crate) fn create(
        holder: &str,
        log: &Path,
        requests: Option<&Path>,
        history: Option<&Path>,
    ) -> io::Result<Self> {
        let notes = history.map(HistoryWriter::create).transpose()?;
        Ok(Self {
            log: AdmissionWriter::create(log)?,
            requests: requests.map(RequestWriter::create).transpose()?,
            notes: notes.map(|history| Notes {
                gateway: holder.to_owned(),
                history,
                next: 0,
                pending: BTreeMap::new(),
            }),
            summary: Summary::default(),
        })
    }

    /// A request begins; gives its number.
    pub(crate) fn begin(&mut self, key: &Arc<str>, call_ns: u64, patience: Duration) -> u64 {
        let Some(notes) = &mut self.notes else {
            return 0;
        };
        notes.next += 1;
        notes.pending.insert(
            notes.next,
            Pending {
                key: Arc::clone(key),
                call_ns,
                patience,
            },
        );
        notes.next
    }

    /// A request has its answer.
    pub(crate) fn end(&mut self, number: u64, waited: bool, return_ns: u64) -> io::Result<()> {
        let Some(notes) = &mut self.notes else {
            return Ok(());
        };
        let Some(pending) = notes.pending.remove(&number) else {
            return Ok(());
        };
        let is_slow = return_ns.saturating_sub(pending.call_ns) > nanos(SLOW);
        if is_slow || (waited && number.is_multiple_of(ONE_IN)) {
            notes.request(&pending, Some(return_ns), return_ns)?;
        }
        Ok(())
    }

    /// What a request was told, in the counts and among the requests.
    pub(crate) fn told(
        &mut self,
        told: Told,
        call_ns: u64,
        return_ns: u64,
        waited: bool,
    ) -> io::Result<()> {
        self.summary.offered += 1;
        match told {
            Told::Admitted => self.summary.admitted += 1,
            Told::Degraded => self.summary.degraded += 1,
            Told::Unavailable => self.summary.unavailable += 1,
            Told::Refused => self.summary.refused += 1,
        }
        if let Some(requests) = &mut self.requests {
            requests.write(&NotedRequest {
                call_ns,
                return_ns,
                waited,
                told,
            })?;
        }
        Ok(())
    }

    /// Units were admitted.
    pub(crate) fn admitted(
        &mut self,
        key: &str,
        units: u64,
        call_ns: u64,
        return_ns: u64,
    ) -> io::Result<()> {
        self.log.write(
            key,
            Admission {
                units,
                call_ns,
                return_ns,
            },
        )
    }

    /// Whatever else is to be known, made with the gateway's name.
    pub(crate) fn note(&mut self, noted: impl FnOnce(String) -> Noted) -> io::Result<()> {
        match &mut self.notes {
            Some(notes) => notes.history.write(&noted(notes.gateway.clone())),
            None => Ok(()),
        }
    }

    /// Notes those that should have returned long ago.
    pub(crate) fn overdue(&mut self) -> io::Result<()> {
        let Some(notes) = &mut self.notes else {
            return Ok(());
        };
        let now = clock_ns();
        let overdue: Vec<Pending> = notes
            .pending
            .values()
            .filter(|pending| now.saturating_sub(pending.call_ns) > nanos(OVERDUE))
            .cloned()
            .collect();
        for pending in overdue {
            notes.request(&pending, None, now)?;
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.log.flush()?;
        if let Some(notes) = &mut self.notes {
            notes.history.flush()?;
        }
        self.requests.as_mut().map_or(Ok(()), RequestWriter::flush)
    }
}

impl Notes {
    fn request(
        &mut self,
        pending: &Pending,
        return_ns: Option<u64>,
        looked_ns: u64,
    ) -> io::Result<()> {
        self.history.write(&Noted::Request(Request {
            gateway: self.gateway.clone(),
            key: pending.key.as_ref().to_owned(),
            call_ns: pending.call_ns,
            return_ns,
            looked_ns,
            patience_ns: nanos(pending.patience),
        }))
    }
}

/// Notes when this process could not run: stopped, or without a processor.
pub(crate) fn take_pulse(shared: Shared) {
    std::thread::spawn(move || {
        let mut last = clock_ns();
        loop {
            std::thread::sleep(PULSE);
            let now = clock_ns();
            if now.saturating_sub(last) > nanos(PAUSED) {
                let noted = lock(&shared).note(|gateway| {
                    Noted::Pause(Pause {
                        gateway,
                        from_ns: last,
                        to_ns: now,
                    })
                });
                if let Err(error) = noted {
                    eprintln!("gateway: {error}");
                }
            }
            last = now;
        }
    });
}
