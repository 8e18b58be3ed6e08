//! Admission logs: one JSON line per admission. Does not know who wrote them or
//! which policy they follow.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One admission: the units were taken at some instant between call and return,
/// both read from one host's `CLOCK_MONOTONIC_RAW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Units admitted.
    pub units: u64,
    /// The clock before the call, in nanoseconds.
    pub call_ns: u64,
    /// The clock after the return, in nanoseconds.
    pub return_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    key: std::borrow::Cow<'a, str>,
    units: u64,
    call_ns: u64,
    return_ns: u64,
}

/// Why a log could not be read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file could not be read.
    #[error("cannot read the admission log {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A line is no admission.
    #[error("{path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// Appends admissions to a file.
#[derive(Debug)]
pub struct AdmissionWriter<W: Write = BufWriter<File>> {
    out: W,
}

impl AdmissionWriter {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            out: BufWriter::new(File::create(path)?),
        })
    }
}

impl<W: Write> AdmissionWriter<W> {
    /// Adds one admission.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, key: &str, admission: Admission) -> io::Result<()> {
        let Admission {
            units,
            call_ns,
            return_ns,
        } = admission;
        let line = Line {
            key: key.into(),
            units,
            call_ns,
            return_ns,
        };
        serde_json::to_writer(&mut self.out, &line)?;
        self.out.write_all(b"\n")
    }

    /// Hands what is buffered to the operating system.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Admissions by key, merged from the logs of any number of gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLog {
    by_key: BTreeMap<String, Vec<Admission>>,
}

impl AdmissionLog {
    /// Adds one admission.
    pub fn add(&mut self, key: &str, admission: Admission) {
        if let Some(admissions) = self.by_key.get_mut(key) {
            admissions.push(admission);
        } else {
            self.by_key.insert(key.to_owned(), vec![admission]);
        }
    }

    /// Adds a gateway's log. A last line without its end is what a killed
    /// gateway leaves behind; it is left out.
    ///
    /// # Errors
    /// When the file cannot be read or holds something else.
    pub fn read(&mut self, path: &Path) -> Result<(), LogError> {
        let io = |source| LogError::Io {
            path: path.to_owned(),
            source,
        };
        let mut lines = BufReader::new(File::open(path).map_err(io)?);
        let mut text = String::new();
        for line in 1.. {
            text.clear();
            if lines.read_line(&mut text).map_err(io)? == 0 || !text.ends_with('\n') {
                break;
            }
            let wrong = |reason| LogError::Line {
                path: path.to_owned(),
                line,
                reason,
            };
            let Line {
                key,
                units,
                call_ns,
                return_ns,
            } = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            if return_ns < call_ns {
                return Err(wrong("it returned before it was called".to_owned()));
            }
            self.add(
                &key,
                Admission {
                    units,
                    call_ns,
                    return_ns,
                },
            );
        }
        Ok(())
    }

    /// The admissions of one key, in no particular order.
    #[must_use]
    pub fn of(&self, key: &str) -> &[Admission] {
        self.by_key.get(key).map_or(&[], Vec::as_slice)
    }

    /// The keys that anything was admitted on.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.by_key.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn read(text: &[u8]) -> Result<AdmissionLog, String> {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!(
            "leasehold-admissions-{}-{number}",
            std::process::id()
        ));
        std::fs::write(&path, text).unwrap();
        let mut log = AdmissionLog::default();
        let outcome = log.read(&path);
        std::fs::remove_file(&path).unwrap();
        outcome.map(|()| log).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = AdmissionWriter { out: Vec::new() };
        let first = Admission {
            units: 1,
            call_ns: 5,
            return_ns: 9,
        };
        let second = Admission {
            units: 1 << 53,
            call_ns: 7,
            return_ns: u64::MAX,
        };
        writer.write("acme/orders", first).unwrap();
        writer.write("acme/\"odd\\\"%2F", second).unwrap();
        writer.write("acme/orders", second).unwrap();
        let log = read(&writer.out).unwrap();
        assert_eq!(log.of("acme/orders"), [first, second]);
        assert_eq!(log.of("acme/\"odd\\\"%2F"), [second]);
        assert_eq!(log.of("acme/none"), []);
        assert_eq!(log.keys().count(), 2);
    }

    #[test]
    fn the_torn_last_line_of_a_killed_gateway_is_left_out() {
        let whole = b"{\"key\":\"a\",\"units\":1,\"call_ns\":1,\"return_ns\":2}\n".to_vec();
        let torn = [&whole[..], b"{\"key\":\"a\",\"un"].concat();
        assert_eq!(read(&torn).unwrap(), read(&whole).unwrap());
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = read(b"{\"key\":\"a\",\"un\n").unwrap_err();
        assert!(error.contains("line 1"), "{error}");
        let backwards = b"{\"key\":\"a\",\"units\":1,\"call_ns\":3,\"return_ns\":2}\n";
        assert!(read(backwards).unwrap_err().contains("returned before"));
    }
}
