//! What an explanation foretells is what happens: the same verdict as the spend itself, and
//! so many units free at each moment that it names, and not before. Knows nothing of how
//! it is told to people.

use leasehold_ledger::{
    entry::{Command, Entry, Roll, Rule},
    outcome::{Availability, CommandOutcome},
    policy::{Calendar, Kind, PeriodUnit},
};
use proptest::prelude::*;

use crate::log::{Log, key, pattern, policy};

fn kind() -> impl Strategy<Value = Kind> {
    let time = prop_oneof![100_000..400_000_u64, Just(1_000_000)];
    prop_oneof![
        (0..30_u64, time.clone())
            .prop_map(|(limit, window_us)| Kind::SlidingWindow { limit, window_us }),
        (0..30_u64, time.clone())
            .prop_map(|(limit, window_us)| Kind::Estimate { limit, window_us }),
        (0..30_u64, 1..40_u64, time).prop_map(|(capacity, refill, refill_period_us)| {
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
        }),
        (0..30_u64).prop_map(|limit| Kind::Total { limit }),
    ]
}

proptest! {
    #[test]
    fn what_is_foretold_is_what_happens(
        kind in kind(),
        shadow in any::<bool>(),
        cooldown_us in prop_oneof![Just(0_u64), Just(50_000)],
        spends in prop::collection::vec((0..100_000_u64, 0..12_u64), 0..40),
        late_us in 0..200_000_u64,
    ) {
        let mut log = Log::new();
        let mut rule = policy(kind);
        rule.shadow = shadow;
        rule.cooldown_us = cooldown_us;
        log.command(Command::PutBudget {
            pattern: pattern("*"),
            rule: Rule::Inline(rule),
        });
        let key = key("a");
        for (pass_us, units) in spends {
            log.advance(pass_us);
            let foretold = log.ledger.explain(&key, units, log.now_us()).outcome;
            let spend = Command::Spend { key: key.clone(), units };
            let CommandOutcome::Spent(spent) = log.command(spend) else {
                panic!("a spend is a spend");
            };
            prop_assert_eq!(foretold.refusal.map(|no| no.code), spent.refusal.map(|no| no.code));
            prop_assert_eq!(foretold.shadowed.map(|no| no.code), spent.shadowed.map(|no| no.code));
        }
        let now_us = log.now_us() + late_us;
        let digest = log.ledger.digest();
        let told = log.ledger.explain(&key, 1, now_us);
        let free = |at_us| match log.ledger.available(&key, at_us) {
            Availability::Open { free, .. } => free,
            other => panic!("{other:?}"),
        };
        prop_assert!(told.frees.len() <= 10);
        let account = told.account.unwrap();
        prop_assert_eq!(account.free, free(now_us));
        let mut before = (now_us, account.free);
        for freeing in told.frees {
            let at_us = now_us + freeing.after_us;
            prop_assert_eq!(free(at_us), freeing.free);
            prop_assert!(at_us > before.0 && freeing.units > 0);
            let debt_only = freeing.free == before.1;
            prop_assert!(debt_only || free(at_us - 1) < freeing.free, "it was free before");
            before = (at_us, freeing.free);
        }
        prop_assert_eq!(log.ledger.digest(), digest);
    }
}

#[test]
fn a_forecast_of_a_period_has_what_is_carried_over_into_the_next_one() {
    const DAY_US: u64 = 24 * 3_600_000_000;
    let calendar = Calendar {
        unit: PeriodUnit::Day,
        time_zone: "UTC".to_owned(),
        anchor: 0,
        anchor_month: 0,
    };
    let day = |number: u64| {
        let start = i64::try_from(number * DAY_US).unwrap();
        Entry {
            rolls: vec![Roll {
                calendar: calendar.clone(),
                start_unix_us: start,
                end_unix_us: start + i64::try_from(DAY_US).unwrap(),
                ends_in_us: DAY_US,
            }],
            ..Entry::default()
        }
    };
    let mut log = Log::new();
    log.command(Command::PutBudget {
        pattern: pattern("*"),
        rule: Rule::Inline(policy(Kind::Period {
            limit: 10,
            calendar: calendar.clone(),
            carry_over: 4,
        })),
    });
    log.entry(day(1));
    let key = key("a");
    let spend = |log: &mut Log, units| {
        let key = key.clone();
        match log.command(Command::Spend { key, units }) {
            CommandOutcome::Spent(spent) => spent.refusal,
            other => panic!("{other:?}"),
        }
    };
    // What is used, what the next day has, and when 12 fit by that.
    for (number, used, next, days) in [(1, 7, 13, 1), (2, 13, 10, 2), (3, 8, 12, 1), (4, 1, 14, 1)]
    {
        assert_eq!(spend(&mut log, used), None);
        let told = log.ledger.explain(&key, 1, log.now_us());
        let frees: Vec<u64> = told.frees.iter().map(|freeing| freeing.free).collect();
        assert_eq!(frees, [next], "after day {number}");
        if let Some(refusal) = spend(&mut log, 12) {
            let wait_us = refusal.retry_after_us.unwrap();
            assert_eq!(wait_us, days * DAY_US, "on day {number}");
        }
        log.advance(DAY_US);
        log.entry(day(number + 1));
        let account = log.ledger.account(&key).unwrap();
        assert_eq!(account.free, next, "on day {}", number + 1);
    }
}
