//! Those who use the HTTP API while faults are injected: they spend centrally,
//! write and read policies, edit budgets and correct accounts, each asking any running node past
//! all links, and they write down what they asked and were told. They judge
//! nothing.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use leasehold_checkers::{Act, Change, Correction, Edit, Operation, Record, Spent};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use super::{
    cluster::Directory,
    journal::Recorder,
    keys::{EDITED_MAX_PERCENT, KeyPlan, PURSE, Rule, budget, scaled},
    quotas::{QUOTAS, QuotaPlan, period_sample},
};
use crate::{Admission, AdmissionWriter, Answer, LocalCluster, Promise, clock_ns};

/// Between two requests of one operator, on average.
const PAUSE: Duration = Duration::from_millis(80);
/// Policies that are written and read, each by everybody.
const REGISTERS: usize = 4;

/// What became of a request.
pub(crate) enum Told {
    /// It was answered.
    Answer(Answer),
    /// It surely changed nothing.
    Nothing,
    /// Nobody knows.
    Unknown,
}

/// Codes of answers that leave open what happened.
const OPEN: [&str; 4] = ["outcome_unknown", "timed_out", "internal", "stopped"];

/// Asks one node once.
pub(crate) fn ask(
    to: std::net::SocketAddr,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Told {
    match LocalCluster::ask(to, method, path, body) {
        Ok(answer) if answer.status >= 500 => {
            let code = answer.json()["code"]
                .as_str()
                .unwrap_or("internal")
                .to_owned();
            if OPEN.contains(&code.as_str()) {
                Told::Unknown
            } else {
                Told::Nothing
            }
        }
        Ok(answer) => Told::Answer(answer),
        Err(error) => match error.kind() {
            // It did not even connect.
            io::ErrorKind::ConnectionRefused
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable => Told::Nothing,
            _ => Told::Unknown,
        },
    }
}

/// The operators, until they are told to stop.
pub(crate) struct Operators {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Operators {
    /// Starts them; central spends that were admitted go to `admissions` as well.
    pub(crate) fn start(
        seed: u64,
        directory: &Directory,
        recorder: &Recorder,
        keys: &[KeyPlan],
        admissions: &Path,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for number in 0..7_u64 {
            let mut operator = Operator {
                number,
                written: 0,
                owed: None,
                random: StdRng::seed_from_u64(seed ^ (number + 1).wrapping_mul(0x9e37_79b9)),
                directory: directory.clone(),
                recorder: recorder.clone(),
                keys: keys.to_vec(),
                admissions: AdmissionWriter::create(
                    &admissions.with_extension(number.to_string()),
                )?,
            };
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    operator.act()?;
                    let pause = PAUSE.mul_f64(operator.random.random_range(0.2..1.8));
                    thread::sleep(pause);
                }
                operator.admissions.flush()
            }));
        }
        Ok(Self { stop, threads })
    }

    /// Lets each finish what it is at.
    pub(crate) fn stop(self) -> io::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| io::Error::other("an operator panicked"))??;
        }
        Ok(())
    }
}

struct Operator {
    number: u64,
    /// Values that it wrote, so that every value differs.
    written: u64,
    /// A correction that was not acknowledged yet: its key, its id, its units.
    owed: Option<(&'static str, String, i64)>,
    random: StdRng,
    directory: Directory,
    recorder: Recorder,
    keys: Vec<KeyPlan>,
    admissions: AdmissionWriter,
}

impl Operator {
    fn act(&mut self) -> io::Result<()> {
        let places = self.directory.places();
        if places.is_empty() {
            return Ok(());
        }
        let to = places[self.random.random_range(0..places.len())].client;
        match self.number {
            0..=3 => self.spend(to),
            4 => {
                self.register(to);
                Ok(())
            }
            5 => {
                if self.random.random_bool(0.5) {
                    self.correct(to);
                } else {
                    self.look(to);
                }
                Ok(())
            }
            _ => {
                if self.random.random_bool(0.5) {
                    self.edit(to);
                } else {
                    self.register(to);
                }
                Ok(())
            }
        }
    }

    fn spend(&mut self, to: std::net::SocketAddr) -> io::Result<()> {
        let central: Vec<&KeyPlan> = self
            .keys
            .iter()
            .filter(|key| key.is_spent_centrally())
            .collect();
        let key = central[self.random.random_range(0..central.len())]
            .name
            .clone();
        // Of one size where order is judged: that many unknown outcomes of different
        // sizes would have too many orders.
        let units = match key.as_str() {
            PURSE => 1,
            _ => self.random.random_range(1..=3_u64),
        };
        let body = json!({"key": key, "units": units});
        let call_ns = clock_ns();
        let told = ask(to, "POST", "/v1/spend", Some(&body));
        let return_ns = clock_ns();
        let answer = match told {
            Told::Nothing => return Ok(()),
            Told::Unknown => None,
            Told::Answer(answer) => {
                let said = answer.json();
                match answer.status {
                    200 => Some(Spent {
                        admitted: true,
                        free: said["free"].as_u64(),
                    }),
                    429 if said["code"] == "limit" => Some(Spent {
                        admitted: false,
                        free: None,
                    }),
                    _ => return Ok(()),
                }
            }
        };
        if answer.is_some_and(|answer| answer.admitted) {
            self.admissions.write(
                &key,
                Admission {
                    units,
                    call_ns,
                    return_ns,
                },
            )?;
            self.admissions.flush()?;
        }
        if key == PURSE {
            self.recorder.note(&Record::Operation(Operation {
                object: format!("spend/{key}"),
                call_ns,
                return_ns,
                acknowledged: answer.is_some(),
                act: Act::Spend { units, answer },
            }));
        }
        Ok(())
    }

    /// Writes or reads one of the policies that nothing follows.
    fn register(&mut self, to: std::net::SocketAddr) {
        let name = format!("register-{}", self.random.random_range(0..REGISTERS));
        let path = format!("/v1/policies/{name}");
        let object = format!("policies/{name}");
        if self.random.random_bool(0.5) {
            self.written += 1;
            let value = self.written * 10 + self.number;
            let body = json!({"kind": "sliding_window", "limit": value, "window_ms": 1_000});
            let call_ns = clock_ns();
            let told = ask(to, "PUT", &path, Some(&body));
            let acknowledged = match told {
                Told::Answer(answer) if answer.status < 300 => true,
                Told::Answer(_) | Told::Nothing => return,
                Told::Unknown => false,
            };
            self.recorder.note(&Record::Operation(Operation {
                object,
                call_ns,
                return_ns: clock_ns(),
                acknowledged,
                act: Act::Write(Some(value.to_string())),
            }));
        } else {
            let call_ns = clock_ns();
            if let Told::Answer(answer) = ask(to, "GET", &path, None)
                && let Some(value) = read_register(&answer)
            {
                self.recorder.note(&Record::Operation(Operation {
                    object,
                    call_ns,
                    return_ns: clock_ns(),
                    acknowledged: true,
                    act: Act::Read(value),
                }));
            }
        }
    }

    /// Gives a key another limit.
    fn edit(&mut self, to: std::net::SocketAddr) {
        let edited: Vec<&KeyPlan> = self
            .keys
            .iter()
            .filter(|key| key.rule == Rule::Edited)
            .collect();
        let key = edited[self.random.random_range(0..edited.len())];
        let percent = self.random.random_range(40..=EDITED_MAX_PERCENT);
        let promise = scaled(key.promise, percent);
        let call_ns = clock_ns();
        if let Some(acknowledged) = put_budget(to, &key.name, promise) {
            self.recorder.note(&Record::Edit(Edit {
                key: key.name.clone(),
                call_ns,
                return_ns: clock_ns(),
                acknowledged,
                promise,
            }));
        }
    }

    /// Tops an account up, or asks again for what may or may not have been done.
    fn correct(&mut self, to: std::net::SocketAddr) {
        let (key, id, units) = if let Some(owed) = self.owed.take() {
            owed
        } else {
            let corrected: Vec<(&QuotaPlan, i64)> = QUOTAS
                .iter()
                .filter_map(|plan| plan.top_up().map(|units| (plan, units)))
                .collect();
            let (plan, units) = corrected[self.random.random_range(0..corrected.len())];
            self.written += 1;
            (plan.name, format!("top-up-{}", self.written), units)
        };
        let body = json!({"id": id, "units": units, "reason": "bought more"});
        let path = format!("/v1/accounts/{key}/adjust");
        let call_ns = clock_ns();
        let told = ask(to, "POST", &path, Some(&body));
        let acknowledged = matches!(&told, Told::Answer(answer) if answer.status == 200);
        if acknowledged || matches!(told, Told::Unknown) {
            self.recorder.note(&Record::Correction(Correction {
                key: key.to_owned(),
                id: id.clone(),
                call_ns,
                return_ns: clock_ns(),
                acknowledged,
                change: Change::Adjust(units),
            }));
        }
        // What was acknowledged is asked for again now and then.
        if !acknowledged || self.random.random_bool(0.2) {
            self.owed = Some((key, id, units));
        }
    }

    /// Reads the books of whatever has a period.
    fn look(&mut self, to: std::net::SocketAddr) {
        let plan = &QUOTAS[self.random.random_range(0..QUOTAS.len())];
        let call_ns = clock_ns();
        let told = ask(to, "GET", &format!("/v1/accounts/{}", plan.name), None);
        if let Told::Answer(answer) = told
            && answer.status == 200
            && let Some(sample) = period_sample(&answer.json(), call_ns, clock_ns())
        {
            self.recorder.note(&Record::Period(sample));
        }
    }
}

/// Puts a key's own budget: whether it surely did; none: it surely did not.
fn put_budget(to: std::net::SocketAddr, key: &str, promise: Promise) -> Option<bool> {
    match ask(
        to,
        "PUT",
        &format!("/v1/budgets/{key}"),
        Some(&budget(key, promise)),
    ) {
        Told::Answer(answer) if answer.status < 300 => Some(true),
        Told::Answer(_) | Told::Nothing => None,
        Told::Unknown => Some(false),
    }
}

/// The value that a register's policy has: the inner none is "there is none".
pub(crate) fn read_register(answer: &Answer) -> Option<Option<String>> {
    match answer.status {
        200 => {
            let said = answer.json();
            let limit = said["limit"]
                .as_u64()
                .or_else(|| said["policy"]["limit"].as_u64())?;
            Some(Some(limit.to_string()))
        }
        404 => Some(None),
        _ => None,
    }
}

/// The registers' names.
pub(crate) fn registers() -> impl Iterator<Item = String> {
    (0..REGISTERS).map(|number| format!("register-{number}"))
}
