//! One entry: built from what waits, written, and its outcomes delivered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

use leasehold_allotter::{Conclusion, Recall};
use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::{Command, Entry, SessionId, Sync},
    outcome::{Applied, Availability, Code, CommandOutcome, CommandRefusal, Refusal, SyncOutcome},
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Log, Reign, Sequencer, SubmitError,
    event::{Answer, Event, Opened, StreamCode, StreamRefusal},
    item::{Accepted, CommandItem, KeyReport, Link, Message, Open, StreamId, SyncMessage},
    pool::Work,
    streams::{KeySlot, Streams, turn_away},
};
use crate::raft::{Member, ProposeError};

/// Reports in one entry, unless a single message brings more.
const ENTRY_WEIGHT_MAX: usize = 2_048;
/// Commands in one entry.
const ENTRY_COMMANDS_MAX: usize = 512;

/// What the sequencer goes on with.
pub(super) struct RoundDone {
    pub(super) more_due: bool,
    pub(super) needs_time: bool,
}

/// The entry was not applied, as far as is known.
pub(super) struct RoundError {
    pub(super) leader: Option<Member>,
}

/// Somebody who waits for the outcome of a part of the entry.
enum Slot {
    Open {
        stream: StreamId,
        link: Link,
        instance: [u8; 16],
        opened: oneshot::Sender<Accepted>,
        session: SessionId,
        command: usize,
    },
    Resume {
        stream: StreamId,
        link: Link,
        instance: [u8; 16],
        opened: oneshot::Sender<Accepted>,
        session: SessionId,
        sync: usize,
        seq: u64,
    },
    Sync {
        stream: StreamId,
        session: SessionId,
        sync: usize,
        seq: u64,
        close: bool,
        told: Vec<Told>,
        _permit: OwnedSemaphorePermit,
    },
    Settle {
        stream: StreamId,
        session: SessionId,
        command: usize,
        _permit: OwnedSemaphorePermit,
    },
    Command {
        reply: oneshot::Sender<Result<CommandOutcome, SubmitError>>,
        command: usize,
    },
}

/// A key that a sync reported.
struct Told {
    key: Key,
    key_id: u32,
    /// Its position among the entry's reports of this sync.
    report: Option<usize>,
    /// The client has nothing of it any more and wants nothing.
    done: bool,
}

/// An entry under construction and who waits for it.
#[derive(Default)]
struct Plan {
    entry: Entry,
    slots: Vec<Slot>,
    reports: usize,
    /// Rules may change, or units come back otherwise than by reports.
    rules_change: bool,
    touched: Vec<Key>,
}

impl<L: Log> Sequencer<L> {
    /// Builds one entry of what waits, proposes it and delivers its outcomes.
    pub(super) async fn round(&mut self, reign: &Reign) -> Result<RoundDone, RoundError> {
        let taken = self.pool.take(ENTRY_WEIGHT_MAX);
        let commands = self.commands.len().min(ENTRY_COMMANDS_MAX);
        let commands: Vec<CommandItem> = self.commands.drain(..commands).collect();
        // After the last item was taken, never before: a spend or renewal must not
        // be dated before it was asked for.
        let now_us = reign.now_us();

        let log = self.log.clone();
        let plan = log.with_ledger(|ledger| self.plan(ledger, now_us, taken, commands));
        let Plan {
            entry,
            slots,
            reports,
            rules_change,
            touched,
        } = plan;
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        metrics::histogram!("leasehold_entry_reports").record(reports as f64);
        metrics::counter!("leasehold_entries_total").increment(1);
        metrics::counter!("leasehold_reports_total").increment(reports as u64);

        let grants = entry.grants.clone();
        let started = Instant::now();
        let outcome = self.log.propose(reign.term, entry).await;
        metrics::histogram!("leasehold_commit_seconds").record(started.elapsed().as_secs_f64());
        let applied = match outcome {
            Ok(applied) => applied,
            Err(error) => return Err(fail(slots, &error)),
        };

        if rules_change {
            self.allotter.touch_all();
        }
        for key in &touched {
            self.allotter.touch(key);
        }
        let (deliveries, needs_time) = log.with_ledger(|ledger| {
            let conclusion =
                self.allotter
                    .conclude(ledger, applied.now_us, &grants, &applied.grants);
            let pushes = Pushes::new(&conclusion, &grants, &applied);
            let deliveries = self.deliveries(ledger, &applied, slots, pushes, conclusion.recalls);
            (deliveries, ledger.needs_time())
        });
        for (stream, event) in deliveries {
            self.streams.tell(stream, event);
        }
        for session in &applied.expired {
            self.end_session(*session, "the session was not renewed in time");
        }
        self.detach();
        #[expect(clippy::cast_precision_loss, reason = "a metric")]
        metrics::gauge!("leasehold_streams").set(self.streams.len() as f64);
        Ok(RoundDone {
            more_due: applied.more_due,
            needs_time,
        })
    }

    fn end_session(&mut self, session: SessionId, detail: &str) {
        self.streams.forget_session(session);
        if let Some(stream) = self.streams.of_session(session) {
            self.streams.tell(stream, expired(detail));
        }
    }

    /// Puts everything that was taken into an entry. `ledger` is the state before
    /// it.
    fn plan(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        taken: Vec<(StreamId, Work)>,
        commands: Vec<CommandItem>,
    ) -> Plan {
        let mut plan = Plan::default();
        plan.entry.now_us = now_us;
        for (stream, work) in taken {
            match work {
                Work::Open { link, open, opened } => {
                    plan_open(&mut plan, &self.streams, ledger, stream, link, open, opened);
                }
                Work::Message {
                    message: Message::Sync(sync),
                    permit,
                } => self.plan_sync(&mut plan, ledger, now_us, stream, sync, permit),
                Work::Message {
                    message:
                        Message::Settle {
                            session,
                            identity,
                            leases,
                        },
                    permit,
                } => {
                    plan.touched
                        .extend(leases.iter().map(|lease| lease.key.clone()));
                    plan.slots.push(Slot::Settle {
                        stream,
                        session,
                        command: plan.entry.commands.len(),
                        _permit: permit,
                    });
                    plan.entry.commands.push(Command::Settle {
                        session,
                        identity,
                        leases,
                    });
                }
            }
        }
        for CommandItem { command, reply } in commands {
            plan.rules_change |= changes_rules(&command);
            plan.slots.push(Slot::Command {
                reply,
                command: plan.entry.commands.len(),
            });
            plan.entry.commands.push(command);
        }
        plan.entry.grants = self.allotter.propose(ledger, now_us);
        plan
    }

    fn plan_sync(
        &mut self,
        plan: &mut Plan,
        ledger: &Ledger,
        now_us: u64,
        stream: StreamId,
        message: SyncMessage,
        permit: OwnedSemaphorePermit,
    ) {
        let Some(entry) = self.streams.get_mut(stream) else {
            return;
        };
        let session = entry.session;
        let mut told = Vec::with_capacity(message.reports.len());
        let mut reports = Vec::with_capacity(message.reports.len());
        for report in message.reports {
            let KeyReport {
                key_id,
                key,
                report,
                mut level,
                refused,
                degraded,
            } = report;
            if refused > 0 {
                metrics::counter!("leasehold_refused_locally_total").increment(refused);
            }
            if degraded > 0 {
                metrics::counter!("leasehold_degraded_total").increment(degraded);
            }
            // A close hands everything back, and wants nothing.
            if message.close {
                level.last = true;
                level.want = 0;
                level.waiting = 0;
            }
            self.allotter.hear(ledger, now_us, session, &key, &level);
            entry
                .keys
                .entry(key.clone())
                .and_modify(|slot| slot.key_id = key_id)
                .or_insert(KeySlot {
                    key_id,
                    policy: None,
                });
            let position = report.is_some().then_some(reports.len());
            reports.extend(report);
            told.push(Told {
                key,
                key_id,
                report: position,
                done: level.last && level.want == 0,
            });
        }
        plan.reports += told.len();
        plan.slots.push(Slot::Sync {
            stream,
            session,
            sync: plan.entry.syncs.len(),
            seq: message.seq,
            close: message.close,
            told,
            _permit: permit,
        });
        plan.entry.syncs.push(Sync {
            session,
            seq: message.seq,
            renew: !message.close,
            close: message.close,
            reports,
        });
    }

    /// What everybody is told. `ledger` is the state with the entry.
    fn deliveries(
        &mut self,
        ledger: &Ledger,
        applied: &Applied,
        slots: Vec<Slot>,
        mut pushes: Pushes,
        recalls: Vec<Recall>,
    ) -> Vec<(StreamId, Event)> {
        let mut deliveries = Vec::new();
        for slot in slots {
            match slot {
                Slot::Command { reply, command } => {
                    let outcome = match applied.commands.get(command) {
                        Some(outcome) => Ok(outcome.clone()),
                        None => Err(SubmitError::OutcomeUnknown),
                    };
                    // Whoever asked may have stopped waiting.
                    drop(reply.send(outcome));
                }
                Slot::Open {
                    stream,
                    link,
                    instance,
                    opened,
                    session,
                    command,
                } => match applied.commands.get(command) {
                    Some(CommandOutcome::Opened {
                        validity_us,
                        ttl_us,
                        ..
                    }) => {
                        let event = Opened {
                            session,
                            validity_us: *validity_us,
                            ttl_us: *ttl_us,
                            sync_interval_us: ledger.settings().sync_interval_us,
                            keys_per_session_max: ledger.settings().keys_per_session_max,
                            leases: Vec::new(),
                        };
                        self.enter(stream, link, instance, opened, 0, &event);
                        deliveries.push((stream, Event::Opened(event)));
                    }
                    Some(CommandOutcome::Refused(refusal)) => {
                        turn_away(&link, refused_open(refusal));
                    }
                    _ => turn_away(&link, Event::Moved(String::new())),
                },
                Slot::Resume {
                    stream,
                    link,
                    instance,
                    opened,
                    session,
                    sync,
                    seq,
                } => {
                    let renewed = applied.syncs.get(sync).is_some_and(|sync| sync.renewed);
                    match ledger.session(session) {
                        Some(view) if renewed => {
                            let event = Opened {
                                session,
                                validity_us: view.validity_us,
                                ttl_us: view.ttl_us,
                                sync_interval_us: ledger.settings().sync_interval_us,
                                keys_per_session_max: ledger.settings().keys_per_session_max,
                                leases: ledger.leases(session),
                            };
                            self.enter(stream, link, instance, opened, seq, &event);
                            deliveries.push((stream, Event::Opened(event)));
                        }
                        _ => turn_away(&link, expired("the session has ended")),
                    }
                }
                Slot::Sync {
                    stream,
                    session,
                    sync,
                    seq,
                    close,
                    told,
                    _permit,
                } => {
                    let Some(outcome) = applied.syncs.get(sync) else {
                        continue;
                    };
                    if close {
                        self.streams.forget_session(session);
                        deliveries.push((stream, Event::Closed));
                    } else if outcome.expired {
                        self.streams.forget_session(session);
                        deliveries.push((stream, expired("the session has ended")));
                    } else if let Some(event) =
                        self.synced(ledger, applied, stream, seq, &told, outcome, &mut pushes)
                    {
                        deliveries.push((stream, event));
                    }
                }
                Slot::Settle {
                    stream,
                    session,
                    command,
                    _permit,
                } => {
                    let event = match applied.commands.get(command) {
                        Some(CommandOutcome::Refused(CommandRefusal::IdentityMismatch)) => {
                            Event::Refused(StreamRefusal {
                                code: StreamCode::IdentityMismatch,
                                detail: "another identity opened the session to settle".to_owned(),
                            })
                        }
                        // A session that nobody remembers has nothing left to settle.
                        _ => Event::Settled(session),
                    };
                    deliveries.push((stream, event));
                }
            }
        }
        self.push(ledger, applied.now_us, pushes, &mut deliveries);
        for recall in recalls {
            let Some(stream) = self.streams.of_session(recall.session) else {
                continue;
            };
            let slot = self
                .streams
                .get(stream)
                .and_then(|entry| entry.keys.get(&recall.key));
            if let Some(slot) = slot {
                metrics::counter!("leasehold_recalls_total").increment(1);
                deliveries.push((
                    stream,
                    Event::Recall {
                        key_id: slot.key_id,
                        generation: recall.generation,
                        returned_total_target: recall.returned_total_target,
                        granted_total: recall.granted_total,
                    },
                ));
            }
        }
        deliveries
    }

    /// Lets a stream speak for its session from now on.
    fn enter(
        &mut self,
        stream: StreamId,
        link: Link,
        instance: [u8; 16],
        opened: oneshot::Sender<Accepted>,
        seq: u64,
        event: &Opened,
    ) {
        if let Some(old) = self.streams.of_session(event.session) {
            self.pool.drop_stream(old);
        }
        self.streams
            .open(stream, link, event.session, instance, seq);
        self.allotter.attach(event.session);
        // The reader may be gone already; its `Gone` follows.
        let _gone = opened.send(Accepted {
            keys_max: event.keys_per_session_max,
        });
    }

    #[expect(clippy::too_many_arguments, reason = "one call site")]
    fn synced(
        &mut self,
        ledger: &Ledger,
        applied: &Applied,
        stream: StreamId,
        seq: u64,
        told: &[Told],
        outcome: &SyncOutcome,
        pushes: &mut Pushes,
    ) -> Option<Event> {
        let entry = self.streams.get_mut(stream)?;
        entry.seq = entry.seq.max(seq);
        let session = entry.session;
        let mut answers = Vec::with_capacity(told.len());
        for (place, reported) in told.iter().enumerate() {
            // One answer per key, also when several generations were reported.
            if told[..place]
                .iter()
                .rev()
                .take(4)
                .any(|earlier| earlier.key == reported.key)
            {
                continue;
            }
            let misbehaved = reported.report.is_some_and(|report| {
                outcome
                    .refused
                    .iter()
                    .any(|(refused, _)| *refused == report)
            });
            let refusal = if misbehaved {
                Some(Refusal {
                    code: Code::Misbehaved,
                    retry_after_us: None,
                })
            } else {
                pushes.answer(session, &reported.key)
            };
            let lease = ledger.lease(session, &reported.key);
            if reported.done && lease.is_none() {
                entry.keys.remove(&reported.key);
            }
            answers.push(answer(
                ledger,
                applied.now_us,
                entry.keys.get_mut(&reported.key),
                &reported.key,
                reported.key_id,
                lease.map(|lease| (lease.generation, lease.granted_total)),
                seq,
                refusal,
            ));
        }
        Some(Event::Synced {
            seq,
            renewed: outcome.renewed,
            answers,
        })
    }

    /// Tells streams of grants and refusals that no sync of this entry asked for.
    fn push(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        pushes: Pushes,
        deliveries: &mut Vec<(StreamId, Event)>,
    ) {
        for (session, keys) in pushes.rest() {
            let Some(stream) = self.streams.of_session(session) else {
                continue;
            };
            let Some(entry) = self.streams.get_mut(stream) else {
                continue;
            };
            let basis_seq = entry.seq;
            let mut answers = Vec::with_capacity(keys.len());
            for (key, refusal) in keys {
                let Some(slot) = entry.keys.get_mut(&key) else {
                    continue;
                };
                let key_id = slot.key_id;
                let lease = ledger.lease(session, &key);
                answers.push(answer(
                    ledger,
                    now_us,
                    Some(slot),
                    &key,
                    key_id,
                    lease.map(|lease| (lease.generation, lease.granted_total)),
                    basis_seq,
                    refusal,
                ));
            }
            if !answers.is_empty() {
                deliveries.push((stream, Event::Granted(answers)));
            }
        }
    }
}

/// Grants and refusals of an entry that their sessions are to hear of.
struct Pushes {
    refusals: HashMap<SessionId, HashMap<Key, Refusal>>,
    /// What no sync has been answered with yet.
    rest: BTreeMap<SessionId, BTreeSet<Key>>,
}

impl Pushes {
    fn new(
        conclusion: &Conclusion,
        grants: &[leasehold_ledger::entry::Grant],
        applied: &Applied,
    ) -> Self {
        let mut rest: BTreeMap<SessionId, BTreeSet<Key>> = BTreeMap::new();
        for (grant, outcome) in grants.iter().zip(&applied.grants) {
            if outcome.units > 0 {
                rest.entry(grant.session)
                    .or_default()
                    .insert(grant.key.clone());
            }
        }
        let mut refusals: HashMap<SessionId, HashMap<Key, Refusal>> = HashMap::new();
        for (session, key, refusal) in &conclusion.refusals {
            metrics::counter!("leasehold_refusals_total", "code" => refusal.code.as_str())
                .increment(1);
            refusals
                .entry(*session)
                .or_default()
                .insert(key.clone(), *refusal);
            rest.entry(*session).or_default().insert(key.clone());
        }
        Self { refusals, rest }
    }

    /// A sync that reported the key is answered: there is nothing left to push.
    fn answer(&mut self, session: SessionId, key: &Key) -> Option<Refusal> {
        if let Some(keys) = self.rest.get_mut(&session) {
            keys.remove(key);
        }
        self.refusal(session, key)
    }

    fn refusal(&self, session: SessionId, key: &Key) -> Option<Refusal> {
        self.refusals.get(&session)?.get(key).copied()
    }

    fn rest(self) -> Vec<(SessionId, Vec<(Key, Option<Refusal>)>)> {
        let Self { mut refusals, rest } = self;
        rest.into_iter()
            .map(|(session, keys)| {
                let mut refusals = refusals.remove(&session).unwrap_or_default();
                let keys = keys
                    .into_iter()
                    .map(|key| {
                        let refusal = refusals.remove(&key);
                        (key, refusal)
                    })
                    .collect();
                (session, keys)
            })
            .collect()
    }
}

#[expect(clippy::too_many_arguments, reason = "two call sites, all of it data")]
fn answer(
    ledger: &Ledger,
    now_us: u64,
    slot: Option<&mut KeySlot>,
    key: &Key,
    key_id: u32,
    lease: Option<(u64, u64)>,
    basis_seq: u64,
    refusal: Option<Refusal>,
) -> Answer {
    let (policy, free) = match ledger.available(key, now_us) {
        Availability::Open { policy, free, .. } => (Some(policy), free),
        Availability::NoBudget | Availability::TooManyAccounts => (None, 0),
    };
    let policy = match (slot, policy) {
        (Some(slot), Some(policy)) if slot.policy.as_ref() != Some(&policy) => {
            slot.policy = Some(policy.clone());
            Some(policy)
        }
        _ => None,
    };
    let (generation, granted_total) = lease.unwrap_or((0, 0));
    Answer {
        key_id,
        generation,
        granted_total,
        basis_seq,
        refusal,
        policy,
        free,
    }
}

fn plan_open(
    plan: &mut Plan,
    streams: &Streams,
    ledger: &Ledger,
    stream: StreamId,
    link: Link,
    open: Open,
    opened: oneshot::Sender<Accepted>,
) {
    let Open {
        holder,
        identity,
        instance,
        resume,
    } = open;
    let Some(session) = resume else {
        let Some(session) = draw_session() else {
            // No entropy, no session: the client tries again later.
            turn_away(&link, Event::Moved(String::new()));
            return;
        };
        plan.slots.push(Slot::Open {
            stream,
            link,
            instance,
            opened,
            session,
            command: plan.entry.commands.len(),
        });
        plan.entry.commands.push(Command::Open {
            session,
            holder,
            identity,
        });
        return;
    };
    let refusal = match ledger.session(session) {
        None => Some((StreamCode::SessionExpired, "no such session")),
        Some(view) if view.identity != identity => Some((
            StreamCode::IdentityMismatch,
            "another identity opened this session",
        )),
        Some(view) if view.ended => Some((StreamCode::SessionExpired, "the session was ended")),
        Some(_) if streams.is_another_process(session, &instance) => Some((
            StreamCode::Superseded,
            "another process speaks for this session",
        )),
        Some(view) => {
            // The number that renews: the latest that was applied, or that is in
            // this very entry before it.
            let seq = plan
                .entry
                .syncs
                .iter()
                .filter(|sync| sync.session == session)
                .map(|sync| sync.seq)
                .fold(view.seq, u64::max);
            plan.slots.push(Slot::Resume {
                stream,
                link,
                instance,
                opened,
                session,
                sync: plan.entry.syncs.len(),
                seq,
            });
            plan.entry.syncs.push(Sync {
                session,
                seq,
                renew: true,
                close: false,
                reports: Vec::new(),
            });
            return;
        }
    };
    if let Some((code, detail)) = refusal {
        turn_away(
            &link,
            Event::Refused(StreamRefusal {
                code,
                detail: detail.to_owned(),
            }),
        );
    }
}

/// Tells everybody who waits that their part of the entry has no outcome. Syncs,
/// opens and settles are told nothing here: their streams end, and the client
/// says it all again.
fn fail(slots: Vec<Slot>, error: &ProposeError) -> RoundError {
    let (leader, answer) = match error {
        ProposeError::NotLeader { leader } => (
            leader.clone(),
            SubmitError::NotLeader {
                leader: leader.clone(),
            },
        ),
        ProposeError::Unknown => (None, SubmitError::OutcomeUnknown),
        ProposeError::Stopped => (None, SubmitError::Stopped),
    };
    let moved = leader
        .as_ref()
        .map_or_else(String::new, |leader| leader.client_url.clone());
    for slot in slots {
        match slot {
            Slot::Command { reply, .. } => drop(reply.send(Err(answer.clone()))),
            Slot::Open { link, .. } | Slot::Resume { link, .. } => {
                turn_away(&link, Event::Moved(moved.clone()));
            }
            Slot::Sync { .. } | Slot::Settle { .. } => {}
        }
    }
    RoundError { leader }
}

fn draw_session() -> Option<SessionId> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(SessionId(u128::from_be_bytes(bytes)))
}

const fn changes_rules(command: &Command) -> bool {
    matches!(
        command,
        Command::PutPolicy { .. }
            | Command::DeletePolicy { .. }
            | Command::PutBudget { .. }
            | Command::DeleteBudget { .. }
            | Command::PutSettings(_)
    )
}

fn expired(detail: &str) -> Event {
    Event::Refused(StreamRefusal {
        code: StreamCode::SessionExpired,
        detail: detail.to_owned(),
    })
}

fn refused_open(refusal: &CommandRefusal) -> Event {
    match refusal {
        CommandRefusal::TooManySessions { limit } => Event::Refused(StreamRefusal {
            code: StreamCode::TooManySessions,
            detail: format!("this identity has {limit} sessions, which is the most"),
        }),
        CommandRefusal::Invalid(detail) => Event::Refused(StreamRefusal {
            code: StreamCode::BadMessage,
            detail: detail.clone(),
        }),
        // The id was drawn twice, or a refusal that an open cannot meet: trying
        // again draws another.
        _ => Event::Moved(String::new()),
    }
}
