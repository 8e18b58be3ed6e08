//! The one thread that writes. Knows nothing of what is written.
//!
//! Group commit: everything that waits is applied in the order in which it was
//! queued, one barrier makes all of it durable, then all callbacks are called in
//! the same order. After the first failure nothing is written any more: nobody
//! can know what a failed fsync left on disk, and a second one may claim success.

use std::{
    sync::{
        Mutex,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{Engine, Mark, StoreError, Watermark, Write};

/// Called when a request is durable, or never will be.
pub(super) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// How long a watermark may stay in the page cache. Each barrier writes one; this
/// bounds what a power failure can take from it without an fsync per barrier.
const WATERMARK_SYNC_EVERY: Duration = Duration::from_millis(20);
/// Requests taken into one group at most, so that callbacks are not delayed without end.
const GROUP_MAX: usize = 1024;

struct Request {
    writes: Vec<Write>,
    /// For the watermark: whose log it is.
    cluster_id: Option<u128>,
    done: Done,
}

/// A handle to the thread.
pub struct Wal {
    requests: Sender<Option<Request>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Wal {
    /// Starts the thread. `failed` is called once, when a write has failed.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(
        engine: Box<dyn Engine>,
        watermark: Watermark,
        failed: impl FnOnce(String) + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (requests, queue) = mpsc::channel();
        let path = watermark.path().to_path_buf();
        let mut writer = Writer {
            engine,
            pending: *watermark.mark(),
            watermark,
            watermark_synced: Instant::now(),
            watermark_dirty: false,
            latched: None,
            failed: Some(Box::new(failed)),
        };
        let thread = thread::Builder::new()
            .name("wal".to_owned())
            .spawn(move || writer.run(&queue))
            .map_err(|error| StoreError::io(path, &error))?;
        Ok(Self {
            requests,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Queues writes; `done` is called from the thread, in the order of requests.
    pub fn submit(&self, writes: Vec<Write>, done: Done) {
        self.send(Request {
            writes,
            cluster_id: None,
            done,
        });
    }

    /// Notes whose log it is, beside what is durable of it. It rides on the next
    /// watermark: a folder that lost it learns it again from the log.
    pub fn name_cluster(&self, cluster_id: u128) {
        self.send(Request {
            writes: Vec::new(),
            cluster_id: Some(cluster_id),
            done: Box::new(drop),
        });
    }

    fn send(&self, request: Request) {
        if let Err(mpsc::SendError(Some(request))) = self.requests.send(Some(request)) {
            (request.done)(Err(StoreError::Closed));
        }
    }

    /// Writes everything that is queued, then ends the thread and closes the engine.
    pub fn close(&self) {
        // An error means that the thread is gone already.
        let _ = self.requests.send(None);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        self.close();
    }
}

struct Writer {
    engine: Box<dyn Engine>,
    watermark: Watermark,
    /// What the next watermark says.
    pending: Mark,
    watermark_synced: Instant,
    watermark_dirty: bool,
    latched: Option<String>,
    failed: Option<Box<dyn FnOnce(String) + Send>>,
}

impl Writer {
    fn run(&mut self, queue: &Receiver<Option<Request>>) {
        let mut untidy = true;
        loop {
            let first = if untidy && self.latched.is_none() {
                match queue.try_recv() {
                    Err(TryRecvError::Empty) => {
                        untidy = self.tidy();
                        continue;
                    }
                    Err(TryRecvError::Disconnected) => break,
                    Ok(request) => request,
                }
            } else if self.watermark_dirty {
                match queue.recv_timeout(WATERMARK_SYNC_EVERY) {
                    Err(RecvTimeoutError::Timeout) => {
                        self.sync_watermark(true);
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(request) => request,
                }
            } else {
                match queue.recv() {
                    Err(_) => break,
                    Ok(request) => request,
                }
            };
            let Some(first) = first else { break };
            let mut group = vec![first];
            let mut closing = false;
            while group.len() < GROUP_MAX {
                match queue.try_recv() {
                    Ok(Some(request)) => group.push(request),
                    Ok(None) => {
                        closing = true;
                        break;
                    }
                    Err(_) => break,
                }
            }
            untidy |= self.commit(group);
            if closing {
                break;
            }
        }
        if self.latched.is_none() && self.engine.barrier().is_ok() {
            self.sync_watermark(true);
        }
    }

    /// Writes a group; true if it left work for `tidy`.
    fn commit(&mut self, group: Vec<Request>) -> bool {
        let mut untidy = false;
        let mut has_vote = false;
        let result = match &self.latched {
            Some(reason) => Err(StoreError::Latched(reason.clone())),
            None => {
                for write in group.iter().flat_map(|request| &request.writes) {
                    untidy |= matches!(write, Write::PurgeTo(_));
                    has_vote |= matches!(write, Write::Vote(_));
                }
                self.write_group(&group, has_vote)
            }
        };
        if let Err(error) = &result {
            self.latch(error);
        }
        for request in group {
            (request.done)(result.clone());
        }
        if result.is_ok() {
            self.sync_watermark(self.watermark_synced.elapsed() >= WATERMARK_SYNC_EVERY);
        }
        untidy
    }

    fn write_group(&mut self, group: &[Request], has_vote: bool) -> Result<(), StoreError> {
        for request in group {
            self.pending.cluster_id = request.cluster_id.or(self.pending.cluster_id);
            for write in &request.writes {
                self.note(write)?;
            }
            self.engine.write(&request.writes)?;
        }
        let started = Instant::now();
        self.engine.barrier()?;
        metrics::histogram!("leasehold_wal_sync_seconds").record(started.elapsed().as_secs_f64());
        // Before anybody hears of it: what was acknowledged is then known to be missing
        // whatever becomes of the log, unless the power fails before the next sync.
        if has_vote || self.pending != *self.watermark.mark() {
            self.watermark.write(self.pending)?;
            self.watermark_dirty = true;
        }
        if has_vote {
            self.watermark.sync()?;
            self.watermark_dirty = false;
        }
        Ok(())
    }

    fn note(&mut self, write: &Write) -> Result<(), StoreError> {
        match write {
            Write::Append { at, .. } => self.pending.last = Some(*at),
            Write::TruncateAfter(last) => {
                self.pending.last = *last;
                let promised = self.watermark.mark().last.map(|mark| mark.index);
                if promised > last.map(|last| last.index) {
                    // Lowered before the log is: a crash in between must not look
                    // like damage.
                    let lowered = Mark {
                        last: *last,
                        ..*self.watermark.mark()
                    };
                    self.watermark.write(lowered)?;
                    self.watermark.sync()?;
                }
            }
            Write::PurgeTo(at) => {
                if self.pending.last.is_none_or(|last| last.index < at.index) {
                    self.pending.last = Some(*at);
                }
            }
            Write::Vote(vote) => self.pending.vote = Some(*vote),
            Write::Committed(_) => {}
        }
        Ok(())
    }

    fn sync_watermark(&mut self, due: bool) {
        if !(due && self.watermark_dirty) {
            return;
        }
        match self.watermark.sync() {
            Ok(()) => {
                self.watermark_dirty = false;
                self.watermark_synced = Instant::now();
            }
            Err(error) => self.latch(&error),
        }
    }

    fn tidy(&mut self) -> bool {
        self.engine.tidy().unwrap_or_else(|error| {
            self.latch(&error);
            false
        })
    }

    fn latch(&mut self, error: &StoreError) {
        if self.latched.is_none() {
            self.latched = Some(error.to_string());
            // Whoever is told says it, once.
            tracing::debug!(%error, "the store failed; nothing is written any more");
            if let Some(failed) = self.failed.take() {
                failed(error.to_string());
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // The engine panicked: the thread is unwinding, and requests are lost.
        if thread::panicking()
            && let Some(failed) = self.failed.take()
        {
            failed("the storage engine panicked".to_owned());
        }
    }
}
