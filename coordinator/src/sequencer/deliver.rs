//! Who is told what of an entry that was applied. Knows the state with the entry;
//! changes nothing but what streams are known to have been told.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use leasehold_allotter::{Conclusion, Recall, Refused};
use leasehold_key::Key;
use leasehold_ledger::{
    Ledger, Standing,
    entry::{Grant, SessionId},
    outcome::{Applied, Code, CommandOutcome, CommandRefusal, Refusal, SpendOutcome, SyncOutcome},
};
use tokio::sync::oneshot;

use super::{
    Log, Sequencer, SubmitError,
    event::{Answer, Event, Opened, StreamCode, StreamRefusal},
    item::{Accepted, Link, StreamId},
    plan::{NO_BUDGET, Slot, Told},
    streams::{KeySlot, Stream, turn_away},
};

impl<L: Log> Sequencer<L> {
    /// What everybody is told. `ledger` is the state with the entry.
    pub(super) fn deliveries(
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
                Slot::Withheld {
                    reply,
                    idempotency_key,
                    refusal,
                } => {
                    let is_reused = idempotency_key.is_some_and(|name| ledger.knows_spend(&name));
                    let outcome = if is_reused {
                        CommandOutcome::Refused(CommandRefusal::IdempotencyKeyReused)
                    } else {
                        CommandOutcome::Spent(SpendOutcome {
                            refusal: Some(refusal),
                            ..SpendOutcome::without_budget()
                        })
                    };
                    drop(reply.send(Ok(outcome)));
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
                        whole: recall.whole,
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
            let is_anew = pushes.is_anew(session, &reported.key);
            let refusal = if misbehaved {
                let refusal = Refusal {
                    code: Code::Misbehaved,
                    retry_after_us: None,
                };
                Some((refusal, 0))
            } else if let Some(refusal) = reported.withheld {
                metrics::counter!("leasehold_refusals_total", "code" => refusal.code.as_str())
                    .increment(1);
                pushes.answer(session, &reported.key);
                Some((refusal, 0))
            } else {
                pushes.answer(session, &reported.key)
            };
            let standing = standing(ledger, entry, &reported.key, applied.now_us);
            if reported.done && standing.lease.is_none() {
                entry.keys.remove(&reported.key);
            }
            let slot = entry.keys.get_mut(&reported.key);
            let valid_us = self.calendars.valid_us(standing.policy.as_deref());
            answers.push(Answer {
                valid_us,
                is_anew: is_anew && refusal.is_none(),
                ..answer(standing, slot, reported.key_id, seq, refusal)
            });
        }
        Some(Event::Synced {
            seq,
            renewed: outcome.renewed,
            answers,
        })
    }

    /// Tells streams of grants, refusals and edited rules that no sync of this entry
    /// asked for.
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
            for (key, refusal, is_anew) in keys {
                // Of a key without a budget nobody would hear anything but that.
                let is_no_budget = refusal.is_some_and(|(refusal, _)| refusal == NO_BUDGET);
                if !is_no_budget && !entry.sight().reaches(&key) {
                    continue;
                }
                let standing = standing(ledger, entry, &key, now_us);
                let Some(slot) = entry.keys.get_mut(&key) else {
                    continue;
                };
                let key_id = slot.key_id;
                let valid_us = self.calendars.valid_us(standing.policy.as_deref());
                answers.push(Answer {
                    valid_us,
                    is_anew: is_anew && refusal.is_none(),
                    ..answer(standing, Some(slot), key_id, basis_seq, refusal)
                });
            }
            if !answers.is_empty() {
                deliveries.push((stream, Event::Granted(answers)));
            }
        }
    }
}

/// A refusal, and the highest lane that it is about.
type LaneRefusal = (Refusal, u32);

/// Keys that a session is to hear of, with a refusal or without, and whether it is worth
/// asking anew.
type KeyAnswers = Vec<(Key, Option<LaneRefusal>, bool)>;

/// What their sessions are to hear of with an entry.
pub(super) struct Pushes {
    refusals: HashMap<SessionId, HashMap<Key, LaneRefusal>>,
    /// Keys of which it is worth asking anew, whatever was said before.
    anew: HashSet<(SessionId, Key)>,
    /// What no sync has been answered with yet.
    rest: BTreeMap<SessionId, BTreeSet<Key>>,
}

impl Pushes {
    pub(super) fn new(conclusion: &Conclusion, grants: &[Grant], applied: &Applied) -> Self {
        let mut rest: BTreeMap<SessionId, BTreeSet<Key>> = BTreeMap::new();
        for (grant, outcome) in grants.iter().zip(&applied.grants) {
            if outcome.units > 0 {
                rest.entry(grant.session)
                    .or_default()
                    .insert(grant.key.clone());
            }
        }
        let mut refusals: HashMap<SessionId, HashMap<Key, LaneRefusal>> = HashMap::new();
        for Refused {
            session,
            key,
            refusal,
            lane,
        } in &conclusion.refusals
        {
            metrics::counter!("leasehold_refusals_total", "code" => refusal.code.as_str())
                .increment(1);
            refusals
                .entry(*session)
                .or_default()
                .insert(key.clone(), (*refusal, *lane));
            rest.entry(*session).or_default().insert(key.clone());
        }
        Self {
            refusals,
            anew: HashSet::new(),
            rest,
        }
    }

    /// The session is to hear of the key, whether it asked or not, and that what it was
    /// refused may be there by now.
    pub(super) fn tell(&mut self, session: SessionId, key: Key) {
        self.anew.insert((session, key.clone()));
        self.rest.entry(session).or_default().insert(key);
    }

    /// The session is to hear how things stand with a key.
    pub(super) fn mention(&mut self, session: SessionId, key: Key) {
        self.rest.entry(session).or_default().insert(key);
    }

    /// The session is refused a key, whether it asked or not.
    pub(super) fn refuse(&mut self, session: SessionId, key: Key, refusal: Refusal) {
        let refusals = self.refusals.entry(session).or_default();
        refusals.insert(key.clone(), (refusal, 0));
        self.rest.entry(session).or_default().insert(key);
    }

    fn is_anew(&self, session: SessionId, key: &Key) -> bool {
        !self.anew.is_empty() && self.anew.contains(&(session, key.clone()))
    }

    /// A sync that reported the key is answered: there is nothing left to push.
    fn answer(&mut self, session: SessionId, key: &Key) -> Option<LaneRefusal> {
        if let Some(keys) = self.rest.get_mut(&session) {
            keys.remove(key);
        }
        self.refusal(session, key)
    }

    fn refusal(&self, session: SessionId, key: &Key) -> Option<LaneRefusal> {
        self.refusals.get(&session)?.get(key).copied()
    }

    fn rest(self) -> Vec<(SessionId, KeyAnswers)> {
        let Self {
            mut refusals,
            mut anew,
            rest,
        } = self;
        rest.into_iter()
            .map(|(session, keys)| {
                let mut refusals = refusals.remove(&session).unwrap_or_default();
                let keys = keys
                    .into_iter()
                    .map(|key| {
                        let refusal = refusals.remove(&key);
                        let is_anew = !anew.is_empty() && anew.remove(&(session, key.clone()));
                        (key, refusal, is_anew)
                    })
                    .collect();
                (session, keys)
            })
            .collect()
    }
}

/// How things stand with a key for a stream; with one that it may not see, as with a key
/// that no budget matches.
fn standing(ledger: &Ledger, entry: &Stream, key: &Key, now_us: u64) -> Standing {
    let standing = ledger.standing(entry.session, key, now_us);
    if entry.sight().reaches(key) {
        return standing;
    }
    Standing {
        holders: u64::from(standing.lease.is_some()),
        lease: standing.lease,
        policy: None,
        free: 0,
    }
}

/// The state of one key as its stream is told.
fn answer(
    standing: Standing,
    slot: Option<&mut KeySlot>,
    key_id: u32,
    basis_seq: u64,
    refusal: Option<LaneRefusal>,
) -> Answer {
    let Standing {
        lease,
        policy,
        free,
        holders,
    } = standing;
    // The same rule is the same allocation. A rule that was made anew with the same
    // content is told once more, which does no harm.
    let policy = match (slot, policy) {
        (Some(slot), Some(policy))
            if slot
                .policy
                .as_ref()
                .is_none_or(|told| !Arc::ptr_eq(told, &policy)) =>
        {
            slot.policy = Some(Arc::clone(&policy));
            Some(policy)
        }
        _ => None,
    };
    Answer {
        key_id,
        generation: lease.map_or(0, |lease| lease.generation),
        granted_total: lease.map_or(0, |lease| lease.granted),
        basis_seq,
        refusal: refusal.map(|(refusal, _)| refusal),
        refused_lane: refusal.map_or(0, |(_, lane)| lane),
        policy,
        free,
        holders,
        valid_us: 0,
        is_anew: false,
    }
}

pub(super) fn expired(detail: &str) -> Event {
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
