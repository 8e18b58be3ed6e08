//! Entries to the ledger and to its naive model. The bytes are the choices, each read
//! where the one before it ended, so that a fuzzer that changes a byte changes a choice.
//! Knows nothing of what is right: the model judges.

use arbitrary::{Result, Unstructured};
use leasehold_ledger::{correction::Change, policy::Kind};

use crate::{
    counted::hold,
    naive::TTL_US,
    ops::{Begin, Op, Said, Step, calendar},
    play::play,
};

/// A run has no more entries after its opening.
const STEPS: usize = 200;
/// Nor has an entry more operations.
const OPS: usize = 6;
/// Where half of the rules' times and passing times begin, so that they meet.
const WINDOW_US: u64 = 300_000;

/// A rule, then entries until the bytes end.
pub(crate) fn commands(bytes: &[u8]) {
    let mut choices = Unstructured::new(bytes);
    let Ok(start) = kind(&mut choices) else {
        return;
    };
    let mut steps = Vec::new();
    while !choices.is_empty() && steps.len() < STEPS {
        // Choices that the bytes do not reach are zeros.
        let Ok(step) = step(&mut choices) else { break };
        steps.push(step);
    }
    play(start, steps);
}

fn kind(choices: &mut Unstructured<'_>) -> Result<Kind> {
    let which = choices.int_in_range(0..=15_u8)?;
    let units = choices.int_in_range(0..=30)?;
    let time_us = match choices.int_in_range(0..=3)? {
        0 => 1_000_000,
        1 => choices.int_in_range(100_000..=400_000)?,
        _ => WINDOW_US,
    };
    Ok(match which {
        0..=4 => Kind::TokenBucket {
            capacity: units,
            refill: choices.int_in_range(1..=40)?,
            refill_period_us: time_us,
        },
        5 => Kind::Paced {
            capacity: units,
            refill: choices.int_in_range(1..=40)?,
            refill_period_us: time_us,
        },
        6..=8 => Kind::Period {
            limit: units,
            calendar: calendar(choices.int_in_range(0..=1)?),
            carry_over: choices.int_in_range(0..=40)?,
        },
        9 => Kind::Total { limit: units },
        10 => Kind::Concurrency { limit: units },
        11 => Kind::Estimate {
            limit: units,
            window_us: time_us,
        },
        12 => Kind::Unlimited,
        _ => Kind::SlidingWindow {
            limit: units,
            window_us: time_us,
        },
    })
}

fn step(choices: &mut Unstructured<'_>) -> Result<Step> {
    let pass_us = match choices.int_in_range(0..=7)? {
        0..=1 => 0,
        2..=3 => choices.int_in_range(1..=200_000)?,
        4 => choices.int_in_range(200_000..=1_200_000)?,
        // Around the moments at which something ends.
        5 => choices.int_in_range(hold(WINDOW_US) - 2..=hold(WINDOW_US) + 2)?,
        6 => choices.int_in_range(TTL_US - 2..=TTL_US + 2)?,
        _ => 5_000_000,
    };
    let restart = choices.ratio(1, 10)?;
    let mut ops = Vec::new();
    for _ in 0..choices.int_in_range(0..=OPS)? {
        ops.push(op(choices)?);
    }
    Ok(Step {
        pass_us,
        ops,
        restart,
    })
}

fn op(choices: &mut Unstructured<'_>) -> Result<Op> {
    Ok(match choices.int_in_range(0..=19)? {
        0 => Op::Open(slot(choices)?),
        1 => Op::End(slot(choices)?),
        2..=5 => Op::Grant(slot(choices)?, choices.int_in_range(0..=15)?),
        6 => Op::Spend(choices.int_in_range(0..=12)?),
        7 => Op::SpendOnce(choices.int_in_range(0..=2)?, choices.int_in_range(0..=12)?),
        8..=12 => sync(choices)?,
        13..=14 => Op::Settle(
            choices.int_in_range(0..=5)?,
            choices.int_in_range(0..=2)?,
            choices.int_in_range(0..=10)?,
        ),
        15 => {
            let kind = kind(choices)?;
            // Three of four have none.
            let cooldown_us = choices.int_in_range(0..=2_000_000_u64)?;
            Op::Edit(kind, cooldown_us.saturating_sub(1_500_000))
        }
        16..=17 => Op::Roll(choices.int_in_range(0..=1)?, begin(choices)?),
        18 => {
            let id = choices.int_in_range(0..=15)?;
            Op::Correct(
                id,
                match choices.int_in_range(-20..=20_i64)? {
                    0 => Change::Reset,
                    units => Change::Adjust(units),
                },
            )
        }
        _ if choices.arbitrary::<bool>()? => Op::CoolDown,
        _ => Op::CorrectPeriod(choices.int_in_range(0..=1)?, begin(choices)?),
    })
}

fn begin(choices: &mut Unstructured<'_>) -> Result<Begin> {
    Ok(match choices.int_in_range(0..=9)? {
        0 => Begin::Again,
        1 => Begin::Early,
        2 => Begin::Stale,
        3 => Begin::Unsound,
        4..=5 => Begin::Later(choices.int_in_range(0..=3_000_000)?),
        _ => Begin::Next(choices.int_in_range(0..=3_000_000)?),
    })
}

fn sync(choices: &mut Unstructured<'_>) -> Result<Op> {
    let (session, lease) = (slot(choices)?, choices.int_in_range(0..=1)?);
    let (spent, returned) = (choices.int_in_range(0..=6)?, choices.int_in_range(0..=4)?);
    let mut ages = Vec::new();
    for _ in 0..choices.int_in_range(0..=3)? {
        let age_us = match choices.int_in_range(0..=3)? {
            0 => 0,
            1 => 1 << 40,
            2 => choices.int_in_range(hold(WINDOW_US) - 2..=hold(WINDOW_US) + 2)?,
            _ => choices.int_in_range(0..=500_000)?,
        };
        ages.push((choices.int_in_range(0..=6)?, age_us));
    }
    // What is seldom so, in a byte each: held, last, close, unrenewed, late.
    let held = choices.int_in_range(0..=12_u64)?.saturating_sub(9);
    let last = choices.ratio(1, 6)?;
    let close = choices.ratio(1, 16)?;
    let renew = !choices.ratio(1, 10)?;
    let late = choices.int_in_range(0..=12_u64)?.saturating_sub(9);
    let overrun = choices.int_in_range(0..=12_u64)?.saturating_sub(7);
    Ok(Op::Sync(Said {
        session,
        lease,
        spent,
        returned,
        overrun,
        ages,
        held,
        last,
        close,
        renew,
        late,
    }))
}

fn slot(choices: &mut Unstructured<'_>) -> Result<u8> {
    choices.int_in_range(0..=2)
}
