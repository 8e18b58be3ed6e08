//! One entry: built from what waits, written, and its outcomes delivered.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use leasehold_allotter::{Conclusion, Recall};
use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::{Command, Grant, SessionId},
    outcome::{Availability, Code, CommandOutcome, GrantOutcome, Refusal},
};

use super::{
    Log, Reign, Sequencer, SubmitError,
    deliver::{Pushes, expired},
    event::Event,
    item::CommandItem,
    plan::{Members, NO_BUDGET, Plan, Slot},
    streams::turn_away,
};
use crate::raft::{Member, ProposeError};

/// Reports in one entry, unless a single message brings more.
const ENTRY_WEIGHT_MAX: usize = 2_048;
/// Keys whose edited rule is told with one entry; the next entries tell the rest,
/// so that no message grows with the number of keys.
const EDITS_TOLD_MAX: usize = 2_048;
/// So many holders of a key that each counts by itself are told of every newcomer.
const FEW_HOLDERS: u64 = 8;
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
        let members = Members {
            wall_unix_us: log.majority_wall_unix_us(),
            format_version: log.members_format_version(),
        };
        let plan = log.with_ledger(|ledger| self.plan(ledger, now_us, taken, commands, members));
        let Plan {
            entry,
            slots,
            reports,
            rules_change,
            touched,
            decided,
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

        if rules_change || applied.rolled {
            self.allotter.touch_all();
        }
        for key in &touched {
            self.allotter.touch(key);
        }
        let (deliveries, needs_time) = log.with_ledger(|ledger| {
            if rules_change {
                self.edited = self.streams.outdated(ledger).collect();
            }
            if rules_change || applied.rolled {
                self.calendars.refresh(ledger);
            }
            let mut conclusion =
                self.allotter
                    .conclude(ledger, applied.now_us, &grants, &applied.grants);
            if applied.rolled {
                self.begin_anew(ledger, &mut conclusion);
            }
            self.cool_down(ledger, &conclusion);
            let mut pushes = Pushes::new(&conclusion, &grants, &applied);
            let edited = self.edited.len().min(EDITS_TOLD_MAX);
            for (session, key) in self.edited.drain(..edited) {
                pushes.tell(session, key);
            }
            for (session, key) in self.unseen.drain(..) {
                pushes.refuse(session, key, NO_BUDGET);
            }
            self.tell_of_newcomers(ledger, &grants, &applied.grants, &mut pushes);
            for (key, command) in &decided {
                if let Some(outcome) = applied.commands.get(*command) {
                    self.tell_decided(ledger, key, outcome, &mut pushes);
                }
            }
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
            more_due: applied.more_due || !self.edited.is_empty(),
            needs_time,
        })
    }

    /// With a new period, whoever was refused may ask anew, and what was granted in the
    /// old one is to come back: it is held against the new one.
    fn begin_anew(&mut self, ledger: &Ledger, conclusion: &mut Conclusion) {
        let counted_by_period = self
            .streams
            .keys_where(|policy| policy.kind.calendar().is_some());
        for (session, key) in counted_by_period {
            if let Some(lease) = ledger.lease(session, &key)
                && !lease.current
            {
                conclusion.recalls.push(Recall {
                    session,
                    key: key.clone(),
                    generation: lease.generation,
                    returned_total_target: lease.granted_total,
                    granted_total: lease.granted_total,
                    whole: true,
                });
            }
            self.edited.push_back((session, key));
        }
    }

    /// Keys that were refused stay so if their policy has a cool-down: the log has to say
    /// from when.
    fn cool_down(&mut self, ledger: &Ledger, conclusion: &Conclusion) {
        let refused: BTreeSet<&Key> = conclusion
            .refusals
            .iter()
            .filter(|told| told.refusal.code == Code::Limit)
            .map(|told| &told.key)
            .collect();
        for key in refused {
            let cools = ledger
                .resolve(key)
                .is_some_and(|(_, _, policy)| policy.cooldown_us > 0 && !policy.shadow);
            let is_cool = matches!(
                ledger.available(key, ledger.now_us()),
                Availability::Open {
                    cooling_us: Some(_),
                    ..
                }
            );
            if cools && !is_cool {
                self.do_first(Command::CoolDown { key: key.clone() });
            }
        }
    }

    /// Who counts for itself divides by the number of those who do: a newcomer concerns
    /// them all. Of many, only when there are twice as many, so that a crowd that arrives
    /// costs no more than a few messages each.
    fn tell_of_newcomers(
        &self,
        ledger: &Ledger,
        grants: &[Grant],
        outcomes: &[GrantOutcome],
        pushes: &mut Pushes,
    ) {
        let mut keys: BTreeMap<&Key, SessionId> = BTreeMap::new();
        for (grant, outcome) in grants.iter().zip(outcomes) {
            let is_telling = outcome.units == 0 && outcome.refusal.is_none();
            if is_telling && outcome.generation == ledger.last_index() {
                keys.insert(&grant.key, grant.session);
            }
        }
        for (key, newcomer) in keys {
            let holders = ledger.standing(newcomer, key, ledger.now_us()).holders;
            if holders <= FEW_HOLDERS || holders.is_power_of_two() {
                for session in self.streams.sessions_with(key) {
                    pushes.mention(session, key.clone());
                }
            }
        }
    }

    /// What a command decided about a key concerns everybody who holds it.
    fn tell_decided(
        &self,
        ledger: &Ledger,
        key: &Key,
        outcome: &CommandOutcome,
        pushes: &mut Pushes,
    ) {
        match outcome {
            CommandOutcome::Corrected { .. } => {
                for session in self.streams.sessions_with(key) {
                    pushes.tell(session, key.clone());
                }
            }
            CommandOutcome::Done { changed: true } | CommandOutcome::Spent(_) => {
                let Availability::Open {
                    cooling_us: Some(cooling_us),
                    ..
                } = ledger.available(key, ledger.now_us())
                else {
                    return;
                };
                let refusal = Refusal {
                    code: Code::Cooldown,
                    retry_after_us: Some(cooling_us),
                };
                for session in self.streams.sessions_with(key) {
                    pushes.refuse(session, key.clone(), refusal);
                }
            }
            _ => {}
        }
    }

    fn end_session(&mut self, session: SessionId, detail: &str) {
        self.streams.forget_session(session);
        if let Some(stream) = self.streams.of_session(session) {
            self.streams.tell(stream, expired(detail));
        }
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
        ProposeError::TooLong { .. } => (None, SubmitError::Overloaded),
        ProposeError::Stopped => (None, SubmitError::Stopped),
    };
    let moved = leader
        .as_ref()
        .map_or_else(String::new, |leader| leader.client_url.clone());
    for slot in slots {
        match slot {
            Slot::Command { reply, .. } | Slot::Withheld { reply, .. } => {
                drop(reply.send(Err(answer.clone())))
            }
            Slot::Open { link, .. } | Slot::Resume { link, .. } => {
                turn_away(&link, Event::Moved(moved.clone()));
            }
            Slot::Sync { .. } | Slot::Settle { .. } => {}
        }
    }
    RoundError { leader }
}
