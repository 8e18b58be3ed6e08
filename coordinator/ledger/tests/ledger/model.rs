//! The ledger beside the naive model: both see the same random entries. Knows
//! nothing of what is right: `play` judges.

use leasehold_ledger::{
    correction::Change,
    policy::{Kind, UNITS_MAX},
};
use proptest::prelude::*;

use crate::{
    naive::TTL_US,
    ops::{Begin, Op, Said, Step, calendar},
    play::play,
};

fn time() -> impl Strategy<Value = u64> {
    prop_oneof![100_000..400_000_u64, Just(300_000), Just(1_000_000)]
}

fn window_or_bucket() -> BoxedStrategy<Kind> {
    prop_oneof![
        (0..30_u64, time()).prop_map(|(limit, window_us)| Kind::SlidingWindow { limit, window_us }),
        (0..30_u64, 1..40_u64, time()).prop_map(|(capacity, refill, refill_period_us)| {
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
        }),
    ]
    .boxed()
}

fn period() -> BoxedStrategy<Kind> {
    let carry_over = prop_oneof![1 => Just(0), 3 => 0..40_u64];
    (0..30_u64, 0..2_u8, carry_over)
        .prop_map(|(limit, number, carry_over)| Kind::Period {
            limit,
            calendar: calendar(number),
            carry_over,
        })
        .boxed()
}

fn total() -> BoxedStrategy<Kind> {
    (0..60_u64).prop_map(|limit| Kind::Total { limit }).boxed()
}

fn permits() -> BoxedStrategy<Kind> {
    let limit = 0..30_u64;
    limit.prop_map(|limit| Kind::Concurrency { limit }).boxed()
}

fn any_kind() -> BoxedStrategy<Kind> {
    let paced = (0..30_u64, 1..40_u64, time()).prop_map(|(capacity, refill, refill_period_us)| {
        Kind::Paced {
            capacity,
            refill,
            refill_period_us,
        }
    });
    let estimate =
        (0..30_u64, time()).prop_map(|(limit, window_us)| Kind::Estimate { limit, window_us });
    prop_oneof![
        2 => window_or_bucket(),
        2 => period(),
        1 => total(),
        1 => permits(),
        1 => paced,
        1 => estimate,
        1 => Just(Kind::Unlimited),
    ]
    .boxed()
}

fn begin() -> impl Strategy<Value = Begin> {
    let ends_in = || prop_oneof![Just(0), 1..3_000_000_u64, Just(u64::MAX)];
    prop_oneof![
        4 => ends_in().prop_map(Begin::Next),
        2 => ends_in().prop_map(Begin::Later),
        1 => Just(Begin::Again),
        1 => Just(Begin::Early),
        1 => Just(Begin::Stale),
        1 => Just(Begin::Unsound),
    ]
}

fn small() -> BoxedStrategy<Change> {
    prop_oneof![
        4 => (1..30_i64).prop_map(Change::Adjust),
        2 => (-30..0_i64).prop_map(Change::Adjust),
        1 => Just(Change::Reset),
    ]
    .boxed()
}

/// Up to what a total can hold, and just beyond.
fn any_size() -> BoxedStrategy<Change> {
    let most = i64::try_from(UNITS_MAX).unwrap();
    prop_oneof![
        6 => small(),
        1 => (-1..3_i64).prop_map(move |below| Change::Adjust(most - below)),
        1 => (-1..3_i64).prop_map(move |below| Change::Adjust(below - most)),
    ]
    .boxed()
}

fn said() -> impl Strategy<Value = Said> {
    let ages = prop::collection::vec((0..6_u64, prop_oneof![0..500_000_u64, Just(1 << 40)]), 0..4);
    (
        (
            0..3_u8,
            0..2_u8,
            0..6_u64,
            0..4_u64,
            ages,
            prop_oneof![5 => Just(0), 2 => 1..8_u64],
        ),
        (
            prop_oneof![4 => Just(0), 1 => 1..3_u64],
            prop::bool::weighted(0.15),
            prop::bool::weighted(0.05),
            prop::bool::weighted(0.9),
            prop_oneof![5 => Just(0), 1 => 1..3_u64],
        ),
    )
        .prop_map(
            |(
                (session, lease, spent, returned, ages, overrun),
                (held, last, close, renew, late),
            )| {
                Said {
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
                }
            },
        )
}

/// What happens to a budget whose rule is edited to those of `kinds`: how often, beside
/// the rest, a period begins or somebody corrects.
fn op(
    kinds: BoxedStrategy<Kind>,
    rolls: u32,
    corrects: u32,
    change: BoxedStrategy<Change>,
) -> impl Strategy<Value = Op> {
    let cooldown = prop_oneof![3 => Just(0), 1 => 1..3_000_000_u64];
    prop_oneof![
        4 => (0..3_u8).prop_map(Op::Open),
        2 => (0..3_u8).prop_map(Op::End),
        16 => (0..3_u8, 0..15_u64).prop_map(|(session, units)| Op::Grant(session, units)),
        12 => (0..12_u64).prop_map(Op::Spend),
        4 => (0..3_u8, 0..4_u64).prop_map(|(name, units)| Op::SpendOnce(name, units)),
        24 => said().prop_map(Op::Sync),
        10 => (0..6_u8, 0..3_u8, 0..10_u64)
            .prop_map(|(session, lease, spent)| Op::Settle(session, lease, spent)),
        2 => (kinds, cooldown).prop_map(|(kind, cooldown_us)| Op::Edit(kind, cooldown_us)),
        1 => Just(Op::CoolDown),
        rolls => (0..2_u8, begin()).prop_map(|(number, begin)| Op::Roll(number, begin)),
        1 => (0..2_u8, begin()).prop_map(|(number, begin)| Op::CorrectPeriod(number, begin)),
        corrects => (0..12_u8, change).prop_map(|(id, change)| Op::Correct(id, change)),
    ]
}

fn step(ops: impl Strategy<Value = Op>) -> impl Strategy<Value = Step> {
    let time = prop_oneof![
        12 => Just(0),
        24 => 1..200_000_u64,
        8 => 200_000..1_200_000_u64,
        8 => Just(TTL_US + 1),
        4 => Just(5_000_000),
        // What operators corrected is forgotten.
        1 => Just(3_600_000_001),
    ];
    (
        time,
        prop::collection::vec(ops, 0..5),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(pass_us, ops, restart)| Step {
            pass_us,
            ops,
            restart,
        })
}

fn steps(
    kinds: BoxedStrategy<Kind>,
    rolls: u32,
    corrects: u32,
    change: BoxedStrategy<Change>,
) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(op(kinds, rolls, corrects, change)), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn the_ledger_agrees_with_a_naive_model(
        start in window_or_bucket(),
        steps in steps(window_or_bucket(), 1, 1, small()),
    ) {
        play(start, steps);
    }

    #[test]
    fn periods_agree_with_a_naive_model_that_begins_them_for_everybody_at_once(
        start in period(),
        steps in steps(period(), 12, 2, small()),
    ) {
        play(start, steps);
    }

    #[test]
    fn totals_agree_with_a_naive_model(start in total(), steps in steps(total(), 1, 6, any_size())) {
        play(start, steps);
    }

    #[test]
    fn permits_agree_with_a_naive_model(start in permits(), steps in steps(permits(), 1, 1, any_size())) {
        play(start, steps);
    }

    #[test]
    fn edits_between_all_kinds_agree_with_a_naive_model(
        start in any_kind(),
        steps in steps(any_kind(), 6, 2, small()),
    ) {
        play(start, steps);
    }
}
