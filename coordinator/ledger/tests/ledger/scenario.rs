//! Transcripts: `tests/scenarios/*.txt`, one sentence of the rules each. A line is
//! `command -> outcome`; one that begins with `&` goes into the entry of the line
//! before. `BLESS=1` writes the outcomes instead of comparing them.
//!
//! ```text
//! policy P KIND [cooldown T] [shadow]
//!   KIND: window LIMIT per T | bucket CAPACITY refill UNITS per T | estimate LIMIT per T
//!   | paced CAPACITY refill UNITS per T | period LIMIT UNIT ZONE [carry UNITS]
//!   | total LIMIT | permits LIMIT | unlimited
//! drop-policy P ; budget PATTERN P ; unbudget PATTERN ; set SETTING VALUE
//! open S [by IDENTITY] ; end S
//! sync S [seq N] [quiet] [close] [REPORT , REPORT …]
//!   REPORT: KEY[@N] [spent S] [returned R] [held H] [last] [UNITSxAGE …]
//! settle S [by IDENTITY] [KEY[@N] UNITS …]
//! grant KEY S UNITS ; spend KEY UNITS [once ID] ; tick
//! correct KEY reset ID | correct KEY UNITS ID ; cool KEY ; history KEY
//! roll UNIT ZONE from START to END [at TIME] (wall clock; at its start, if nothing is said)
//! advance T (and tick) ; wait T (no entry) ; stamp T (an entry with that time)
//! backup ; restore [ttl T] (a new cluster from the backup, with the longest time to
//! live that a session of the old one had)
//! restart (from a snapshot) ; show KEY ; leases S ; session S ; needs-time
//! ```
//! `@N` is the N-th generation that the session got of the key; without it, the
//! newest. Times are seconds.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{Applied, CommandOutcome, CommandRefusal, GrantOutcome, Refusal, SyncOutcome},
};

use crate::{
    log::{Log, key, pattern, report},
    words::{a_correction, a_policy, a_roll, history_text, micros, seconds},
};

#[test]
fn every_transcript_reads_as_it_happens() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let bless = std::env::var_os("BLESS").is_some();
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    let mut failures = String::new();
    for path in names {
        let text = fs::read_to_string(&path).unwrap();
        // A broken ledger may stop; the other transcripts still speak.
        let played = std::panic::catch_unwind(|| play(&text));
        let name = path.file_stem().unwrap().to_string_lossy();
        match played {
            Ok(played) if played == text => {}
            Ok(played) if bless => fs::write(&path, played).unwrap(),
            Ok(played) => {
                let line = played.lines().zip(text.lines()).find(|(is, was)| is != was);
                let (is, was) = line.unwrap_or_default();
                writeln!(
                    failures,
                    "FAILED {name}\n  expected: {was}\n  happened: {is}"
                )
                .unwrap();
            }
            Err(_) => writeln!(failures, "FAILED {name}\n  the ledger stopped").unwrap(),
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Plays a transcript and gives it with the outcomes that happen.
fn play(text: &str) -> String {
    let mut stage = Stage {
        log: Log::new(),
        generations: BTreeMap::new(),
        seqs: BTreeMap::new(),
        backup: None,
    };
    let mut played: Vec<String> = Vec::new();
    let mut batch: Vec<(usize, Step)> = Vec::new();
    let mut entry = Entry::default();
    for line in text.lines() {
        let command = line.split("->").next().unwrap_or_default().trim();
        let joined = command.strip_prefix('&').map(str::trim);
        if joined.is_none() {
            stage.flush(&mut entry, &mut batch, &mut played);
        }
        if command.is_empty() || command.starts_with('#') {
            played.push(line.to_owned());
            continue;
        }
        played.push(command.to_owned());
        let place = played.len() - 1;
        let words: Vec<&str> = joined.unwrap_or(command).split_whitespace().collect();
        match stage.read(&words, &mut entry) {
            Read::Item(step) => batch.push((place, step)),
            Read::Done(outcome) => answer(&mut played[place], &outcome),
        }
    }
    stage.flush(&mut entry, &mut batch, &mut played);
    played.join("\n") + "\n"
}

fn answer(line: &mut String, outcome: &str) {
    if !outcome.is_empty() {
        *line = format!("{line:<44} -> {outcome}");
    }
}

/// Which item of the entry a line became.
enum Step {
    Sync(usize),
    Command(usize),
    Grant(usize, (SessionId, String)),
    Roll,
    Tick,
}

enum Read {
    Item(Step),
    Done(String),
}

struct Stage {
    log: Log,
    /// The generations that each session got of each key.
    generations: BTreeMap<(SessionId, String), Vec<u64>>,
    seqs: BTreeMap<SessionId, u64>,
    backup: Option<Ledger>,
}

impl Stage {
    fn flush(&mut self, entry: &mut Entry, batch: &mut Vec<(usize, Step)>, played: &mut [String]) {
        if batch.is_empty() {
            return;
        }
        let applied = self.log.entry(std::mem::take(entry));
        for (place, step) in batch.drain(..) {
            let outcome = self.describe(&applied, step);
            answer(&mut played[place], &outcome);
        }
    }

    fn describe(&mut self, applied: &Applied, step: Step) -> String {
        let mut text = match step {
            Step::Sync(place) => sync_text(&applied.syncs[place]),
            Step::Command(place) => command_text(&applied.commands[place]),
            Step::Grant(place, lease) => {
                let outcome = &applied.grants[place];
                let generations = self.generations.entry(lease).or_default();
                if outcome.generation > 0 && !generations.contains(&outcome.generation) {
                    generations.push(outcome.generation);
                }
                grant_text(outcome, generations)
            }
            Step::Roll if applied.rolled => "a period begins".to_owned(),
            Step::Roll => "no change".to_owned(),
            Step::Tick => String::new(),
        };
        for id in &applied.expired {
            let comma = if text.is_empty() { "" } else { ", " };
            write!(text, "{comma}{} expired", session_name(*id)).unwrap();
        }
        text
    }

    fn read(&mut self, words: &[&str], entry: &mut Entry) -> Read {
        let mut command = |command| {
            entry.commands.push(command);
            Read::Item(Step::Command(entry.commands.len() - 1))
        };
        match words {
            ["policy", name, rest @ ..] => command(Command::PutPolicy {
                name: (*name).to_owned(),
                policy: a_policy(rest),
            }),
            ["drop-policy", name] => command(Command::DeletePolicy {
                name: (*name).to_owned(),
            }),
            ["budget", text, name] => command(Command::PutBudget {
                pattern: pattern(text),
                rule: Rule::Named((*name).to_owned()),
            }),
            ["unbudget", text] => command(Command::DeleteBudget {
                pattern: pattern(text),
            }),
            ["set", name, value] => {
                let mut settings = self.log.ledger.settings().clone();
                match *name {
                    "ttl" => settings.session_ttl_us = micros(value),
                    "drift" => settings.max_drift_ppm = value.parse().unwrap(),
                    "default" => {
                        settings.default_policy = (*value != "none").then(|| (*value).to_owned());
                    }
                    "sessions" => settings.sessions_per_identity_max = value.parse().unwrap(),
                    "keys" => settings.keys_per_session_max = value.parse().unwrap(),
                    "accounts" => settings.accounts_per_pattern_max = value.parse().unwrap(),
                    "remember" => settings.idempotency_ttl_us = micros(value),
                    "remembered" => settings.idempotency_keys_max = value.parse().unwrap(),
                    "tombstone" => settings.tombstone_ttl_us = micros(value),
                    name => panic!("unknown setting {name}"),
                }
                command(Command::PutSettings(settings))
            }
            ["open", session, rest @ ..] => {
                let session = session_id(session);
                command(Command::Open {
                    session,
                    holder: session_name(session),
                    identity: by(rest).0,
                })
            }
            ["end", session] => command(Command::EndSession {
                session: session_id(session),
            }),
            ["spend", text, units, "once", name] => command(Command::SpendOnce {
                key: key(text),
                units: units.parse().unwrap(),
                idempotency_key: (*name).to_owned(),
            }),
            ["spend", text, units] => command(Command::Spend {
                key: key(text),
                units: units.parse().unwrap(),
            }),
            ["correct", rest @ ..] => command(a_correction(rest)),
            ["cool", text] => command(Command::CoolDown { key: key(text) }),
            ["roll", rest @ ..] => {
                entry.rolls.push(a_roll(rest));
                Read::Item(Step::Roll)
            }
            ["history", text] => Read::Done(
                self.log
                    .ledger
                    .corrections(&key(text))
                    .map_or_else(|| "none".to_owned(), |all| history_text(&all)),
            ),
            ["settle", session, rest @ ..] => {
                let session = session_id(session);
                let (identity, rest) = by(rest);
                let leases = rest.chunks(2).map(|pair| {
                    let (key, generation) = self.lease(session, pair[0]);
                    SettledLease {
                        key,
                        generation,
                        spent_total: pair[1].parse().unwrap(),
                    }
                });
                let leases = leases.collect();
                command(Command::Settle {
                    session,
                    identity,
                    leases,
                })
            }
            ["sync", session, rest @ ..] => {
                let sync = self.sync(session_id(session), rest);
                entry.syncs.push(sync);
                Read::Item(Step::Sync(entry.syncs.len() - 1))
            }
            ["grant", text, session, units] => {
                let session = session_id(session);
                entry.grants.push(Grant {
                    session,
                    key: key(text),
                    units: units.parse().unwrap(),
                });
                let lease = (session, (*text).to_owned());
                Read::Item(Step::Grant(entry.grants.len() - 1, lease))
            }
            ["tick"] => Read::Item(Step::Tick),
            ["advance", time] => {
                self.log.advance(micros(time));
                Read::Item(Step::Tick)
            }
            ["wait", time] => {
                self.log.advance(micros(time));
                Read::Done(String::new())
            }
            ["stamp", time] => {
                let stamped = Entry {
                    now_us: micros(time),
                    ..Entry::default()
                };
                let applied = self.log.stamped(&stamped);
                Read::Done(format!("now {}", seconds(applied.now_us)))
            }
            ["backup"] => {
                self.backup = Some(self.log.ledger.clone());
                Read::Done(String::new())
            }
            ["restore", rest @ ..] => {
                let ttl_us = match rest {
                    ["ttl", time] => micros(time),
                    _ => 0,
                };
                let backup = self.backup.clone().unwrap();
                let voided = self.log.begin_from(&backup, 7, ttl_us);
                Read::Done(format!(
                    "{} sessions and {} units outstanding are void, nothing is free before {}",
                    voided.had.sessions,
                    voided.had.outstanding,
                    seconds(voided.inherited_until_us)
                ))
            }
            ["restart"] => {
                self.log.restart();
                Read::Done(String::new())
            }
            ["show", text] => Read::Done(self.show(text)),
            ["leases", session] => Read::Done(self.leases(session_id(session))),
            ["session", session] => Read::Done(self.session(session_id(session))),
            ["needs-time"] => Read::Done(
                if self.log.ledger.needs_time() {
                    "yes"
                } else {
                    "no"
                }
                .to_owned(),
            ),
            words => panic!("unknown command {words:?}"),
        }
    }

    /// A lease's key and generation from `KEY` or `KEY@N`.
    fn lease(&self, session: SessionId, text: &str) -> (leasehold_key::Key, u64) {
        let (text, number) = match text.split_once('@') {
            Some((text, number)) => (text, Some(number.parse::<usize>().unwrap())),
            None => (text, None),
        };
        let generations = self.generations.get(&(session, text.to_owned()));
        let generation = generations.and_then(|generations| match number {
            Some(number) => generations.get(number - 1),
            None => generations.last(),
        });
        (key(text), generation.copied().unwrap_or(0))
    }

    fn sync(&mut self, session: SessionId, words: &[&str]) -> Sync {
        let latest = self.seqs.entry(session).or_default();
        let (seq, mut words) = match words {
            ["seq", seq, rest @ ..] => (seq.parse().unwrap(), rest),
            rest => (*latest + 1, rest),
        };
        *latest = seq.max(*latest);
        let (mut renew, mut close) = (true, false);
        while let [flag @ ("quiet" | "close"), rest @ ..] = words {
            renew &= *flag != "quiet";
            close |= *flag == "close";
            words = rest;
        }
        let reports = words
            .split(|word| *word == ",")
            .filter(|words| !words.is_empty())
            .map(|words| self.report(session, words));
        let reports = reports.collect();
        Sync {
            session,
            seq,
            renew,
            close,
            reports,
        }
    }

    fn report(&self, session: SessionId, words: &[&str]) -> Report {
        let (key, generation) = self.lease(session, words[0]);
        let mut read = report(&key, generation);
        let mut words = &words[1..];
        while !words.is_empty() {
            words = match words {
                ["spent", units, rest @ ..] => {
                    read.spent_total = units.parse().unwrap();
                    rest
                }
                ["returned", units, rest @ ..] => {
                    read.returned_total = units.parse().unwrap();
                    rest
                }
                ["held", units, rest @ ..] => {
                    read.held = units.parse().unwrap();
                    rest
                }
                ["last", rest @ ..] => {
                    read.last = true;
                    rest
                }
                [age, rest @ ..] => {
                    let (units, age) = age.split_once('x').unwrap();
                    let units = units.parse().unwrap();
                    read.ages.push(SpentAge {
                        units,
                        age_us: micros(age),
                    });
                    rest
                }
                [] => words,
            };
        }
        read
    }

    fn show(&self, text: &str) -> String {
        let Some(view) = self.log.ledger.account(&key(text)) else {
            return "none".to_owned();
        };
        let mut text = format!(
            "limit {} counted {} outstanding {} free {}",
            view.limit, view.counted, view.outstanding, view.free
        );
        if view.debt > 0 {
            write!(text, " debt {}", view.debt).unwrap();
        }
        if view.pattern.is_none() {
            text.push_str(" orphan");
        }
        if let Some(next_us) = view.next_free_us {
            write!(text, " next {}", seconds(next_us)).unwrap();
        }
        if let Some(cooling_us) = view.cooling_us {
            write!(text, " cooling {}", seconds(cooling_us)).unwrap();
        }
        if view.corrections > 0 {
            write!(text, " corrected {:+}", view.corrected).unwrap();
        }
        text
    }

    fn leases(&self, session: SessionId) -> String {
        let leases = self.log.ledger.leases(session);
        let texts = leases.iter().map(|lease| {
            let name = (session, lease.key.as_str().to_owned());
            let number = self.generations[&name]
                .iter()
                .position(|known| *known == lease.generation);
            format!(
                "{}@{} G {} S {} R {}{}",
                lease.key,
                number.unwrap() + 1,
                lease.granted_total,
                lease.spent_total,
                lease.returned_total,
                if lease.current { "" } else { " not current" }
            )
        });
        let texts: Vec<String> = texts.collect();
        if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join(", ")
        }
    }

    fn session(&self, session: SessionId) -> String {
        let Some(view) = self.log.ledger.session(session) else {
            return "none".to_owned();
        };
        format!(
            "deadline {} ttl {} validity {}{}",
            seconds(view.deadline_us),
            seconds(view.ttl_us),
            seconds(view.validity_us),
            if view.ended { " ended" } else { "" }
        )
    }
}

fn sync_text(outcome: &SyncOutcome) -> String {
    if outcome.expired {
        return "no such session".to_owned();
    }
    let mut text = if outcome.renewed {
        "renewed"
    } else {
        "not renewed"
    }
    .to_owned();
    if outcome.ended {
        text.push_str(", ended");
    }
    for (place, refusal) in &outcome.refused {
        write!(text, ", report {} {refusal:?}", place + 1).unwrap();
    }
    text
}

fn grant_text(outcome: &GrantOutcome, generations: &[u64]) -> String {
    let mut text = format!("granted {}", outcome.units);
    if let Some(number) = generations
        .iter()
        .position(|known| *known == outcome.generation)
    {
        write!(text, " @{} G {}", number + 1, outcome.granted_total).unwrap();
    }
    if let Some(refusal) = outcome.refusal {
        write!(text, ", {}", refusal_text(refusal)).unwrap();
    }
    text
}

fn refusal_text(refusal: Refusal) -> String {
    match refusal.retry_after_us {
        Some(after_us) => format!("{} retry in {}", refusal.code.as_str(), seconds(after_us)),
        None => format!("{} never", refusal.code.as_str()),
    }
}

fn command_text(outcome: &CommandOutcome) -> String {
    match outcome {
        CommandOutcome::Opened {
            deadline_us,
            validity_us,
            ..
        } => {
            format!(
                "deadline {} validity {}",
                seconds(*deadline_us),
                seconds(*validity_us)
            )
        }
        CommandOutcome::Settled => "settled".to_owned(),
        CommandOutcome::Corrected {
            effect,
            repeated: false,
        } => format!("corrected {effect:+}"),
        CommandOutcome::Corrected { effect, .. } => format!("corrected before {effect:+}"),
        CommandOutcome::Done { changed: true } => String::new(),
        CommandOutcome::Done { changed: false } => "no change".to_owned(),
        CommandOutcome::Spent(spent) => match spent.refusal {
            None => {
                let how = match spent.shadowed {
                    Some(refusal) => format!(" in spite of {}", refusal_text(refusal)),
                    None if spent.repeated => " before".to_owned(),
                    None => String::new(),
                };
                let (free, reset) = (spent.free, seconds(spent.reset_us));
                format!("admitted{how}, free {free} reset {reset}")
            }
            Some(refusal) => format!("{}, free {}", refusal_text(refusal), spent.free),
        },
        CommandOutcome::Refused(CommandRefusal::Invalid(text)) => format!("invalid: {text}"),
        CommandOutcome::Edited(edited) => format!("{edited:?}"),
        CommandOutcome::Refused(refusal) => format!("refused: {refusal:?}"),
    }
}

fn session_id(name: &str) -> SessionId {
    SessionId(name.strip_prefix("gw-").unwrap().parse().unwrap())
}

fn session_name(id: SessionId) -> String {
    format!("gw-{}", id.0)
}

fn by<'a>(words: &'a [&'a str]) -> (String, &'a [&'a str]) {
    match words {
        ["by", identity, rest @ ..] => ((*identity).to_owned(), rest),
        rest => (String::new(), rest),
    }
}
