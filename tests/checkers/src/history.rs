//! What else happened in a run, beside admissions: one JSON line each. Does not
//! know who wrote them, and judges nothing. Past 600 lines with a round trip of each record.
//!
//! All moments are readings of one host's `CLOCK_MONOTONIC_RAW` in nanoseconds.
//! A call is read before the request leaves, a return after the answer came; what
//! happened did so in between, unless the outcome is unknown.
//!
//! ```
//! use leasehold_checkers::{History, Record};
//!
//! let line = r#"{"digest":{"node":2,"index":17,"value":"00c0ffee00c0ffee"}}"#;
//! let record: Record = serde_json::from_str(line)?;
//! let mut history = History::default();
//! history.add(record);
//! assert_eq!(history.digests[0].index, 17);
//! # Ok::<(), serde_json::Error>(())
//! ```

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    ChargeSample, Correction, Joint, LogError, PeriodSample, PermitLook, Promise, Settlement,
};

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// A key's rule was put.
    Edit(Edit),
    /// An account's books were read.
    Account(AccountSample),
    /// A replica's digest was read.
    Digest(DigestSample),
    /// An object was written or read, or units were spent centrally.
    Operation(Operation),
    /// Nobody led for a while.
    Outage(Outage),
    /// The last fault was undone.
    Healed(Healed),
    /// A request of a gateway, with the patience it had.
    Request(Request),
    /// A gateway could not run for a while.
    Pause(Pause),
    /// Nobody holds units of a key any more.
    Quiet(Quiet),
    /// An account was corrected by hand.
    Correction(Correction),
    /// A key's books in its period were read.
    Period(PeriodSample),
    /// A permit's holder looked at it.
    Permit(PermitLook),
    /// A reservation was settled.
    Settlement(Settlement),
    /// Several keys were spent from at once.
    Joint(Joint),
    /// What became of a key's units was read.
    Charges(ChargeSample),
}

/// A key's rule was put: the first one, or another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The one key whose rule it is.
    pub key: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came, or when the caller gave up.
    pub return_ns: u64,
    /// False: it may have taken effect at any moment since the call, or never.
    /// A request that was refused, or that surely changed nothing, is no edit.
    pub acknowledged: bool,
    /// What it promises.
    pub promise: Promise,
}

/// The log position at which one replica was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The replica.
    pub node: u64,
    /// The last log entry in what it answered.
    pub index: u64,
}

/// The books of one account. The figures are signed and wide, so that whatever a
/// node says can be written down; to be in order is what is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountSample {
    /// The key.
    pub key: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came.
    pub return_ns: u64,
    /// Where one replica's own books were read, which may be behind; absent: the
    /// read was linearizable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<Position>,
    /// The limit, or a bucket's capacity.
    pub limit: i128,
    /// Units counted and outstanding above the limit.
    pub debt: i128,
    /// Units that count as spent.
    pub counted: i128,
    /// Units in leases.
    pub outstanding: i128,
    /// Units that can be granted.
    pub free: i128,
    /// The sum over all leases that were listed with it, of what each was granted
    /// and has neither reported spent nor handed back; absent: none were listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased: Option<i128>,
    /// What became of all units ever granted; absent: the answer did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<Lifetime>,
}

/// What became of the units that an account granted in all its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetime {
    /// Units granted to leases.
    pub granted: i128,
    /// Units reported spent.
    pub spent: i128,
    /// Units handed back.
    pub returned: i128,
    /// Units of dead holders.
    pub presumed_spent: i128,
}

/// A replica's fingerprint of its whole ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestSample {
    /// The replica.
    pub node: u64,
    /// The last log entry in it.
    pub index: u64,
    /// The fingerprint, as the node wrote it.
    pub value: String,
}

/// An operation on one object, in one of the vocabularies of [`Act`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Names the object, such as `policies/default` or `spend/acme/orders`.
    pub object: String,
    /// Before the request left.
    pub call_ns: u64,
    /// After the answer came, or when the caller gave up.
    pub return_ns: u64,
    /// False: it may have taken effect at any moment since the call, or never.
    /// What surely changed nothing (refused for its form, never sent, answered
    /// "nothing was changed") is no operation; neither is a read without an answer.
    pub acknowledged: bool,
    /// What was asked and answered.
    pub act: Act,
}

/// What an operation does. An object is either a register (`write`, `read`) or a
/// purse that is spent from by central spends alone (`limit`, `spend`, `used`) and
/// from which nothing ages while the run lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Act {
    /// The register gets a value; null: it is deleted. Values should differ.
    Write(Option<String>),
    /// The register was read.
    Read(Option<String>),
    /// The purse gets a limit; its first one makes it.
    Limit(u64),
    /// Units are spent centrally.
    Spend {
        /// How many.
        units: u64,
        /// Null: the outcome is unknown.
        answer: Option<Spent>,
    },
    /// The purse's total of central spends was read.
    Used(u64),
}

/// The answer to a central spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// Admitted, or denied for the limit.
    pub admitted: bool,
    /// Free units afterwards; absent: the answer did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<u64>,
}

/// Surely nobody led in between, and who led afterwards did so in a later term:
/// from the moment at which the leader's process is known dead to the moment
/// before the next one can have been elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// Its beginning.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
}

/// The last of some faults was undone; grants must resume from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Healed {
    /// When.
    pub at_ns: u64,
    /// When the next fault was injected, or the traffic ended.
    pub until_ns: u64,
    /// Which faults, for people.
    #[serde(default)]
    pub faults: String,
}

/// A request of a gateway that may wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Who made it.
    pub gateway: String,
    /// The key.
    pub key: String,
    /// Before the call.
    pub call_ns: u64,
    /// After the return; null: it had not returned when the gateway last looked.
    pub return_ns: Option<u64>,
    /// When the gateway last looked, for a request that had not returned.
    #[serde(default)]
    pub looked_ns: u64,
    /// How long it may wait.
    pub patience_ns: u64,
}

/// A gateway that did not run: stopped by a signal, or dead from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who.
    pub gateway: String,
    /// Before it was stopped.
    pub from_ns: u64,
    /// After it went on.
    pub to_ns: u64,
}

/// From here on nobody spends from a key or asks for its units, all its holders are
/// gone, no fault is left and a leader serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quiet {
    /// The key.
    pub key: String,
    /// The rule in force since.
    pub promise: Promise,
    /// Since when.
    pub from_ns: u64,
    /// After this long no session of a holder that is gone is still live: the
    /// session's ttl with its drift, a tick, and how late an expiry may be applied.
    pub settle_ns: u64,
    /// By how much a clock may run fast or slow, in parts per million.
    pub max_drift_ppm: u32,
}

/// Appends records to a file.
#[derive(Debug)]
pub struct HistoryWriter<W: Write = BufWriter<File>> {
    out: W,
}

impl HistoryWriter {
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

impl<W: Write> HistoryWriter<W> {
    /// Adds one record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, record)?;
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

/// The records of any number of files, by what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Rules that were put.
    pub edits: Vec<Edit>,
    /// Books that were read.
    pub accounts: Vec<AccountSample>,
    /// Digests that were read.
    pub digests: Vec<DigestSample>,
    /// Writes, reads and central spends.
    pub operations: Vec<Operation>,
    /// When nobody led.
    pub outages: Vec<Outage>,
    /// When faults were undone.
    pub healed: Vec<Healed>,
    /// Requests that may wait.
    pub requests: Vec<Request>,
    /// When gateways did not run.
    pub pauses: Vec<Pause>,
    /// When keys were left alone.
    pub quiet: Vec<Quiet>,
    /// Corrections by hand.
    pub corrections: Vec<Correction>,
    /// Books of periods.
    pub periods: Vec<PeriodSample>,
    /// Looks at permits.
    pub permits: Vec<PermitLook>,
    /// Reservations that were settled.
    pub settlements: Vec<Settlement>,
    /// Requests for several keys.
    pub joints: Vec<Joint>,
    /// Books of what became of units.
    pub charges: Vec<ChargeSample>,
}

impl History {
    /// Adds one record.
    pub fn add(&mut self, record: Record) {
        match record {
            Record::Edit(edit) => self.edits.push(edit),
            Record::Account(sample) => self.accounts.push(sample),
            Record::Digest(sample) => self.digests.push(sample),
            Record::Operation(operation) => self.operations.push(operation),
            Record::Outage(outage) => self.outages.push(outage),
            Record::Healed(healed) => self.healed.push(healed),
            Record::Request(request) => self.requests.push(request),
            Record::Pause(pause) => self.pauses.push(pause),
            Record::Quiet(quiet) => self.quiet.push(quiet),
            Record::Correction(correction) => self.corrections.push(correction),
            Record::Period(sample) => self.periods.push(sample),
            Record::Permit(look) => self.permits.push(look),
            Record::Settlement(settlement) => self.settlements.push(settlement),
            Record::Joint(joint) => self.joints.push(joint),
            Record::Charges(sample) => self.charges.push(sample),
        }
    }

    /// Adds a file's records. A last line without its end is what a killed process
    /// leaves behind; it is left out.
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
            let record = serde_json::from_str(&text).map_err(|error| LogError::Line {
                path: path.to_owned(),
                line,
                reason: error.to_string(),
            })?;
            self.add(record);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::Change;

    fn one_of_each() -> Vec<Record> {
        let operation = |acknowledged, act| {
            Record::Operation(Operation {
                object: "spend/acme/a".to_owned(),
                call_ns: 1,
                return_ns: 2,
                acknowledged,
                act,
            })
        };
        let mut records = vec![
            Record::Edit(Edit {
                key: "acme/a".to_owned(),
                call_ns: 1,
                return_ns: 2,
                acknowledged: false,
                promise: Promise::Bucket {
                    capacity: 5,
                    refill: 1,
                    refill_period_us: 1_000,
                    tick_us: 1,
                },
            }),
            Record::Account(AccountSample {
                key: "acme/a".to_owned(),
                call_ns: 1,
                return_ns: 2,
                replica: Some(Position { node: 3, index: 9 }),
                limit: 100,
                debt: 0,
                counted: i128::from(u64::MAX),
                outstanding: -1,
                free: 0,
                leased: Some(-1),
                lifetime: Some(Lifetime {
                    granted: 7,
                    spent: 1,
                    returned: 2,
                    presumed_spent: 3,
                }),
            }),
            Record::Digest(DigestSample {
                node: 1,
                index: 7,
                value: "00ff".to_owned(),
            }),
            operation(true, Act::Write(Some("one".to_owned()))),
            operation(true, Act::Write(None)),
            operation(true, Act::Read(None)),
            operation(true, Act::Limit(7)),
            operation(
                true,
                Act::Spend {
                    units: 2,
                    answer: Some(Spent {
                        admitted: true,
                        free: Some(98),
                    }),
                },
            ),
            operation(
                false,
                Act::Spend {
                    units: 2,
                    answer: None,
                },
            ),
            operation(true, Act::Used(4)),
            Record::Outage(Outage {
                from_ns: 4,
                to_ns: 9,
            }),
            Record::Healed(Healed {
                at_ns: 9,
                until_ns: u64::MAX,
                faults: "leader killed".to_owned(),
            }),
            Record::Request(Request {
                gateway: "gw-1".to_owned(),
                key: "acme/a".to_owned(),
                call_ns: 1,
                return_ns: None,
                looked_ns: 8,
                patience_ns: 5,
            }),
            Record::Pause(Pause {
                gateway: "gw-1".to_owned(),
                from_ns: 3,
                to_ns: 4,
            }),
            Record::Quiet(Quiet {
                key: "acme/a".to_owned(),
                promise: Promise::Window {
                    limit: 100,
                    window_us: 1_000_000,
                },
                from_ns: 5,
                settle_ns: 6,
                max_drift_ppm: 1_000,
            }),
        ];
        records.extend(of_the_kinds());
        records
    }

    fn of_the_kinds() -> Vec<Record> {
        let (gateway, key) = ("gw-1".to_owned(), "acme/a".to_owned());
        let correction = |change| {
            Record::Correction(Correction {
                key: "acme/a".to_owned(),
                id: "order-1".to_owned(),
                call_ns: 1,
                return_ns: 2,
                acknowledged: false,
                change,
            })
        };
        let look = |valid_ns| {
            Record::Permit(PermitLook {
                gateway: "gw-1".to_owned(),
                key: "acme/a".to_owned(),
                number: 1,
                units: 1,
                call_ns: 1,
                return_ns: 2,
                valid_ns,
            })
        };
        vec![
            correction(Change::Adjust(-5)),
            correction(Change::Reset),
            look(None),
            look(Some(9)),
            Record::Period(PeriodSample {
                key: key.clone(),
                call_ns: 1,
                return_ns: 2,
                number: 3,
                carried: 4,
                counted: 5,
                outstanding: 6,
            }),
            Record::Settlement(Settlement {
                gateway: gateway.clone(),
                key: key.clone(),
                call_ns: 1,
                return_ns: 2,
                reserved: 3,
                used: 4,
                charged: 3,
                overrun: 1,
            }),
            Record::Joint(Joint {
                gateway,
                parts: vec![(key.clone(), 1), ("acme/b".to_owned(), 5)],
                call_ns: 1,
                return_ns: 2,
                admitted: true,
            }),
            Record::Charges(ChargeSample {
                key,
                call_ns: 1,
                return_ns: 2,
                spent: 3,
                presumed_spent: 4,
                outstanding: 5,
                extra: 6,
                overrun: 7,
            }),
        ]
    }

    fn read(text: &[u8]) -> Result<History, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        std::fs::write(&path, text).unwrap();
        let mut history = History::default();
        let outcome = history.read(&path);
        outcome.map(|()| history).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut writer = HistoryWriter { out: Vec::new() };
        let mut expected = History::default();
        for record in one_of_each() {
            writer.write(&record).unwrap();
            expected.add(record);
        }
        assert_eq!(read(&writer.out).unwrap(), expected);
    }

    #[test]
    fn the_torn_last_line_of_a_killed_process_is_left_out() {
        let whole = b"{\"outage\":{\"from_ns\":1,\"to_ns\":2}}\n".to_vec();
        let torn = [&whole[..], b"{\"outage\":{\"fr"].concat();
        assert_eq!(read(&torn).unwrap(), read(&whole).unwrap());
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = read(b"{\"outage\":{\"from_ns\":1,\"to_ns\":2}}\n{\"out\n").unwrap_err();
        assert!(error.contains("line 2"), "{error}");
    }
}
