//! What goes into one entry, and who waits for which part of it. Knows the state
//! before the entry; nothing of what becomes of it.

use leasehold_key::Key;
use leasehold_ledger::{
    FORMAT_VERSION, KINDS_SINCE, Ledger,
    entry::{Command, Entry, Rule, SessionId, Sync},
    outcome::{Code, CommandOutcome, Refusal},
    policy::Policy,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::{
    Log, Sequencer, SubmitError,
    event::{Event, StreamCode, StreamRefusal},
    item::{Accepted, CommandItem, KeyReport, Link, Message, Open, StreamId, SyncMessage},
    pool::Work,
    streams::{KeySlot, Streams, turn_away},
};

/// What is said of a key that no budget matches, and of one that may not be seen.
pub(super) const NO_BUDGET: Refusal = Refusal {
    code: Code::NoBudget,
    retry_after_us: None,
};
/// What somebody is told for whom as many accounts were opened as may be.
const TOO_MANY_ACCOUNTS: Refusal = Refusal {
    code: Code::TooManyAccounts,
    retry_after_us: Some(1_000_000),
};

/// Somebody who waits for the outcome of a part of the entry.
pub(super) enum Slot {
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
    /// A spend that is refused whatever the books say.
    Withheld {
        reply: oneshot::Sender<Result<CommandOutcome, SubmitError>>,
        idempotency_key: Option<String>,
        refusal: Refusal,
    },
}

/// A key that a sync reported.
pub(super) struct Told {
    pub(super) key: Key,
    pub(super) key_id: u32,
    /// Its position among the entry's reports of this sync.
    pub(super) report: Option<usize>,
    /// The client has nothing of it any more and wants nothing.
    pub(super) done: bool,
    /// What is wanted of it is refused whatever the books say.
    pub(super) withheld: Option<Refusal>,
}

/// What the members of the cluster were heard to say.
#[derive(Clone, Copy)]
pub(super) struct Members {
    /// The wall time that a majority agrees to have come.
    pub(super) wall_unix_us: Option<u64>,
    /// The newest version of the stored formats that all of them read.
    pub(super) format_version: Option<u32>,
}

/// An entry under construction and who waits for it.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) entry: Entry,
    pub(super) slots: Vec<Slot>,
    pub(super) reports: usize,
    /// Rules may change, or units come back otherwise than by reports.
    pub(super) rules_change: bool,
    pub(super) touched: Vec<Key>,
    /// Keys of which units may come free, or that may be refused for a while, by these
    /// commands.
    pub(super) decided: Vec<(Key, usize)>,
}

impl<L: Log> Sequencer<L> {
    /// Puts everything that was taken into an entry. `ledger` is the state before
    /// it.
    pub(super) fn plan(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        taken: Vec<(StreamId, Work)>,
        commands: Vec<CommandItem>,
        members: Members,
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
        let allowed = ledger.format_version();
        for item in commands {
            let CommandItem {
                command,
                is_unseen,
                spender,
                reply,
            } = item;
            let needed = command.format_version();
            let is_newer = needed > allowed && !matches!(command, Command::RaiseFormat { .. });
            if is_newer && members.format_version >= Some(needed) {
                // The next entry raises what may be written, the one after has this.
                self.commands.push_back(CommandItem {
                    command,
                    is_unseen,
                    spender,
                    reply,
                });
                continue;
            }
            let command = written_as_allowed(command, allowed);
            if is_newer && command.format_version() > allowed {
                drop(reply.send(Err(SubmitError::MemberTooOld { needed, allowed })));
                continue;
            }
            let withheld = match &command {
                _ if is_unseen => Some(NO_BUDGET),
                Command::Spend { key, .. } | Command::SpendOnce { key, .. } => {
                    let may = self.openers.may_use(ledger, now_us, spender.as_ref(), key);
                    (!may).then_some(TOO_MANY_ACCOUNTS)
                }
                _ => None,
            };
            if let Some(refusal) = withheld {
                let idempotency_key = match command {
                    Command::SpendOnce {
                        idempotency_key, ..
                    } => Some(idempotency_key),
                    _ => None,
                };
                plan.slots.push(Slot::Withheld {
                    reply,
                    idempotency_key,
                    refusal,
                });
                continue;
            }
            plan.rules_change |= changes_rules(&command);
            if let Command::Correct { key, .. }
            | Command::CoolDown { key }
            | Command::Spend { key, .. } = &command
            {
                plan.decided.push((key.clone(), plan.entry.commands.len()));
            }
            if let Command::Correct { key, .. } = &command {
                plan.touched.push(key.clone());
            }
            plan.slots.push(Slot::Command {
                reply,
                command: plan.entry.commands.len(),
            });
            plan.entry.commands.push(command);
        }
        if allowed >= KINDS_SINCE {
            let policies = plan.entry.commands.iter().flat_map(policies_of);
            plan.entry.rolls = self.calendars.due(now_us, members.wall_unix_us, policies);
        } else {
            forget_overrun(&mut plan.entry);
        }
        let raises = |command: &Command| matches!(command, Command::RaiseFormat { .. });
        if allowed < FORMAT_VERSION && !plan.entry.commands.iter().any(raises) {
            self.raise_format(allowed, members);
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
                shadowed,
            } = report;
            if refused > 0 {
                metrics::counter!("leasehold_refused_locally_total").increment(refused);
            }
            if degraded > 0 {
                metrics::counter!("leasehold_degraded_total").increment(degraded);
            }
            self.shadowed.add(&key, shadowed);
            // A close hands everything back, and wants nothing.
            if message.close {
                level.last = true;
                level.want = 0;
                level.waiting = 0;
            }
            // What may not be seen is never asked for. What was granted of it before is
            // accounted for all the same.
            let withheld = if !entry.sight().reaches(&key) {
                Some(NO_BUDGET)
            } else if level.want > 0 && !self.openers.may_use(ledger, now_us, entry.spender(), &key)
            {
                Some(TOO_MANY_ACCOUNTS)
            } else {
                None
            };
            if withheld.is_some() {
                self.allotter.forget(session, &key);
            } else {
                self.allotter.hear(ledger, now_us, session, &key, &level);
            }
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
                withheld: withheld.filter(|_| level.want > 0),
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
            plan.slots.push(Slot::Resume {
                stream,
                link,
                instance,
                opened,
                session,
                sync: plan.entry.syncs.len(),
                seq: view.seq,
            });
            plan.entry.syncs.push(Sync {
                session,
                // A resume has no number of its own, and renews all the same.
                seq: 0,
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

fn draw_session() -> Option<SessionId> {
    super::draw_id().map(SessionId)
}

/// The policies that a command puts in force.
fn policies_of(command: &Command) -> Vec<&Policy> {
    match command {
        Command::PutPolicy { policy, .. }
        | Command::PutBudget {
            rule: Rule::Inline(policy),
            ..
        } => vec![policy],
        Command::Edit(edit) => edit.policies().collect(),
        _ => Vec::new(),
    }
}

/// While older members have to read it, an edit keeps its author to itself, if it says no
/// more than they know.
fn written_as_allowed(command: Command, allowed: u32) -> Command {
    match &command {
        Command::Edit(edit) if allowed < command.format_version() => {
            edit.plain().unwrap_or(command)
        }
        _ => command,
    }
}

/// Overrun cannot be written yet. Totals are stated again with every report.
fn forget_overrun(entry: &mut Entry) {
    let reports = entry.syncs.iter_mut().flat_map(|sync| &mut sync.reports);
    reports.for_each(|report| report.overrun_total = 0);
}

const fn changes_rules(command: &Command) -> bool {
    matches!(
        command,
        Command::PutPolicy { .. }
            | Command::DeletePolicy { .. }
            | Command::PutBudget { .. }
            | Command::DeleteBudget { .. }
            | Command::PutSettings(_)
            | Command::CorrectPeriod(_)
            | Command::Edit(_)
    )
}
