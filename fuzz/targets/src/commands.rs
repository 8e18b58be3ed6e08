//! Entries to the ledger and to its naive model. The bytes are the choices, each read
//! where the one before it ended, so that a fuzzer that changes a byte changes a choice.
//! Knows nothing of what is right: the model judges.

use arbitrary::{Result, Unstructured};
use leasehold_ledger::policy::Kind;

use crate::{
    naive::{TTL_US, hold},
    play::{Op, Step, play},
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
    let bucket = choices.arbitrary::<bool>()?;
    let units = choices.int_in_range(0..=30)?;
    let time_us = match choices.int_in_range(0..=3)? {
        0 => 1_000_000,
        1 => choices.int_in_range(100_000..=400_000)?,
        _ => WINDOW_US,
    };
    Ok(if bucket {
        Kind::TokenBucket {
            capacity: units,
            refill: choices.int_in_range(1..=40)?,
            refill_period_us: time_us,
        }
    } else {
        Kind::SlidingWindow {
            limit: units,
            window_us: time_us,
        }
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
    Ok(match choices.int_in_range(0..=15)? {
        0 => Op::Open(slot(choices)?),
        1 => Op::End(slot(choices)?),
        2..=5 => Op::Grant(slot(choices)?, choices.int_in_range(0..=15)?),
        6..=7 => Op::Spend(choices.int_in_range(0..=12)?),
        8..=12 => sync(choices)?,
        13..=14 => Op::Settle(
            choices.int_in_range(0..=5)?,
            choices.int_in_range(0..=2)?,
            choices.int_in_range(0..=10)?,
        ),
        _ => Op::Edit(kind(choices)?),
    })
}

fn sync(choices: &mut Unstructured<'_>) -> Result<Op> {
    let (slot, lease) = (slot(choices)?, choices.int_in_range(0..=1)?);
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
    Ok(Op::Sync(
        slot, lease, spent, returned, ages, held, last, close, renew, late,
    ))
}

fn slot(choices: &mut Unstructured<'_>) -> Result<u8> {
    choices.int_in_range(0..=2)
}
