//! Edits of rules reach the accounts concerned in the edit's own entry. They free
//! nothing that may still be spent.

use std::sync::Arc;

use leasehold_key::Key;

use crate::{
    account::Account,
    kind::Moment,
    ledger::Ledger,
    rules::{Binding, Source},
};

/// Lets every account that an edit concerns follow the rule that its key
/// resolves to now. One whose budget is gone keeps its last rule.
pub(super) fn follow_rules(ledger: &mut Ledger, concerns: impl Fn(&Account) -> bool) {
    let mut edits: Vec<(Key, Arc<Binding>)> = Vec::new();
    for (key, account) in ledger.accounts.shards().iter() {
        if !concerns(account) {
            continue;
        }
        match ledger.rules.resolve(key) {
            Some(binding) if Arc::ptr_eq(binding, &account.binding) => {}
            Some(binding) => edits.push((key.clone(), Arc::clone(binding))),
            None if account.binding.source == Source::Gone => {}
            None => {
                let policy = Arc::clone(&account.binding.policy);
                let name = account.binding.policy_name.clone();
                edits.push((key.clone(), Arc::new(Binding::gone(policy, name))));
            }
        }
    }
    rebind(ledger, edits);
}

/// Lets every account follow a changed bound of the clocks' drift; what aged or
/// flowed back under the old one is settled first.
pub(super) fn follow_drift(ledger: &mut Ledger) {
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
