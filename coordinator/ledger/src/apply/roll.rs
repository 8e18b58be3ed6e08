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
    let period = Period {
        number: present
            .map_or(0, |present| present.number)
            .saturating_add(1),
        index: ledger.last_index,
        began_us: ledger.now_us,
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
    let changed = period != present;
    ledger.accounts.begin_period(roll.calendar.clone(), period);
    Ok(CommandOutcome::Done { changed })
}

fn is_sound(roll: &Roll) -> bool {
    roll.start_unix_us < roll.end_unix_us && roll.calendar.validate().is_ok()
}
