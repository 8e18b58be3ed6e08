//! Idempotency keys beside a naive list of names: whatever is repeated, by whom and however
//! often, across snapshots and leaders that propose again what they do not know to be
//! done, each name is charged once while it is known. Knows nothing of limits.

use std::collections::BTreeMap;

use leasehold_ledger::{
    entry::{Command, Entry, Rule},
    outcome::{Code, CommandOutcome, CommandRefusal},
    policy::Kind,
    settings::Settings,
};
use proptest::prelude::*;

use crate::log::{Log, key, pattern, policy};

const KEYS: [&str; 2] = ["a", "b"];
const MAX: u64 = 4;
const TTL_US: u64 = 5_000_000;

/// A spend: the name, the key, the units.
type Spend = (u8, usize, u64);

#[derive(Clone, Debug)]
struct Step {
    pass_us: u64,
    spends: Vec<Spend>,
    /// A new leader proposes the last entry's spends again.
    again: bool,
    restart: bool,
    /// How long names are known from now on.
    ttl_us: Option<u64>,
}

fn step() -> impl Strategy<Value = Step> {
    let spend = (0..8_u8, 0..KEYS.len(), 0..3_u64);
    (
        prop_oneof![
            4 => 0..1_000_000_u64,
            1 => Just(TTL_US - 1),
            1 => Just(TTL_US),
            1 => Just(TTL_US + 1),
        ],
        prop::collection::vec(spend, 0..5),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.2),
        prop::option::weighted(0.1, prop_oneof![Just(1_000_000_u64), Just(TTL_US)]),
    )
        .prop_map(|(pass_us, spends, again, restart, ttl_us)| Step {
            pass_us,
            spends,
            again,
            restart,
            ttl_us,
        })
}

fn settings(ttl_us: u64) -> Command {
    Command::PutSettings(Settings {
        idempotency_ttl_us: ttl_us,
        idempotency_keys_max: MAX,
        ..Settings::default()
    })
}

fn command((name, at, units): &Spend) -> Command {
    Command::SpendOnce {
        key: key(KEYS[*at]),
        units: *units,
        idempotency_key: format!("request-{name}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 2))]

    #[test]
    fn a_name_is_charged_once_while_it_is_known(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut log = Log::new();
        let (mut ttl_us, mut charged) = (TTL_US, [0_u64; 2]);
        // What is known: key, units, and until when.
        let mut names: BTreeMap<u8, (usize, u64, u64)> = BTreeMap::new();
        log.command(settings(ttl_us));
        log.command(Command::PutBudget {
            pattern: pattern("*"),
            rule: Rule::Inline(policy(Kind::Total { limit: 1_000_000 })),
        });
        let mut last: Vec<Spend> = Vec::new();
        for step in steps {
            if let Some(new_us) = step.ttl_us {
                ttl_us = new_us;
                log.command(settings(ttl_us));
            }
            log.advance(step.pass_us);
            let mut spends = if step.again { last.clone() } else { Vec::new() };
            spends.extend(&step.spends);
            let applied = log.entry(Entry {
                commands: spends.iter().map(command).collect(),
                ..Entry::default()
            });
            let now_us = log.now_us();
            for (spend, outcome) in spends.iter().zip(&applied.commands) {
                let (name, at, units) = *spend;
                let known = names.get(&name).filter(|(.., until_us)| now_us < *until_us);
                match (known, outcome) {
                    (Some((known_at, known_units, _)), CommandOutcome::Spent(spent)) => {
                        prop_assert_eq!((*known_at, *known_units), (at, units));
                        prop_assert!(spent.repeated && spent.refusal.is_none());
                    }
                    (Some((known_at, known_units, _)), outcome) => {
                        prop_assert_ne!((*known_at, *known_units), (at, units));
                        let reused = CommandOutcome::Refused(CommandRefusal::IdempotencyKeyReused);
                        prop_assert_eq!(outcome, &reused);
                    }
                    (None, CommandOutcome::Spent(spent)) => {
                        prop_assert!(!spent.repeated);
                        if units == 0 {
                            prop_assert!(spent.refusal.is_none());
                            continue;
                        }
                        // Those whose time is over go with the end of an entry.
                        let full = names.len() >= usize::try_from(MAX).unwrap();
                        let code = spent.refusal.map(|refusal| refusal.code);
                        prop_assert_eq!(code, full.then_some(Code::TooManyIdempotencyKeys));
                        if !full {
                            charged[at] += units;
                            names.insert(name, (at, units, now_us + ttl_us));
                        }
                    }
                    (None, outcome) => prop_assert!(false, "{outcome:?}"),
                }
            }
            names.retain(|_, (.., until_us)| now_us < *until_us);
            for (at, charged) in charged.iter().enumerate() {
                let account = log.ledger.account(&key(KEYS[at]));
                prop_assert_eq!(account.map_or(0, |account| account.counted), *charged);
            }
            last = spends;
            if step.restart {
                log.restart();
            }
        }
    }
}
