//! Plays entries to the ledger and to the naive model: they must answer alike and
//! keep the same figures after every one. Knows nothing of who chose the entries.

use std::collections::BTreeMap;

use leasehold_ledger::{
    edit::{Edit, Expect, Guarded, RuleChange},
    entry::{Command, Entry, Grant, Report, Roll, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{Applied, Code, CommandOutcome, CommandRefusal},
    policy::{Kind, Policy},
    settings::Settings,
};

use crate::{
    counted::{DRIFT_PPM, can_be_spent},
    log::{Log, key, open, pattern, policy, report},
    naive::{Holder, Lease, Model, TTL_US},
    ops::{Begin, Op, Said, Step, calendar},
};

/// What a leader would write of a calendar, whose present period is as the model has it.
fn begin(model: &Model, number: u8, begin: Begin) -> Roll {
    let calendar = calendar(number);
    let (start, end) = model.periods.get(&calendar).map_or((-1_000, 0), |bounds| {
        (bounds.start_unix_us, bounds.end_unix_us)
    });
    let (start_unix_us, end_unix_us, ends_in_us) = match begin {
        Begin::Next(ends_in_us) => (end, end + 1_000, ends_in_us),
        Begin::Later(ends_in_us) => (end + 3_000, end + 4_000, ends_in_us),
        Begin::Again => (start, end, 700_000),
        Begin::Early => (end - 1, end + 1_000, 1_000_000),
        Begin::Stale => (start - 1_000, start, 0),
        Begin::Unsound => (end, end, 1_000_000),
    };
    Roll {
        calendar,
        start_unix_us,
        end_unix_us,
        ends_in_us,
    }
}

fn a_policy(kind: &Kind, cooldown_us: u64) -> Policy {
    Policy {
        cooldown_us,
        ..policy(kind.clone())
    }
}

/// The session that a slot stands for now: slots are reused, ids are not.
struct Slots(BTreeMap<u8, Vec<SessionId>>);

impl Slots {
    fn newest(&self, slot: u8) -> SessionId {
        self.0
            .get(&slot)
            .and_then(|ids| ids.last())
            .copied()
            .unwrap_or(SessionId(0))
    }

    /// Slots from 3 on are sessions before the newest.
    fn any(&self, slot: u8) -> SessionId {
        let ids = self.0.get(&(slot % 3));
        let back = usize::from(slot / 3) + 1;
        ids.and_then(|ids| ids.len().checked_sub(back).map(|place| ids[place]))
            .unwrap_or(SessionId(0))
    }
}

/// Three sessions, two of which hold something.
fn opening() -> Step {
    Step {
        pass_us: 0,
        ops: vec![
            Op::Open(0),
            Op::Open(1),
            Op::Open(2),
            Op::Grant(0, 14),
            Op::Grant(1, 9),
        ],
        restart: false,
    }
}

/// An edit of the policy, of each sort in turn: one that says no more, one with an
/// author, and one by somebody who has seen what is in force.
fn edit(log: &Log, policy: Policy) -> Command {
    let name = "P".to_owned();
    let tag = log.ledger.policy_view("P").map(|seen| seen.tag);
    let expect = match log.index() % 3 {
        0 => return Command::PutPolicy { name, policy },
        1 => Expect::Anything,
        _ => Expect::OneOf(tag.into_iter().collect()),
    };
    Command::Edit(Edit {
        changes: vec![Guarded {
            change: RuleChange::PutPolicy { name, policy },
            expect,
        }],
        by: "ada".to_owned(),
        wall_unix_us: 1_700_000_000_000_000,
    })
}

/// What plays, and what was said lately.
struct Play {
    log: Log,
    model: Model,
    slots: Slots,
    next_id: u128,
    settled: Option<Command>,
    pending: Vec<Command>,
    /// Whoever edits has seen what was in force before the entry.
    seen_is_in_force: bool,
}

/// Plays the steps under a rule, after three sessions have opened.
pub(crate) fn play(start: Kind, steps: Vec<Step>) {
    let mut play = Play::new(start);
    for step in std::iter::once(opening()).chain(steps) {
        play.step(&step);
    }
}

impl Play {
    fn new(start: Kind) -> Self {
        let mut log = Log::new();
        log.command(Command::PutSettings(Settings {
            session_ttl_us: TTL_US,
            sync_interval_us: 500_000,
            max_drift_ppm: DRIFT_PPM,
            tombstone_ttl_us: 24 * 3_600_000_000,
            ..Settings::default()
        }));
        log.command(Command::PutPolicy {
            name: "P".to_owned(),
            policy: a_policy(&start, 0),
        });
        log.command(Command::PutBudget {
            pattern: pattern("a/*"),
            rule: Rule::Named("P".to_owned()),
        });
        Self {
            log,
            model: Model::new(start),
            slots: Slots(BTreeMap::new()),
            next_id: 1,
            settled: None,
            pending: Vec::new(),
            seen_is_in_force: true,
        }
    }

    fn step(&mut self, step: &Step) {
        self.log.advance(step.pass_us);
        let mut entry = Entry::default();
        // Sessions that this entry opens count for its grants only.
        let before = Slots(self.slots.0.clone());
        for op in &step.ops {
            self.put(&mut entry, &before, op);
        }
        // Clients whose session has expired settle soon, and again; now and then
        // behind an edit.
        entry.commands.append(&mut self.pending);
        let applied = self.log.entry(entry.clone());
        self.model.now_us = self.log.now_us();
        self.model.fresh();
        self.model.counted.settle(self.model.now_us);

        self.check_syncs(&entry, &applied);
        assert_eq!(applied.expired, self.model.expire());
        let index = self.log.index();
        let begun = entry
            .rolls
            .iter()
            .filter(|roll| self.model.roll(roll, index))
            .count();
        assert_eq!(applied.rolled, begun > 0);
        self.seen_is_in_force = true;
        for (command, outcome) in entry.commands.iter().zip(&applied.commands) {
            self.model.fresh();
            self.check_command(command, outcome);
        }
        for (grant, place) in entry.grants.iter().zip(0..) {
            self.check_grant(grant, &applied.grants[place]);
        }
        self.model.drop_idle();
        self.check_figures();
        self.settle_soon(&applied);
        if step.restart {
            self.log.restart();
        }
    }

    /// Puts what somebody says into an entry.
    fn put(&mut self, entry: &mut Entry, before: &Slots, op: &Op) {
        let key = key("a/b");
        let command = match op {
            Op::Open(slot) => {
                let id = SessionId(self.next_id);
                self.next_id += 1;
                self.slots.0.entry(*slot).or_default().push(id);
                open(id)
            }
            Op::End(slot) => Command::EndSession {
                session: before.newest(*slot),
            },
            Op::Grant(slot, units) => {
                entry.grants.push(Grant {
                    session: self.slots.newest(*slot),
                    key,
                    units: *units,
                });
                return;
            }
            Op::Spend(units) => Command::Spend { key, units: *units },
            Op::SpendOnce(name, units) => Command::SpendOnce {
                key,
                units: *units,
                idempotency_key: name.to_string(),
            },
            Op::Sync(said) => {
                let sync = self.sync(before.newest(said.session), said);
                entry.syncs.push(sync);
                return;
            }
            Op::Settle(slot, back, spent) => self.settle(before.any(*slot), *back, *spent),
            Op::Edit(kind, cooldown_us) => edit(&self.log, a_policy(kind, *cooldown_us)),
            Op::Roll(number, when) => {
                entry.rolls.push(begin(&self.model, *number, *when));
                return;
            }
            Op::CorrectPeriod(number, when) => {
                Command::CorrectPeriod(begin(&self.model, *number, *when))
            }
            Op::Correct(id, change) => Command::Correct {
                key,
                id: id.to_string(),
                change: *change,
                reason: "they asked".to_owned(),
                by: String::new(),
                wall_unix_us: 0,
            },
            Op::CoolDown => Command::CoolDown { key },
        };
        entry.commands.push(command);
    }

    fn sync(&self, session: SessionId, said: &Said) -> Sync {
        let holder = self.model.holders.get(&session);
        let lease =
            holder.and_then(|holder| holder.leases.iter().rev().nth(usize::from(said.lease)));
        let ages = said.ages.iter().map(|(units, age_us)| SpentAge {
            units: *units,
            age_us: *age_us,
        });
        let ages: Vec<SpentAge> = ages.collect();
        let reports = lease.map(|lease| Report {
            last: said.last,
            spent_total: (lease.spent + said.spent).saturating_sub(said.late),
            returned_total: (lease.returned + said.returned).saturating_sub(said.late),
            overrun_total: (lease.overrun + said.overrun).saturating_sub(said.late),
            held: said.held,
            ages,
            ..report(&key("a/b"), lease.generation)
        });
        let seq = holder.map_or(1, |holder| (holder.seq + 1).saturating_sub(said.late));
        Sync {
            session,
            seq,
            renew: said.renew,
            close: said.close,
            reports: reports.into_iter().collect(),
        }
    }

    fn settle(&mut self, session: SessionId, back: u8, spent: u64) -> Command {
        // A settle is repeated until it is acknowledged.
        if back == 2
            && let Some(again) = &self.settled
        {
            return again.clone();
        }
        let live = self.model.holders.get(&session).map(|holder| {
            let leases = holder.leases.iter();
            leases
                .map(|lease| (lease.generation, lease.spent))
                .collect()
        });
        let dead = || {
            let ghosts = self.model.ghosts.get(&session)?.iter();
            Some(
                ghosts
                    .map(|ghost| (ghost.generation, ghost.spent))
                    .collect(),
            )
        };
        let leases: Vec<(u64, u64)> = live.or_else(dead).unwrap_or_default();
        let lease = leases.iter().rev().nth(usize::from(back));
        let leases = lease.map(|(generation, known)| SettledLease {
            key: key("a/b"),
            generation: *generation,
            spent_total: known + spent,
        });
        let settle = Command::Settle {
            session,
            identity: String::new(),
            leases: leases.into_iter().collect(),
        };
        self.settled = Some(settle.clone());
        settle
    }

    fn settle_soon(&mut self, applied: &Applied) {
        let index = self.log.index();
        for id in applied.expired.iter().filter(|_| !index.is_multiple_of(3)) {
            let leases = self.model.ghosts[id].iter().map(|ghost| SettledLease {
                key: key("a/b"),
                generation: ghost.generation,
                spent_total: ghost.spent + index % 4,
            });
            let settle = Command::Settle {
                session: *id,
                identity: String::new(),
                leases: leases.collect(),
            };
            self.pending.extend([settle.clone(), settle]);
        }
    }

    fn check_syncs(&mut self, entry: &Entry, applied: &Applied) {
        let model = &mut self.model;
        for (sync, outcome) in entry.syncs.iter().zip(&applied.syncs) {
            assert_eq!(outcome.expired, !model.holders.contains_key(&sync.session));
            for report in &sync.reports {
                model.report(sync.session, report, sync.close);
            }
            if let Some(holder) = model.holders.get_mut(&sync.session) {
                // A resume has number 0 and is as new as its stream.
                let newer = sync.seq == 0 || sync.seq > holder.seq;
                let renews = sync.renew && !sync.close && !holder.ended && newer;
                assert_eq!(outcome.renewed, renews);
                holder.seq = holder.seq.max(sync.seq);
                if renews {
                    holder.deadline_us = model.now_us + TTL_US + 1;
                }
            }
            if sync.close {
                model.finish(sync.session);
            }
        }
    }

    fn check_command(&mut self, command: &Command, outcome: &CommandOutcome) {
        let index = self.log.index();
        let model = &mut self.model;
        match command {
            Command::Open { session, .. } => {
                assert!(
                    matches!(outcome, CommandOutcome::Opened { .. }),
                    "{outcome:?}"
                );
                let deadline_us = model.now_us + TTL_US + 1;
                let holder = Holder {
                    deadline_us,
                    seq: 0,
                    ended: false,
                    leases: Vec::new(),
                };
                model.holders.insert(*session, holder);
            }
            Command::EndSession { session } => {
                if let Some(holder) = model.holders.get_mut(session) {
                    holder.ended = true;
                }
            }
            Command::Settle {
                session, leases, ..
            } => model.settle(*session, leases, &key("a/b")),
            Command::PutPolicy { policy, .. } => self.follow_edit(policy),
            Command::Edit(edit) => {
                let [guarded] = edit.changes.as_slice() else {
                    panic!("{edit:?}")
                };
                let RuleChange::PutPolicy { policy, .. } = &guarded.change else {
                    panic!("{edit:?}")
                };
                let refused = matches!(outcome, CommandOutcome::Refused(_));
                let guarded = guarded.expect != Expect::Anything;
                assert_eq!(refused, guarded && !self.seen_is_in_force, "{outcome:?}");
                if !refused {
                    self.follow_edit(policy);
                }
            }
            Command::Spend { units, .. } => self.check_spend(*units, outcome),
            Command::SpendOnce {
                units,
                idempotency_key,
                ..
            } => self.check_spend_once(idempotency_key, *units, outcome),
            Command::CorrectPeriod(roll) => {
                let done = model.correct_period(roll).is_some();
                assert_eq!(
                    matches!(outcome, CommandOutcome::Done { .. }),
                    done,
                    "{outcome:?}"
                );
            }
            Command::Correct { id, change, .. } => {
                let corrected = model.correct(id.parse().unwrap(), *change, index);
                match (outcome, corrected) {
                    (CommandOutcome::Corrected { effect, repeated }, corrected) => {
                        assert_eq!(corrected, Some((*effect, *repeated)));
                    }
                    (CommandOutcome::Refused(refusal), None) => assert!(
                        matches!(
                            refusal,
                            CommandRefusal::Invalid(_)
                                | CommandRefusal::WrongKind { .. }
                                | CommandRefusal::CorrectionExists
                        ),
                        "{refusal:?}"
                    ),
                    (outcome, corrected) => panic!("{outcome:?}, not {corrected:?}"),
                }
            }
            Command::CoolDown { .. } => {
                let changed = model.cool_down(index);
                assert_eq!(*outcome, CommandOutcome::Done { changed });
            }
            command => panic!("{command:?}"),
        }
    }

    fn follow_edit(&mut self, policy: &Policy) {
        let model = &mut self.model;
        let same = policy.kind == model.kind && policy.cooldown_us == model.cooldown_us;
        self.seen_is_in_force &= same;
        model.edit(&policy.kind, policy.cooldown_us, self.log.index());
    }

    /// What was admitted under a name is charged once, for as long as it is known.
    fn check_spend_once(&mut self, name: &str, units: u64, outcome: &CommandOutcome) {
        match self.model.known_under(name) {
            None => {
                self.check_spend(units, outcome);
                let is_admitted =
                    matches!(outcome, CommandOutcome::Spent(spent) if spent.refusal.is_none());
                if is_admitted && units > 0 {
                    let ttl_us = self.log.ledger.settings().idempotency_ttl_us;
                    let until_us = self.model.now_us + ttl_us;
                    self.model.names.insert(name.to_owned(), (units, until_us));
                }
            }
            Some(same) if same == units => {
                let CommandOutcome::Spent(spent) = outcome else {
                    panic!("{outcome:?}")
                };
                assert!(spent.repeated && spent.refusal.is_none(), "{spent:?}");
                assert_eq!(spent.free, self.model.free());
            }
            Some(_) => assert_eq!(
                *outcome,
                CommandOutcome::Refused(CommandRefusal::IdempotencyKeyReused)
            ),
        }
    }

    fn check_spend(&mut self, units: u64, outcome: &CommandOutcome) {
        let index = self.log.index();
        let model = &mut self.model;
        let CommandOutcome::Spent(spent) = outcome else {
            panic!("{outcome:?}")
        };
        let refusal = if !can_be_spent(&model.kind) {
            Some((Code::WrongKind, None))
        } else if units == 0 {
            None
        } else if let Some(cooling_us) = model.cooling_us() {
            Some((Code::Cooldown, Some(cooling_us)))
        } else if units > model.largest_cost() {
            Some((Code::CostAboveLimit, None))
        } else if units > model.free() {
            model.cool_down(index);
            let earliest = || {
                let holders = model.holders.values();
                holders
                    .filter(|holder| holder.leases.iter().any(|lease| lease.outstanding() > 0))
                    .map(|holder| holder.deadline_us)
                    .min()
            };
            let by_time_us = match model.kind.calendar() {
                Some(_) => model.free_in_next_when(units),
                None => model.free_when(units),
            };
            let when_us = by_time_us.or_else(earliest);
            let when_us = when_us.or_else(|| model.free_in_later_when(units));
            let after = |when_us: u64| when_us.max(model.cooling_until_us) - model.now_us;
            Some((Code::Limit, when_us.map(after)))
        } else {
            None
        };
        assert_eq!(
            spent.refusal.map(|no| (no.code, no.retry_after_us)),
            refusal
        );
        if refusal.is_none() && units > 0 {
            model.appear(index);
            model.counted.charge(units, model.now_us);
            model.lifetime.central += units;
        }
        assert_eq!(spent.free, model.free());
    }

    fn check_grant(&mut self, grant: &Grant, outcome: &leasehold_ledger::outcome::GrantOutcome) {
        let index = self.log.index();
        let model = &mut self.model;
        model.fresh();
        let free = model.free();
        let now_us = model.now_us;
        let tells = model.kind.tells();
        let cools = model.cooling_us().is_some();
        let epoch = if model.exists { model.epoch } else { index };
        let Some(holder) = model.holders.get_mut(&grant.session) else {
            assert_eq!(outcome.units, 0);
            return;
        };
        let newest = holder
            .leases
            .iter_mut()
            .max_by_key(|lease| lease.generation);
        let continued = newest.filter(|lease| lease.epoch == epoch);
        let misbehaved = continued.as_ref().is_some_and(|lease| lease.misbehaved);
        let refused = holder.ended || misbehaved;
        let given = if refused || tells || cools {
            0
        } else {
            grant.units.min(free)
        };
        assert_eq!(outcome.units, given, "{grant:?} of {free} free");
        // Whoever tells needs a lease to tell of.
        if given > 0 || (tells && !refused) {
            let lease = match continued {
                Some(lease) => lease,
                None => {
                    holder.leases.push(Lease {
                        generation: index,
                        granted: 0,
                        spent: 0,
                        returned: 0,
                        first_us: now_us,
                        epoch,
                        misbehaved: false,
                        tells,
                        overrun: 0,
                    });
                    holder.leases.last_mut().unwrap()
                }
            };
            lease.granted += given;
            assert_eq!(
                (outcome.generation, outcome.granted_total),
                (lease.generation, lease.granted)
            );
            model.lifetime.granted += given;
            model.appear(index);
        }
    }

    fn check_figures(&self) {
        let model = &self.model;
        let view = self.log.ledger.account(&key("a/b"));
        assert_eq!(view.is_some(), model.exists);
        let Some(view) = view else { return };
        assert_eq!(view.limit, model.limit());
        assert_eq!(view.counted, model.counted.units());
        assert_eq!(view.outstanding, model.outstanding());
        assert_eq!(view.free, model.free());
        assert_eq!(view.debt, model.used().saturating_sub(model.limit()));
        assert_eq!(view.cooling_us, model.cooling_us());
        let next_us = model
            .free_when(model.free() + 1)
            .map(|when_us| when_us.max(model.cooling_until_us) - model.now_us);
        assert_eq!(view.next_free_us, next_us);
        assert_eq!(view.lifetime, model.lifetime);
        let effects = model.corrections.values().map(|(_, effect, _)| effect);
        assert_eq!(view.corrected, effects.sum::<i64>());
    }
}
