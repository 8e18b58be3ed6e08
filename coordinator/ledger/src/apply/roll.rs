//! Periods begin when the leader says so. Does not know calendars, nor whether the
//! leader is right: only that a period begins once, and after the one before.

use crate::{entry::Roll, kind::Period, ledger::Ledger};

use super::invalid;
use crate::outcome::{CommandOutcome, CommandRefusal};

/// Begins a period, unless it has begun, or the one before has not ended by it.
pub(crate) fn roll(ledger: &mut Ledger, roll: &Roll) -> bool {
    let present = ledger.accounts.periods().get(&roll.calendar).copied();
    let follows = present.is_none_or(|present| present.end_unix_us <= roll.start_unix_us);
    // What a cluster granted that this one was restored from may still be spent, and
    // would be charged to nothing.
    let inherits = present.is_some() && ledger.now_us < ledger.inherited_until_us;
    if !is_sound(roll) || !follows || inherits {
        return false;
    }
    let number = present
        .map_or(0, |present| present.number)
        .saturating_add(1);
    // By the clocks it began so long ago: before nothing of the other cluster was in use
    // any more, if that is before this one's time. Then all of it may be spent.
    let length_us = roll.end_unix_us.abs_diff(roll.start_unix_us);
    let began_ago_us = length_us.saturating_sub(roll.ends_in_us);
    let began_us = ledger.now_us.saturating_sub(began_ago_us);
    let is_spent = began_us < ledger.inherited_until_us;
    let period = Period {
        number,
        index: ledger.last_index,
        began_us: if is_spent { began_us } else { ledger.now_us },
        exhausted: if is_spent {
            number
        } else {
            present.map_or(0, |present| present.exhausted)
        },
        start_unix_us: roll.start_unix_us,
        end_unix_us: roll.end_unix_us,
        end_us_about: ledger.now_us.saturating_add(roll.ends_in_us),
    };
    ledger.accounts.begin_period(roll.calendar.clone(), period);
    true
}

/// Corrects when the present period begins and ends. What is charged to it stays so.
pub(super) fn correct(ledger: &mut Ledger, roll: &Roll) -> Result<CommandOutcome, CommandRefusal> {
    if !is_sound(roll) {
        return Err(invalid("a period must end after it begins"));
    }
    let Some(present) = ledger.accounts.periods().get(&roll.calendar).copied() else {
        return Err(invalid("no period of this calendar has begun"));
    };
    let period = Period {
        start_unix_us: roll.start_unix_us,
        end_unix_us: roll.end_unix_us,
        end_us_about: ledger.now_us.saturating_add(roll.ends_in_us),
        ..present
    };
    // That it ends so long after now is told anew each time.
    let bounds = |period: &Period| (period.start_unix_us, period.end_unix_us);
    let changed = bounds(&period) != bounds(&present);
    ledger.accounts.begin_period(roll.calendar.clone(), period);
    Ok(CommandOutcome::Done { changed })
}

fn is_sound(roll: &Roll) -> bool {
    roll.start_unix_us < roll.end_unix_us && roll.calendar.validate().is_ok()
}
