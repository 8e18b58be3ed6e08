//! Commands of operators and of the service: judged first, then done.

use std::sync::Arc;

use crate::{
    account::Account,
    edit::{Expect, Terms},
    entry::{Command, SessionId},
    ledger::Ledger,
    outcome::{CommandOutcome, CommandRefusal},
    sessions::Session,
    wire::VERSION as FORMAT_VERSION,
};

use super::{
    binding_of,
    correct::{self, Words},
    edit, fresh_books, has_room, invalid, roll, settle, spend,
};

/// The longest holder name and identity.
const HOLDER_BYTES_MAX: usize = 128;
const IDENTITY_BYTES_MAX: usize = 512;

const DONE: CommandOutcome = CommandOutcome::Done { changed: true };
const NOTHING_TO_DO: CommandOutcome = CommandOutcome::Done { changed: false };

/// Does what a command asks, or refuses it and changes nothing.
pub(crate) fn command(ledger: &mut Ledger, command: &Command) -> CommandOutcome {
    let done = match command {
        Command::Open {
            session,
            holder,
            identity,
        } => open(ledger, *session, holder, identity),
        Command::Settle {
            session,
            identity,
            leases,
        } => Ok(settle::settle(ledger, *session, identity, leases)),
        Command::EndSession { session } => end_session(ledger, *session),
        Command::PutPolicy { name, policy } => edit::one(ledger, |draft| {
            draft.put_policy(name, policy, &Expect::Anything, None)
        }),
        Command::DeletePolicy { name } => {
            edit::one(ledger, |draft| draft.delete_policy(name, &Expect::Anything))
        }
        Command::PutBudget { pattern, rule } => {
            let terms = Terms::from(rule.clone());
            edit::one(ledger, |draft| {
                draft.put_budget(pattern, &terms, &Expect::Anything, None)
            })
        }
        Command::DeleteBudget { pattern } => edit::one(ledger, |draft| {
            draft.delete_budget(pattern, &Expect::Anything)
        }),
        Command::Spend { key, units } => {
            spend::spend(ledger, key, *units, None).map(CommandOutcome::Spent)
        }
        Command::SpendOnce {
            key,
            units,
            idempotency_key,
        } => spend::spend(ledger, key, *units, Some(idempotency_key)).map(CommandOutcome::Spent),
        Command::Correct {
            key,
            id,
            change,
            reason,
            by,
            wall_unix_us,
        } => {
            let words = Words {
                id,
                reason,
                by,
                wall_unix_us: *wall_unix_us,
            };
            correct::correct(ledger, key, *change, &words)
        }
        Command::CoolDown { key } => Ok(cool_down(ledger, key)),
        Command::CorrectPeriod(bounds) => roll::correct(ledger, bounds),
        Command::PutSettings(settings) => edit::one(ledger, |draft| {
            draft.put_settings(settings, &Expect::Anything)
        }),
        Command::Edit(edit) => edit::edit(ledger, edit),
        Command::RegisterNode { node_id, disk_id } => register_node(ledger, *node_id, *disk_id),
        Command::RaiseFormat { version } => Ok(raise_format(ledger, *version)),
        Command::NameCluster { cluster_id } => Ok(name_cluster(ledger, *cluster_id)),
    };
    done.unwrap_or_else(CommandOutcome::Refused)
}

type Done = Result<CommandOutcome, CommandRefusal>;

fn open(ledger: &mut Ledger, id: SessionId, holder: &str, identity: &str) -> Done {
    if holder.is_empty() || holder.len() > HOLDER_BYTES_MAX {
        return Err(invalid(format!(
            "holder ({} bytes) must have 1 to {HOLDER_BYTES_MAX} bytes",
            holder.len()
        )));
    }
    if identity.len() > IDENTITY_BYTES_MAX {
        return Err(invalid(format!(
            "identity ({} bytes) must have at most {IDENTITY_BYTES_MAX} bytes",
            identity.len()
        )));
    }
    if ledger.sessions.is_known(id) {
        return Err(CommandRefusal::SessionExists);
    }
    let limit = ledger.settings.sessions_per_identity_max;
    if ledger.sessions.of_identity(identity) >= limit.into() {
        return Err(CommandRefusal::TooManySessions { limit });
    }
    let session = Session::open(holder, identity, &ledger.settings, ledger.now_us);
    let opened = CommandOutcome::Opened {
        deadline_us: session.deadline_us,
        validity_us: session.validity_us,
        ttl_us: session.ttl_us,
    };
    ledger.sessions.open(id, session);
    Ok(opened)
}

fn end_session(ledger: &mut Ledger, id: SessionId) -> Done {
    let changed = ledger
        .sessions
        .update(id, |session| !std::mem::replace(&mut session.ended, true))
        .ok_or(CommandRefusal::NoSuchSession)?;
    Ok(CommandOutcome::Done { changed })
}

/// The key stays refused for its policy's cool-down, from now on, unless it does so
/// already. One without an account gets one, to be remembered.
fn cool_down(ledger: &mut Ledger, key: &leasehold_key::Key) -> CommandOutcome {
    let now_us = ledger.now_us;
    if let Some(changed) = ledger
        .accounts
        .update(key, now_us, |account| account.cool_down(now_us))
    {
        return CommandOutcome::Done { changed };
    }
    let Some(mut account) = fresh_account(ledger, key) else {
        return NOTHING_TO_DO;
    };
    let changed = account.cool_down(now_us);
    if changed {
        ledger.accounts.insert(account);
    }
    CommandOutcome::Done { changed }
}

/// The account that the key would have once it is used, if there is room for it.
fn fresh_account(ledger: &Ledger, key: &leasehold_key::Key) -> Option<Account> {
    let binding = binding_of(ledger, key).filter(|binding| has_room(ledger, binding))?;
    let books = fresh_books(ledger, binding, ledger.now_us);
    let binding = Arc::clone(binding);
    let index = ledger.last_index;
    Some(Account::new(key.clone(), binding, books, index))
}

fn register_node(ledger: &mut Ledger, node_id: u64, disk_id: u128) -> Done {
    match ledger.nodes.get(&node_id) {
        Some(known) if *known == disk_id => Ok(NOTHING_TO_DO),
        Some(_) => Err(CommandRefusal::NodeIdInUse),
        None => {
            ledger.add_node(node_id, disk_id);
            Ok(DONE)
        }
    }
}

fn raise_format(ledger: &mut Ledger, version: u32) -> CommandOutcome {
    // Whoever applies this reads it; a version that this node does not know cannot be
    // what all members read.
    let raised = version.clamp(ledger.format_version, FORMAT_VERSION);
    let changed = raised > ledger.format_version;
    ledger.format_version = raised;
    CommandOutcome::Done { changed }
}

/// Of two leaders that both found a new cluster, the first one names it.
fn name_cluster(ledger: &mut Ledger, cluster_id: u128) -> CommandOutcome {
    if ledger.cluster_id.is_some() {
        return NOTHING_TO_DO;
    }
    ledger.cluster_id = Some(cluster_id);
    DONE
}
