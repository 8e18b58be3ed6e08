//! How much an agent does at once: connections and requests. Knows neither.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for so many connections, and so many requests at work.
#[derive(Debug)]
pub(crate) struct Room {
    connections: Places,
    requests: Places,
}

#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

/// A place that is given back when it is dropped.
#[derive(Debug)]
#[must_use = "a place that is dropped is free again"]
pub(crate) struct Place(#[expect(dead_code, reason = "is held")] OwnedSemaphorePermit);

impl Places {
    fn new(most: usize) -> Self {
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    fn take(&self) -> Option<Place> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        Some(Place(permit))
    }

    fn taken(&self) -> usize {
        self.most.saturating_sub(self.free.available_permits())
    }
}

impl Room {
    pub(crate) fn new(connections_max: usize, requests_max: usize) -> Self {
        Self {
            connections: Places::new(connections_max),
            requests: Places::new(requests_max),
        }
    }

    /// None: there are as many connections as may be.
    pub(crate) fn connection(&self) -> Option<Place> {
        self.connections.take()
    }

    /// None: as many requests are at work as may be.
    pub(crate) fn request(&self) -> Option<Place> {
        self.requests.take()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.taken()
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.taken()
    }
}
