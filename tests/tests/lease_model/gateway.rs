//! A gateway's side: the real spending core, its slots, and requests of every
//! manner. Knows no ledger; what it hears are the wire's messages.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use leasehold_checkers::Admission;
use leasehold_key::Key;
use leasehold_ledger::entry::{SessionId, SettledLease, SpentAge};
use leasehold_spend::{
    Begun, ClientCore, Clock, Code, CoreSettings, Hold, Line, Patience, Slot, Verdict, Waiter,
    message::{self, Incoming, KeyGrant, LeaseState, Next, Opened, Outgoing, Report, StreamId},
};
use rand::{Rng, rngs::StdRng};

use crate::{
    clock::DriftingClock,
    wire::{Down, DownGrant, Stream, Up, UpReport},
    world::{MS, SYNC_INTERVAL_MS, TTL_MS},
};

/// A gateway's clock during one piece of work. Now and then time passes between
/// two readings, as it does for a process that is not running.
struct Working<'a> {
    clock: &'a DriftingClock,
    now_ns: Cell<u64>,
    /// Real time that passes before the reading after next, once.
    pause_ns: Cell<u64>,
    readings: Cell<u32>,
}

impl Clock for Working<'_> {
    fn now_ns(&self) -> u64 {
        self.readings.set(self.readings.get() + 1);
        if self.readings.get() >= 2 {
            self.now_ns.set(self.now_ns.get() + self.pause_ns.take());
        }
        self.clock.reading_ns(self.now_ns.get())
    }
}

struct Waiting {
    key: usize,
    waiter: Waiter,
    until_ns: u64,
}

struct Reserved {
    key: usize,
    units: u64,
    hold: Hold,
    until_ns: u64,
}

pub(crate) struct Gateway {
    pub(crate) clock: DriftingClock,
    core: ClientCore,
    keys: Vec<Key>,
    slots: Vec<Arc<Slot>>,
    stream: Option<(Stream, StreamId)>,
    reconnect_ns: u64,
    waiting: Vec<Waiting>,
    reserved: Vec<Reserved>,
    is_finished: bool,
    /// Not before this moment: it is still busy.
    pub(crate) busy_until_ns: u64,
    /// By the moment at which they leave.
    pub(crate) outbox: Vec<(u64, Stream, Up)>,
    /// By the key's place.
    pub(crate) admissions: Vec<(usize, Admission)>,
    pub(crate) expired_sessions: u64,
}

impl Gateway {
    pub(crate) fn new(clock: DriftingClock, keys: &[Key], now_ns: u64) -> Self {
        let line = Arc::new(Line::new(8, || ()));
        let mut core = ClientCore::new(CoreSettings::default(), line);
        let reading_ns = clock.reading_ns(now_ns);
        let slots = keys
            .iter()
            .map(|key| core.slot(key.as_str(), reading_ns).expect("room"));
        Self {
            slots: slots.collect(),
            clock,
            core,
            keys: keys.to_vec(),
            stream: None,
            reconnect_ns: now_ns,
            waiting: Vec::new(),
            reserved: Vec::new(),
            is_finished: false,
            busy_until_ns: 0,
            outbox: Vec::new(),
            admissions: Vec::new(),
            expired_sessions: 0,
        }
    }

    fn working(clock: &DriftingClock, now_ns: u64, pause_ns: u64) -> Working<'_> {
        Working {
            clock,
            now_ns: Cell::new(now_ns),
            pause_ns: Cell::new(pause_ns),
            readings: Cell::new(0),
        }
    }

    pub(crate) fn wants_stream(&self, now_ns: u64) -> bool {
        self.stream.is_none()
            && !self.is_finished
            && now_ns >= self.reconnect_ns.max(self.busy_until_ns)
    }

    pub(crate) fn connected(&mut self, stream: Stream, now_ns: u64) {
        let open = self.core.start_stream(self.clock.reading_ns(now_ns));
        self.stream = Some((stream, open.stream));
        let resume = open
            .resume
            .map(|session| SessionId(u128::from_be_bytes(session.0)));
        self.outbox.push((now_ns, stream, Up::Open { resume }));
    }

    pub(crate) fn broken(&mut self, stream: Stream, now_ns: u64) {
        if let Some((present, id)) = self.stream
            && present == stream
        {
            self.core.on_lost(id, self.clock.reading_ns(now_ns));
            self.disconnect(now_ns);
        }
    }

    fn disconnect(&mut self, now_ns: u64) {
        self.stream = None;
        self.reconnect_ns = now_ns + 30 * MS;
    }

    /// Hands everything back; nothing may be admitted any more.
    pub(crate) fn close(&mut self, now_ns: u64, rng: &mut StdRng) {
        self.core.close();
        for key in 0..self.keys.len() {
            let verdict = self.slots[key].try_spend(1, &Self::working(&self.clock, now_ns, 0));
            assert_eq!(verdict, Verdict::Unavailable { code: Code::Closed });
        }
        self.work(now_ns, rng);
    }

    /// One request.
    pub(crate) fn spend(&mut self, key: usize, units: u64, now_ns: u64, rng: &mut StdRng) {
        let clock = Self::working(&self.clock, now_ns, pause(rng));
        let slot = &self.slots[key];
        let manner = rng.random_range(0..10);
        let verdict = if manner < 6 {
            slot.try_spend(units, &clock)
        } else if manner < 7 {
            if let Some(hold) = slot.hold(units) {
                let until_ns = now_ns + rng.random_range(0..2 * TTL_MS * MS);
                self.reserved.push(Reserved {
                    key,
                    units,
                    hold,
                    until_ns,
                });
            }
            Verdict::Empty
        } else {
            let patience_ns = rng.random_range(0..3_000 * MS);
            let patience = if manner < 9 {
                Patience::OneAnswer
            } else {
                Patience::Until(self.clock.reading_ns(now_ns) + patience_ns)
            };
            match slot.spend(units, patience, &clock) {
                Begun::Answered(verdict) => verdict,
                Begun::Waits(waiter) => {
                    let until_ns = now_ns + patience_ns;
                    self.waiting.push(Waiting {
                        key,
                        waiter,
                        until_ns,
                    });
                    Verdict::Empty
                }
            }
        };
        let busy_until_ns = clock.now_ns.get();
        if verdict == Verdict::Admitted {
            // The units were taken before the first look at the clock.
            self.admit(key, units, now_ns);
        }
        assert_ne!(verdict, Verdict::Degraded, "no policy here fails open");
        self.busy_until_ns = self.busy_until_ns.max(busy_until_ns);
    }

    fn admit(&mut self, key: usize, units: u64, at_ns: u64) {
        self.admissions.push((
            key,
            Admission {
                units,
                call_ns: at_ns,
                return_ns: at_ns,
            },
        ));
    }

    /// Decides what waits, and says what there is to say.
    pub(crate) fn work(&mut self, now_ns: u64, rng: &mut StdRng) {
        let mut context = Context::from_waker(Waker::noop());
        let clock = Self::working(&self.clock, now_ns, 0);
        let mut admitted = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            let units = waiting.waiter.units();
            let verdict = match waiting.waiter.poll(&mut context, &clock) {
                Poll::Ready(verdict) => Some(verdict),
                Poll::Pending if waiting.until_ns > now_ns => {
                    self.waiting.push(waiting);
                    continue;
                }
                // Some walk away without a word.
                Poll::Pending if rng.random_range(0..3) == 0 => None,
                Poll::Pending => Some(waiting.waiter.give_up(&clock)),
            };
            if verdict == Some(Verdict::Admitted) {
                admitted.push((waiting.key, units));
            }
        }
        for reserved in std::mem::take(&mut self.reserved) {
            if reserved.until_ns > now_ns {
                self.reserved.push(reserved);
            } else if rng.random() && reserved.hold.commit(&clock) {
                admitted.push((reserved.key, reserved.units));
            }
        }
        for (key, units) in admitted {
            self.admit(key, units, now_ns);
        }
        let clock = Self::working(&self.clock, now_ns, pause(rng));
        while let Some(said) = self.core.poll(&clock) {
            let Some((stream, _)) = self.stream else {
                break;
            };
            let message = match said {
                Outgoing::Sync(sync) => Up::Sync {
                    seq: sync.seq,
                    reports: self.spell(sync.reports),
                },
                Outgoing::Close(sync) => Up::Close {
                    seq: sync.seq,
                    reports: self.spell(sync.reports),
                },
                Outgoing::Settle(settle) => Up::Settle {
                    session: SessionId(u128::from_be_bytes(settle.session.0)),
                    leases: settle
                        .leases
                        .into_iter()
                        .map(|(key, generation, spent_total)| SettledLease {
                            key: Key::parse(&key).expect("a key of ours"),
                            generation,
                            spent_total,
                        })
                        .collect(),
                },
                Outgoing::Leave => {
                    self.stream = None;
                    self.reconnect_ns = now_ns + 30 * MS;
                    break;
                }
            };
            self.outbox.push((clock.now_ns.get(), stream, message));
        }
        self.busy_until_ns = self.busy_until_ns.max(clock.now_ns.get());
    }

    fn spell(&self, reports: Vec<Report>) -> Vec<UpReport> {
        let spell = |report: Report| UpReport {
            key: self.keys[usize::try_from(report.key_id).expect("small")].clone(),
            generation: report.generation,
            last: report.is_final,
            spent_total: report.spent_total,
            returned_total: report.returned_total,
            held: report.held,
            ages: report
                .spent_ages
                .iter()
                .map(|age| SpentAge {
                    units: age.units,
                    age_us: age.age_us,
                })
                .collect(),
            want: report.want,
        };
        reports.into_iter().map(spell).collect()
    }

    fn key_id(&self, key: &Key) -> u32 {
        let place = self
            .keys
            .iter()
            .position(|known| known == key)
            .expect("a key of the model");
        self.slots[place].index()
    }

    fn grants(&self, grants: Vec<DownGrant>) -> Vec<KeyGrant> {
        let grant = |grant: DownGrant| KeyGrant {
            ask_anew: false,
            key_id: self.key_id(&grant.key),
            generation: grant.generation,
            granted_total: grant.granted_total,
            basis_seq: grant.basis_seq,
            valid_for_us: 0,
            refusal: grant.refusal.map(|refusal| message::Refusal {
                code: Code::from_text(refusal.code.as_str()),
                retry_after_us: refusal.retry_after_us.unwrap_or(0),
                lane: 0,
            }),
            policy: grant.policy,
            ..KeyGrant::default()
        };
        grants.into_iter().map(grant).collect()
    }

    /// Takes in a message; one of an old stream counts for nothing.
    pub(crate) fn receive(&mut self, stream: Stream, message: Down, now_ns: u64, rng: &mut StdRng) {
        let Some((_, id)) = self.stream.filter(|(present, _)| *present == stream) else {
            return;
        };
        let incoming = match message {
            Down::Opened {
                session,
                validity_us,
                leases,
            } => Incoming::Opened(Opened {
                session: message::SessionId(session.0.to_be_bytes()),
                validity_us,
                sync_interval_us: SYNC_INTERVAL_MS * 1_000,
                session_ttl_us: TTL_MS * 1_000,
                reports_per_sync_max: 0,
                keys_per_session_max: 0,
                leases: leases
                    .into_iter()
                    .map(|lease| LeaseState {
                        key: lease.key.as_str().into(),
                        generation: lease.generation,
                        granted_total: lease.granted_total,
                        spent_total: lease.spent_total,
                        returned_total: lease.returned_total,
                    })
                    .collect(),
            }),
            Down::Synced {
                seq,
                renewed,
                grants,
            } => Incoming::Synced {
                seq,
                renewed,
                grants: self.grants(grants),
            },
            Down::Granted { grants } => Incoming::Granted(self.grants(grants)),
            Down::Recall {
                key,
                generation,
                returned_total_target,
                granted_total,
                whole,
            } => Incoming::Recall {
                key_id: self.key_id(&key),
                generation,
                returned_total_target,
                granted_total,
                whole,
            },
            Down::Settled { session } => {
                Incoming::Settled(message::SessionId(session.0.to_be_bytes()))
            }
            Down::Closed => Incoming::Closed,
            Down::Moved => Incoming::Moved { leader: None },
            Down::Expired => {
                self.expired_sessions += 1;
                Incoming::Refused {
                    code: "session_expired".to_owned(),
                    detail: String::new(),
                }
            }
        };
        let clock = Self::working(&self.clock, now_ns, 0);
        match self.core.on_message(id, incoming, &clock) {
            Next::Stay => {}
            Next::Reconnect { .. } => self.disconnect(now_ns),
            Next::Finished => {
                self.stream = None;
                self.is_finished = true;
            }
        }
        self.work(now_ns, rng);
    }
}

/// Most work is quick; now and then it outlasts a session.
fn pause(rng: &mut StdRng) -> u64 {
    match rng.random_range(0..200) {
        0 => rng.random_range(0..2 * TTL_MS * MS),
        1..4 => rng.random_range(0..200 * MS),
        _ => 0,
    }
}
