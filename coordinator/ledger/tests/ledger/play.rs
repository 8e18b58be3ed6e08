//! Plays entries to the ledger and to the naive model: they must answer alike and
//! keep the same figures after every one. Knows nothing of who chose the entries.

use std::collections::BTreeMap;

use leasehold_ledger::{
    edit::{Edit, Expect, Guarded, RuleChange},
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{Code, CommandOutcome},
    policy::Kind,
    settings::Settings,
};

use crate::{
    log::{Log, key, open, pattern, policy, report},
    naive::{Counted, DRIFT_PPM, Holder, Lease, Model, TTL_US},
};

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// How much time passes first.
    pub(crate) pass_us: u64,
    pub(crate) ops: Vec<Op>,
    /// The ledger goes on from its snapshot afterwards.
    pub(crate) restart: bool,
}

/// What an entry holds.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Open(u8),
    End(u8),
    Grant(u8, u64),
    Spend(u64),
    /// Session, lease from the newest, spent and returned beyond the known, ages,
    /// held, last, close, renew, how far the message is out of order.
    Sync(
        u8,
        u8,
        u64,
        u64,
        Vec<(u64, u64)>,
        u64,
        bool,
        bool,
        bool,
        u64,
    ),
    Settle(u8, u8, u64),
    Edit(Kind),
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
fn edit(log: &Log, kind: &Kind) -> Command {
    let name = "P".to_owned();
    let policy = policy(kind.clone());
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

/// Plays the steps under a rule, after three sessions have opened.
pub(crate) fn play(start: Kind, steps: Vec<Step>) {
    let key = key("a/b");
    let mut log = Log::new();
    log.command(Command::PutSettings(Settings {
        session_ttl_us: TTL_US,
        sync_interval_us: 500_000,
        max_drift_ppm: DRIFT_PPM,
        ..Settings::default()
    }));
    log.command(Command::PutPolicy {
        name: "P".to_owned(),
        policy: policy(start.clone()),
    });
    log.command(Command::PutBudget {
        pattern: pattern("a/*"),
        rule: Rule::Named("P".to_owned()),
    });
    let mut slots = Slots(BTreeMap::new());
    let mut next_id = 1;
    let mut settled: Option<Command> = None;
    let mut pending: Vec<Command> = Vec::new();
    let mut model = Model {
        now_us: 0,
        counted: Counted::new(&start, 0),
        kind: start,
        epoch: 0,
        holders: BTreeMap::new(),
        ghosts: BTreeMap::new(),
        strict_from_us: None,
        exists: false,
    };
    for step in std::iter::once(opening()).chain(steps) {
        log.advance(step.pass_us);
        let index = log.index() + 1;
        let mut entry = Entry::default();
        // Sessions that this entry opens count for its grants only.
        let known = slots.0.clone();
        let before = Slots(known);
        for op in &step.ops {
            match op {
                Op::Open(slot) => {
                    let id = SessionId(next_id);
                    next_id += 1;
                    entry.commands.push(open(id));
                    slots.0.entry(*slot).or_default().push(id);
                }
                Op::End(slot) => {
                    let session = before.newest(*slot);
                    entry.commands.push(Command::EndSession { session });
                }
                Op::Grant(slot, units) => {
                    let session = slots.newest(*slot);
                    entry.grants.push(Grant {
                        session,
                        key: key.clone(),
                        units: *units,
                    });
                }
                Op::Spend(units) => {
                    entry.commands.push(Command::Spend {
                        key: key.clone(),
                        units: *units,
                    });
                }
                Op::Sync(slot, back, spent, returned, ages, held, last, close, renew, late) => {
                    let session = before.newest(*slot);
                    let holder = model.holders.get(&session);
                    let lease = holder
                        .and_then(|holder| holder.leases.iter().rev().nth(usize::from(*back)));
                    let reports = lease.map(|lease| Report {
                        last: *last,
                        spent_total: (lease.spent + spent).saturating_sub(*late),
                        returned_total: (lease.returned + returned).saturating_sub(*late),
                        held: *held,
                        ages: ages
                            .iter()
                            .map(|(units, age_us)| SpentAge {
                                units: *units,
                                age_us: *age_us,
                            })
                            .collect(),
                        ..report(&key, lease.generation)
                    });
                    let seq = holder.map_or(1, |holder| (holder.seq + 1).saturating_sub(*late));
                    entry.syncs.push(Sync {
                        session,
                        seq,
                        renew: *renew,
                        close: *close,
                        reports: reports.into_iter().collect(),
                    });
                }
                Op::Settle(slot, back, spent) => {
                    // A settle is repeated until it is acknowledged.
                    if *back == 2
                        && let Some(again) = &settled
                    {
                        entry.commands.push(again.clone());
                        continue;
                    }
                    let session = before.any(*slot);
                    let live = model.holders.get(&session).map(|holder| {
                        holder
                            .leases
                            .iter()
                            .map(|lease| (lease.generation, lease.spent))
                            .collect()
                    });
                    let leases: Vec<(u64, u64)> = live
                        .or_else(|| {
                            model.ghosts.get(&session).map(|ghosts| {
                                ghosts
                                    .iter()
                                    .map(|ghost| (ghost.generation, ghost.spent))
                                    .collect()
                            })
                        })
                        .unwrap_or_default();
                    let lease = leases.iter().rev().nth(usize::from(*back));
                    let leases = lease.map(|(generation, known)| SettledLease {
                        key: key.clone(),
                        generation: *generation,
                        spent_total: known + spent,
                    });
                    let settle = Command::Settle {
                        session,
                        identity: String::new(),
                        leases: leases.into_iter().collect(),
                    };
                    settled = Some(settle.clone());
                    entry.commands.push(settle);
                }
                Op::Edit(kind) => entry.commands.push(edit(&log, kind)),
            }
        }

        // Clients whose session has expired settle soon, and again; now and then
        // behind an edit.
        entry.commands.append(&mut pending);
        let applied = log.entry(entry.clone());
        model.now_us = log.now_us();
        model.fresh();
        model.counted.settle(model.now_us);

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
        assert_eq!(applied.expired, model.expire());
        // Whoever edits has seen what was in force before the entry.
        let mut seen_is_in_force = true;
        for (command, outcome) in entry.commands.iter().zip(&applied.commands) {
            model.fresh();
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
                } => model.settle(*session, leases, &key),
                Command::PutPolicy { policy, .. } => {
                    seen_is_in_force &= policy.kind == model.kind;
                    model.edit(&policy.kind, index);
                }
                Command::Edit(edit) => {
                    let [guarded] = edit.changes.as_slice() else {
                        panic!("{edit:?}")
                    };
                    let RuleChange::PutPolicy { policy, .. } = &guarded.change else {
                        panic!("{edit:?}")
                    };
                    let refused = matches!(outcome, CommandOutcome::Refused(_));
                    let guarded = guarded.expect != Expect::Anything;
                    assert_eq!(refused, guarded && !seen_is_in_force, "{outcome:?}");
                    if !refused {
                        seen_is_in_force &= policy.kind == model.kind;
                        model.edit(&policy.kind, index);
                    }
                }
                Command::Spend { units, .. } => {
                    let CommandOutcome::Spent(spent) = outcome else {
                        panic!("{outcome:?}")
                    };
                    let refusal = if *units > model.limit() {
                        Some((Code::CostAboveLimit, None))
                    } else if *units > model.free() {
                        let earliest = || {
                            let holders = model.holders.values();
                            holders
                                .filter(|holder| {
                                    holder.leases.iter().any(|lease| lease.outstanding() > 0)
                                })
                                .map(|holder| holder.deadline_us)
                                .min()
                        };
                        let when_us = model.free_when(*units).or_else(earliest);
                        Some((Code::Limit, when_us.map(|when_us| when_us - model.now_us)))
                    } else {
                        None
                    };
                    assert_eq!(
                        spent.refusal.map(|no| (no.code, no.retry_after_us)),
                        refusal
                    );
                    if refusal.is_none() && *units > 0 {
                        model.appear(index);
                        model.counted.charge(*units, model.now_us);
                    }
                    assert_eq!(spent.free, model.free());
                }
                command => panic!("{command:?}"),
            }
        }
        for (grant, outcome) in entry.grants.iter().zip(&applied.grants) {
            model.fresh();
            let free = model.free();
            let now_us = model.now_us;
            let epoch = if model.exists { model.epoch } else { index };
            let Some(holder) = model.holders.get_mut(&grant.session) else {
                assert_eq!(outcome.units, 0);
                continue;
            };
            let newest = holder
                .leases
                .iter_mut()
                .max_by_key(|lease| lease.generation);
            let continued = newest.filter(|lease| lease.epoch == epoch);
            let misbehaved = continued.as_ref().is_some_and(|lease| lease.misbehaved);
            let given = if holder.ended || misbehaved {
                0
            } else {
                grant.units.min(free)
            };
            assert_eq!(outcome.units, given, "{grant:?} of {free} free");
            if given > 0 {
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
                        });
                        holder.leases.last_mut().unwrap()
                    }
                };
                lease.granted += given;
                assert_eq!(
                    (outcome.generation, outcome.granted_total),
                    (lease.generation, lease.granted)
                );
                model.appear(index);
            }
        }
        model.drop_idle();

        let view = log.ledger.account(&key);
        assert_eq!(view.is_some(), model.exists);
        if let Some(view) = view {
            assert_eq!(view.counted, model.counted.units());
            assert_eq!(view.outstanding, model.outstanding());
            assert_eq!(view.free, model.free());
            assert_eq!(view.debt, model.used().saturating_sub(model.limit()));
            let next_us = model
                .free_when(model.free() + 1)
                .map(|when_us| when_us - model.now_us);
            assert_eq!(view.next_free_us, next_us);
        }
        for id in applied.expired.iter().filter(|_| !index.is_multiple_of(3)) {
            let leases = model.ghosts[id].iter().map(|ghost| SettledLease {
                key: key.clone(),
                generation: ghost.generation,
                spent_total: ghost.spent + index % 4,
            });
            let settle = Command::Settle {
                session: *id,
                identity: String::new(),
                leases: leases.collect(),
            };
            pending.extend([settle.clone(), settle]);
        }
        if step.restart {
            log.restart();
        }
    }
}
