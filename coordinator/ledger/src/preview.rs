//! What an edit would do, before anybody makes it. Changes nothing.

use std::{cmp::Reverse, sync::Arc};

use leasehold_key::Key;

use crate::{
    account::Account,
    apply::{Draft, Reach, rebinding},
    edit::Edit,
    exact,
    kind::Moment,
    outcome::{CommandRefusal, Edited},
    rules::Source,
    snapshot::FrozenLedger,
};

/// How many keys are named that would have the greatest debts.
const WORST_MAX: usize = 20;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// What would become of each change, in their order.
    pub changes: Vec<Edited>,
    /// Accounts that would follow another or an edited rule.
    pub accounts: u64,
    /// Those of them that would begin anew: their leases would end, and what is counted
    /// would be carried over at its worst.
    pub new_generations: u64,
    /// Those of them that no budget would match any more: they are granted nothing.
    pub left: u64,
    /// By how much debts would grow, in sum; saturates.
    pub debt: u64,
    /// The keys whose debts would grow most, the greatest first, at most 20.
    pub worst: Vec<(Key, u64)>,
    /// Units that would be free at once and are not now, in sum; saturates.
    pub freed: u64,
}

impl FrozenLedger {
    /// What an edit would do if it were made at `now_us`, which may lie after the last
    /// entry.
    ///
    /// # Errors
    /// When the edit would be refused.
    pub fn preview(&self, edit: &Edit, now_us: u64) -> Result<Preview, CommandRefusal> {
        let now_us = now_us.max(self.now_us());
        let settings = self.settings();
        let mut draft = Draft {
            rules: self.rules().clone(),
            settings: Arc::new(settings.clone()),
            reach: Reach::Nobody,
            now_us,
        };
        let changes = draft.edit(edit)?;
        let moment = Moment {
            periods: self.periods(),
            now_us,
            inherited_until_us: self.inherited_until_us(),
            drift_ppm: draft.settings.max_drift_ppm,
        };
        let drifts = draft.settings.max_drift_ppm != settings.max_drift_ppm;
        let mut preview = Preview {
            changes,
            ..Preview::default()
        };
        for account in self.accounts() {
            let concerned = draft.reach.concerns(account);
            let new = concerned.then(|| rebinding(&draft.rules, account));
            let same = drifts.then(|| Arc::clone(&account.binding));
            let Some(binding) = new.flatten().or(same) else {
                continue;
            };
            let mut after = account.clone();
            after.settle(now_us, moment.periods);
            let (free, debt, epoch) = (after.free_at(now_us), debt(&after, now_us), after.epoch);
            after.rebind(binding, self.last_index().saturating_add(1), &moment);
            let is_left = after.binding.source == Source::Gone;
            preview.accounts = exact::increment(preview.accounts);
            if after.epoch != epoch {
                preview.new_generations = exact::increment(preview.new_generations);
            }
            if is_left {
                preview.left = exact::increment(preview.left);
            } else {
                let freed = after.free_at(now_us).saturating_sub(free);
                preview.freed = preview.freed.saturating_add(freed);
            }
            let new_debt = self::debt(&after, now_us).saturating_sub(debt);
            preview.owe(&after.key, new_debt);
        }
        preview.rank();
        Ok(preview)
    }
}

impl Preview {
    fn owe(&mut self, key: &Key, debt: u64) {
        if debt == 0 {
            return;
        }
        self.debt = self.debt.saturating_add(debt);
        self.worst.push((key.clone(), debt));
        // Ranked seldom, so that a million accounts cost no more than their number.
        if self.worst.len() >= WORST_MAX.saturating_mul(50) {
            self.rank();
        }
    }

    fn rank(&mut self) {
        self.worst
            .sort_by(|(a, x), (b, y)| (Reverse(x), a.as_str()).cmp(&(Reverse(y), b.as_str())));
        self.worst.truncate(WORST_MAX);
    }
}

/// What is counted and outstanding above the limit.
fn debt(account: &Account, now_us: u64) -> u64 {
    let used = exact::add(account.books.counted_at(now_us), account.outstanding);
    used.saturating_sub(account.books.limit())
}
