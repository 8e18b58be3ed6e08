//! Edits of rules reach the accounts concerned in the edit's own entry. They free
//! nothing that may still be spent.

use std::sync::Arc;

use leasehold_key::Key;

use crate::{
    account::Account,
    edit::Edit,
    kind::Moment,
    ledger::Ledger,
    outcome::{CommandOutcome, CommandRefusal},
    rules::{Binding, Rules, Source},
};

use super::draft::{Draft, Judged, Reach};

/// Makes all changes of an edit, or none.
pub(super) fn edit(ledger: &mut Ledger, edit: &Edit) -> Result<CommandOutcome, CommandRefusal> {
    if edit.changes.len() == 1 {
        return with_draft(ledger, |draft| draft.edit(edit)).map(CommandOutcome::Edited);
    }
    // Of many the last one can be refused: they are tried on a copy.
    let mut draft = Draft {
        rules: ledger.rules.clone(),
        settings: Arc::clone(&ledger.settings),
        reach: Reach::Nobody,
        now_us: ledger.now_us,
    };
    let edited = draft.edit(edit)?;
    commit(ledger, draft);
    Ok(CommandOutcome::Edited(edited))
}

/// Makes one change, which is refused before it changed anything.
pub(super) fn one(
    ledger: &mut Ledger,
    change: impl FnOnce(&mut Draft) -> Judged,
) -> Result<CommandOutcome, CommandRefusal> {
    with_draft(ledger, change).map(|changed| CommandOutcome::Done { changed })
}

fn with_draft<R>(
    ledger: &mut Ledger,
    change: impl FnOnce(&mut Draft) -> Result<R, CommandRefusal>,
) -> Result<R, CommandRefusal> {
    let mut draft = Draft {
        // Lent, so that nothing has to be copied.
        rules: std::mem::replace(&mut ledger.rules, Rules::new()),
        settings: Arc::clone(&ledger.settings),
        reach: Reach::Nobody,
        now_us: ledger.now_us,
    };
    let result = change(&mut draft);
    commit(ledger, draft);
    result
}

/// Puts a draft in force.
fn commit(ledger: &mut Ledger, draft: Draft) {
    ledger.rules = draft.rules;
    let drift_ppm = ledger.settings.max_drift_ppm;
    if *draft.settings != *ledger.settings {
        ledger.set_settings((*draft.settings).clone());
    }
    if !matches!(draft.reach, Reach::Nobody) {
        follow_rules(ledger, &draft.reach);
    }
    if ledger.settings.max_drift_ppm != drift_ppm {
        follow_drift(ledger);
    }
}

/// The rule that an account is to follow from now on, unless it does so already. One
/// whose budget is gone keeps its last rule.
pub(crate) fn rebinding(rules: &Rules, account: &Account) -> Option<Arc<Binding>> {
    match rules.resolve(&account.key) {
        Some(binding) if Arc::ptr_eq(binding, &account.binding) => None,
        Some(binding) => Some(Arc::clone(binding)),
        None if account.binding.source == Source::Gone => None,
        None => {
            let policy = Arc::clone(&account.binding.policy);
            let name = account.binding.policy_name.clone();
            Some(Arc::new(Binding::gone(policy, name)))
        }
    }
}

/// Lets every account that an edit concerns follow the rule that its key
/// resolves to now.
fn follow_rules(ledger: &mut Ledger, reach: &Reach) {
    let accounts = ledger.accounts.shards().iter();
    let edits = accounts
        .filter(|(_, account)| reach.concerns(account))
        .filter_map(|(key, account)| Some((key.clone(), rebinding(&ledger.rules, account)?)))
        .collect();
    rebind(ledger, edits);
}

/// Lets every account follow a changed bound of the clocks' drift; what aged or
/// flowed back under the old one is settled first.
fn follow_drift(ledger: &mut Ledger) {
    let edits = ledger
        .accounts
        .shards()
        .iter()
        .map(|(key, account)| (key.clone(), Arc::clone(&account.binding)))
        .collect();
    rebind(ledger, edits);
}

fn rebind(ledger: &mut Ledger, edits: Vec<(Key, Arc<Binding>)>) {
    let index = ledger.last_index;
    let periods = Arc::clone(ledger.accounts.periods());
    let moment = Moment {
        periods: &periods,
        now_us: ledger.now_us,
        inherited_until_us: ledger.inherited_until_us,
        drift_ppm: ledger.settings.max_drift_ppm,
    };
    for (key, binding) in edits {
        ledger.accounts.rebind(&key, binding, index, &moment);
    }
}
