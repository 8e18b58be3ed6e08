//! Logs of what became of every request, one JSON line each: what a replay needs.
//! Knows no limit and no gateway.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// What a request was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Admitted.
    Admitted,
    /// Denied or empty.
    Refused,
    /// Nobody to ask.
    Unavailable,
    /// Allowed by the failure mode.
    Degraded,
}

/// One request of one unit, both moments read from `clock_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedRequest {
    /// The clock before the call, in nanoseconds.
    pub call_ns: u64,
    /// The clock after the return, in nanoseconds.
    pub return_ns: u64,
    /// Whether it had to wait for a message: it could be answered neither from what
    /// was held nor by a refusal that still stood. However long it took.
    pub waited: bool,
    /// The answer.
    pub told: Told,
}

/// Appends requests to a file.
#[derive(Debug)]
pub struct RequestWriter(BufWriter<File>);

impl RequestWriter {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(BufWriter::new(File::create(path)?)))
    }

    /// Adds one request.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, request: &NotedRequest) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, request)?;
        self.0.write_all(b"\n")
    }

    /// Hands what is buffered to the operating system.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The requests of a gateway that ended in peace.
///
/// # Errors
/// When the file cannot be read or holds something else.
pub fn read_requests(path: &Path) -> io::Result<Vec<NotedRequest>> {
    fs::read_to_string(path)?
        .lines()
        .map(|line| serde_json::from_str(line).map_err(io::Error::other))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_request_survives_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("requests");
        let request = |waited, told| NotedRequest {
            call_ns: 7,
            return_ns: 9,
            waited,
            told,
        };
        let noted = [
            request(false, Told::Admitted),
            request(true, Told::Refused),
            request(true, Told::Unavailable),
            request(false, Told::Degraded),
        ];
        let mut log = RequestWriter::create(&path).unwrap();
        for request in &noted {
            log.write(request).unwrap();
        }
        log.flush().unwrap();
        assert_eq!(read_requests(&path).unwrap(), noted);
    }
}
