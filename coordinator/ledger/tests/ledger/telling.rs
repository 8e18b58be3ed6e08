//! Budgets whose holders tell what they spent, rather than being granted it: whatever is
//! told is accepted and counted, and no total that anybody makes up stops the ledger,
//! also after the budget has become one of another kind. Knows no promise: such budgets
//! have none.

use leasehold_ledger::{
    entry::{Command, Entry, Grant, Report, Rule, SessionId, SettledLease},
    policy::{Kind, UNITS_MAX},
};
use proptest::prelude::*;

use crate::{
    log::{Log, key, open, pattern, policy, report, sync},
    ops::calendar,
};

/// What a holder tells of its oldest, second or newest lease, and what comes next.
#[derive(Clone, Debug)]
struct Step {
    holder: u128,
    lease: usize,
    spent: u64,
    returned: u64,
    overrun: u64,
    last: bool,
    pass_us: u64,
    edit: Option<Kind>,
    restart: bool,
}

fn told() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..50_u64,
        1 => (0..4_u64).prop_map(|below| UNITS_MAX - below),
        1 => (0..4_u64).prop_map(|below| u64::MAX - below),
        1 => Just(u64::MAX / 2),
        1 => any::<u64>(),
    ]
}

fn telling() -> impl Strategy<Value = Kind> {
    let limit = prop_oneof![0..30_u64, Just(UNITS_MAX)];
    let window_us = prop_oneof![Just(100_000_u64), Just(1_000_000)];
    prop_oneof![
        (limit, window_us).prop_map(|(limit, window_us)| Kind::Estimate { limit, window_us }),
        Just(Kind::Unlimited),
    ]
}

fn any_kind() -> impl Strategy<Value = Kind> {
    let limit = || prop_oneof![0..30_u64, Just(UNITS_MAX)];
    prop_oneof![
        4 => telling(),
        1 => limit().prop_map(|limit| Kind::SlidingWindow { limit, window_us: 1_000_000 }),
        1 => limit().prop_map(|capacity| Kind::TokenBucket {
            capacity,
            refill: 1,
            refill_period_us: 1_000_000,
        }),
        1 => (0..30_u64).prop_map(|limit| Kind::Period {
            limit,
            calendar: calendar(0),
            carry_over: 5,
        }),
        1 => limit().prop_map(|limit| Kind::Total { limit }),
        1 => limit().prop_map(|limit| Kind::Concurrency { limit }),
    ]
}

fn step(kind: impl Strategy<Value = Kind>) -> impl Strategy<Value = Step> {
    (
        (
            1..3_u128,
            0..3_usize,
            told(),
            told(),
            prop_oneof![3 => Just(0), 1 => told()],
        ),
        prop::bool::weighted(0.1),
        prop_oneof![3 => 0..400_000_u64, 1 => Just(11_000_000)],
        prop::option::weighted(0.2, kind),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |((holder, lease, spent, returned, overrun), last, pass_us, edit, restart)| Step {
                holder,
                lease,
                spent,
                returned,
                overrun,
                last,
                pass_us,
                edit,
                restart,
            },
        )
}

fn put(kind: Kind) -> Command {
    Command::PutBudget {
        pattern: pattern("*"),
        rule: Rule::Inline(policy(kind)),
    }
}

/// Every holder asks for units of the key, so that it has a lease of it.
fn ask() -> Vec<Grant> {
    let holders = (1..3).map(SessionId);
    let grants = holders.map(|session| Grant {
        session,
        key: key("a"),
        units: 3,
    });
    grants.collect()
}

/// A log with a budget and two holders.
fn begin(kind: Kind) -> Log {
    let mut log = Log::new();
    log.command(put(kind));
    log.entry(Entry {
        commands: [1, 2].map(|id| open(SessionId(id))).to_vec(),
        grants: ask(),
        ..Entry::default()
    });
    log
}

proptest! {
    #[test]
    fn whatever_is_told_is_accepted_and_counted(
        kind in telling(),
        steps in prop::collection::vec(step(Just(Kind::Unlimited)), 1..30),
    ) {
        let mut log = begin(kind.clone());
        // Each holder's totals, as it has told them.
        let mut totals = [(0_u64, 0_u64); 2];
        for step in steps {
            let place = usize::try_from(step.holder).unwrap() - 1;
            let session = SessionId(step.holder);
            let Some(lease) = log.ledger.lease(session, &key("a")) else { continue };
            let before = log.ledger.account(&key("a")).unwrap();
            let (spent, returned) = totals[place];
            let told = (spent.max(step.spent), returned.max(step.returned));
            let reports = vec![Report {
                spent_total: step.spent,
                returned_total: step.returned,
                ..report(&key("a"), lease.generation)
            }];
            let applied = log.entry(Entry {
                syncs: vec![sync(session, 0, reports)],
                grants: ask(),
                ..Entry::default()
            });
            let fits = told.0.checked_add(told.1).is_some();
            prop_assert_eq!(applied.syncs[0].refused.is_empty(), fits);
            prop_assert!(applied.grants.iter().all(|grant| grant.units == 0));
            let view = log.ledger.account(&key("a")).unwrap();
            prop_assert_eq!(view.outstanding, 0, "nobody holds anything");
            if fits {
                totals[place] = told;
                let new = told.0 - spent;
                let counted = match kind {
                    Kind::Unlimited => 0,
                    _ => before.counted + new.min(UNITS_MAX - before.counted),
                };
                prop_assert_eq!(view.counted, counted);
                prop_assert_eq!(view.lifetime.spent, before.lifetime.spent.saturating_add(new));
            } else {
                prop_assert_eq!(view.lifetime, before.lifetime);
            }
            if step.restart {
                log.restart();
            }
        }
    }

    #[test]
    fn no_total_that_anybody_makes_up_stops_the_ledger(
        kind in telling(),
        steps in prop::collection::vec(step(any_kind()), 1..40),
    ) {
        let mut log = begin(kind);
        for (number, step) in steps.into_iter().enumerate() {
            log.advance(step.pass_us);
            let session = SessionId(step.holder);
            let leases = log.ledger.leases(session);
            let place = step.lease.min(leases.len().saturating_sub(1));
            let generation = leases.get(place).map_or(2, |lease| lease.generation);
            let told = Report {
                spent_total: step.spent,
                returned_total: step.returned,
                overrun_total: step.overrun,
                last: step.last,
                ..report(&key("a"), generation)
            };
            let settled = SettledLease {
                key: key("a"),
                generation,
                spent_total: step.spent,
            };
            let mut commands: Vec<Command> = step.edit.into_iter().map(put).collect();
            if number % 7 == 6 {
                commands.push(Command::Settle {
                    session,
                    identity: String::new(),
                    leases: vec![settled],
                });
            }
            log.entry(Entry {
                syncs: vec![sync(session, 0, vec![told])],
                commands,
                grants: ask(),
                ..Entry::default()
            });
            if step.restart {
                log.restart();
            }
        }
    }
}
