//! The ledger beside the naive model: both see the same random entries. Knows
//! nothing of what is right: `play` judges.

use leasehold_ledger::policy::Kind;
use proptest::prelude::*;

use crate::{
    naive::TTL_US,
    play::{Op, Step, play},
};

fn kind() -> impl Strategy<Value = Kind> {
    let time = prop_oneof![100_000..400_000_u64, Just(300_000), Just(1_000_000)];
    prop_oneof![
        (0..30_u64, time.clone())
            .prop_map(|(limit, window_us)| Kind::SlidingWindow { limit, window_us }),
        (0..30_u64, 1..40_u64, time).prop_map(|(capacity, refill, refill_period_us)| {
            Kind::TokenBucket {
                capacity,
                refill,
                refill_period_us,
            }
        }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let ages = prop::collection::vec((0..6_u64, prop_oneof![0..500_000_u64, Just(1 << 40)]), 0..4);
    let rare = || prop::bool::weighted(0.15);
    prop_oneof![
        2 => (0..3_u8).prop_map(Op::Open),
        1 => (0..3_u8).prop_map(Op::End),
        8 => (0..3_u8, 0..15_u64).prop_map(|(session, units)| Op::Grant(session, units)),
        6 => (0..12_u64).prop_map(Op::Spend),
        12 => (
            (0..3_u8, 0..2_u8, 0..6_u64, 0..4_u64, ages),
            (prop_oneof![4 => Just(0), 1 => 1..3_u64], rare(), prop::bool::weighted(0.05),
             prop::bool::weighted(0.9), prop_oneof![5 => Just(0), 1 => 1..3_u64]),
        )
            .prop_map(|((session, lease, spent, returned, ages), (held, last, close, renew, late))| {
                Op::Sync(session, lease, spent, returned, ages, held, last, close, renew, late)
            }),
        5 => (0..6_u8, 0..3_u8, 0..10_u64)
            .prop_map(|(session, lease, spent)| Op::Settle(session, lease, spent)),
        1 => kind().prop_map(Op::Edit),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let time = prop_oneof![
        3 => Just(0),
        6 => 1..200_000_u64,
        2 => 200_000..1_200_000_u64,
        2 => Just(TTL_US + 1),
        1 => Just(5_000_000),
    ];
    (
        time,
        prop::collection::vec(op(), 0..5),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(pass_us, ops, restart)| Step {
            pass_us,
            ops,
            restart,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn the_ledger_agrees_with_a_naive_model(
        start in kind(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        play(start, steps);
    }
}
