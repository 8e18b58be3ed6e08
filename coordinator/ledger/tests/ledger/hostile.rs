//! Whatever clients, operators and clocks say, well meant or not: the books stay
//! whole, no replica stops or diverges, and nothing is lent beyond the largest
//! limit that ever was in force. Knows nothing of what honest clients say.
//! Past 600 lines because it draws every command that there is.

use leasehold_ledger::{
    Preview,
    correction::Change,
    edit::{Edit, Expect, Guarded, RuleChange, Terms},
    entry::{Command, Entry, Grant, Report, Roll, Rule, SessionId, SettledLease, SpentAge, Sync},
    outcome::{CommandOutcome, CommandRefusal},
    policy::{Calendar, Kind, PeriodUnit, Policy, UNITS_MAX, WINDOW_US_MAX, WINDOW_US_MIN},
    settings::Settings,
};
use proptest::prelude::*;

use crate::log::{Log, bucket, key, open, pattern, window};

const KEYS: [&str; 4] = ["a/b", "a/c", "a/b/c", "z"];
const PATTERNS: [&str; 6] = ["a/b", "a/*", "**", "a/**", "z", "a/b*"];
const NAMES: [&str; 2] = ["one", "two"];

/// One thing that somebody says. Generations and totals are relative to what is
/// known, so that many of them hit something.
#[derive(Clone, Debug)]
enum Word {
    Sync {
        session: u128,
        seq: u64,
        renew: bool,
        close: bool,
        reports: Vec<Claim>,
    },
    Settle {
        session: u128,
        claims: Vec<Claim>,
        stranger: bool,
    },
    Open(u128),
    End(u128),
    Policy(usize, Policy),
    DropPolicy(usize),
    Budget(usize, Result<usize, Policy>),
    DropBudget(usize),
    Spend(usize, u64),
    SpendOnce(usize, u64, u8),
    /// The key, the id, a reset or an adjustment.
    Correct(usize, u8, Option<i64>),
    CoolDown(usize),
    /// The n-th day, begun or corrected.
    Day(i64, bool),
    Settings(Settings),
    Grant(u128, usize, u64),
    /// Several edits at once, each with its condition and its cap, and their author.
    Edit(Vec<(Word, Expectation, Option<u64>)>, String),
}

/// What an edit expects; tags are relative to what is known.
#[derive(Clone, Debug)]
enum Expectation {
    Anything,
    Absent,
    Present,
    Seen,
    Never(u64),
}

/// What is said of a lease: of the n-th newest that the session has of the key.
#[derive(Clone, Debug)]
struct Claim {
    key: usize,
    nth: usize,
    last: bool,
    spent: u64,
    returned: u64,
    held: u64,
    ages: Vec<SpentAge>,
}

fn amount() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..12_u64,
        1 => Just(UNITS_MAX),
        1 => Just(UNITS_MAX + 1),
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

fn session() -> impl Strategy<Value = u128> {
    1..5_u128
}

fn claim() -> impl Strategy<Value = Claim> {
    let age = (amount(), amount()).prop_map(|(units, age_us)| SpentAge { units, age_us });
    (
        0..KEYS.len(),
        0..3_usize,
        prop::bool::weighted(0.3),
        amount(),
        amount(),
        prop_oneof![4 => Just(0), 1 => amount()],
        prop::collection::vec(age, 0..4),
    )
        .prop_map(|(key, nth, last, spent, returned, held, ages)| Claim {
            key,
            nth,
            last,
            spent,
            returned,
            held,
            ages,
        })
}

fn claims() -> impl Strategy<Value = Vec<Claim>> {
    prop::collection::vec(claim(), 0..4)
}

/// Of the kinds that promise no bound of what is counted, or one that corrections move.
fn a_policy() -> impl Strategy<Value = Policy> {
    (
        a_bounded_policy(),
        0..24_u8,
        0..20_u64,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(mut policy, kind, units, shadow)| {
            let limit = policy.kind.limit();
            policy.kind = match kind {
                0 => Kind::Total { limit },
                1..4 => Kind::Concurrency { limit },
                4..8 => Kind::Period {
                    limit,
                    calendar: days(),
                    carry_over: units,
                },
                8 => Kind::Unlimited,
                9 => Kind::Estimate {
                    limit,
                    window_us: 1_000_000,
                },
                _ => policy.kind,
            };
            policy.cooldown_us = if kind % 8 == 7 { 300_000 } else { 0 };
            policy.shadow = shadow;
            policy
        })
}

fn days() -> Calendar {
    Calendar {
        unit: PeriodUnit::Day,
        time_zone: "UTC".to_owned(),
        anchor: 0,
        anchor_month: 0,
    }
}

/// What all that is charged under a policy can be; none: that has no bound.
fn bound(policy: &Policy) -> Option<u64> {
    match &policy.kind {
        Kind::Unlimited | Kind::Estimate { .. } | Kind::Total { .. } => None,
        Kind::Period {
            limit, carry_over, ..
        } => Some(limit.saturating_add(*carry_over)),
        kind => Some(kind.limit()),
    }
}

fn a_bounded_policy() -> impl Strategy<Value = Policy> {
    let limit = prop_oneof![6 => 0..20_u64, 2 => Just(UNITS_MAX), 1 => Just(UNITS_MAX + 1)];
    let span = prop_oneof![
        4 => Just(WINDOW_US_MIN),
        2 => Just(1_000_000),
        1 => Just(WINDOW_US_MAX),
        1 => Just(0),
        1 => Just(u64::MAX),
    ];
    (any::<bool>(), limit, amount(), span).prop_map(|(is_window, limit, refill, span)| {
        if is_window {
            window(limit, span)
        } else {
            bucket(limit, refill, span)
        }
    })
}

fn some_settings() -> impl Strategy<Value = Settings> {
    (
        prop_oneof![Just(100_000_u64), Just(10_000_000), amount()],
        prop_oneof![Just(0_u32), Just(1_000), Just(100_000), any::<u32>()],
        prop::option::of(0..NAMES.len()),
        1..4_u32,
        1..4_u64,
        prop_oneof![Just(0_u64), Just(50_000), Just(3_600_000_000)],
    )
        .prop_map(
            |(ttl, drift, default, keys, accounts, tombstone_ttl_us)| Settings {
                session_ttl_us: ttl,
                sync_interval_us: 20_000,
                max_drift_ppm: drift,
                default_policy: default.map(|name| NAMES[name].to_owned()),
                sessions_per_identity_max: 3,
                keys_per_session_max: keys,
                accounts_per_pattern_max: accounts,
                tombstone_ttl_us,
                preferred_leader_region: None,
                idempotency_ttl_us: if ttl % 2 == 0 { 1_000_000 } else { 600_000_000 },
                idempotency_keys_max: accounts,
            },
        )
}

fn edit() -> impl Strategy<Value = Word> {
    let change = prop_oneof![
        3 => (0..NAMES.len(), a_policy()).prop_map(|(name, policy)| Word::Policy(name, policy)),
        1 => (0..NAMES.len()).prop_map(Word::DropPolicy),
        4 => (0..PATTERNS.len(), prop_oneof![
            (0..NAMES.len()).prop_map(Ok),
            a_policy().prop_map(Err),
        ]).prop_map(|(pattern, rule)| Word::Budget(pattern, rule)),
        1 => (0..PATTERNS.len()).prop_map(Word::DropBudget),
        1 => some_settings().prop_map(Word::Settings),
    ];
    let expect = prop_oneof![
        4 => Just(Expectation::Anything),
        1 => Just(Expectation::Absent),
        1 => Just(Expectation::Present),
        2 => Just(Expectation::Seen),
        1 => any::<u64>().prop_map(Expectation::Never),
    ];
    let cap =
        prop_oneof![3 => Just(None), 2 => (0..4_u64).prop_map(Some), 1 => amount().prop_map(Some)];
    let by = prop_oneof![4 => "[a-z]{0,8}", 1 => Just("é".repeat(65))];
    (prop::collection::vec((change, expect, cap), 0..4), by)
        .prop_map(|(changes, by)| Word::Edit(changes, by))
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        4 => edit(),
        8 => (session(), amount(), any::<bool>(), prop::bool::weighted(0.1), claims()).prop_map(
            |(session, seq, renew, close, reports)| Word::Sync { session, seq, renew, close, reports }
        ),
        2 => (session(), claims(), prop::bool::weighted(0.2))
            .prop_map(|(session, claims, stranger)| Word::Settle { session, claims, stranger }),
        4 => session().prop_map(Word::Open),
        1 => session().prop_map(Word::End),
        2 => (0..NAMES.len(), a_policy()).prop_map(|(name, policy)| Word::Policy(name, policy)),
        1 => (0..NAMES.len()).prop_map(Word::DropPolicy),
        3 => (0..PATTERNS.len(), prop_oneof![
            (0..NAMES.len()).prop_map(Ok),
            a_policy().prop_map(Err),
        ]).prop_map(|(pattern, rule)| Word::Budget(pattern, rule)),
        1 => (0..PATTERNS.len()).prop_map(Word::DropBudget),
        4 => (0..KEYS.len(), amount()).prop_map(|(key, units)| Word::Spend(key, units)),
        3 => (0..KEYS.len(), amount(), 0..6_u8)
            .prop_map(|(key, units, name)| Word::SpendOnce(key, units, name)),
        2 => (0..KEYS.len(), 0..6_u8, prop::option::weighted(0.8, prop_oneof![
            4 => -12..12_i64,
            1 => any::<i64>(),
        ])).prop_map(|(key, id, units)| Word::Correct(key, id, units)),
        1 => (0..KEYS.len()).prop_map(Word::CoolDown),
        2 => (0..12_i64, prop::bool::weighted(0.9)).prop_map(|(day, begins)| Word::Day(day, begins)),
        1 => some_settings().prop_map(Word::Settings),
        8 => (session(), 0..KEYS.len(), amount())
            .prop_map(|(session, key, units)| Word::Grant(session, key, units)),
    ]
}

#[derive(Clone, Debug)]
struct Step {
    words: Vec<Word>,
    /// How far the clock moves before it.
    advance_us: u64,
    /// An entry with an older stamp than the last.
    back_us: u64,
    restart: bool,
}

fn step() -> impl Strategy<Value = Step> {
    (
        prop::collection::vec(word(), 0..6),
        prop_oneof![4 => 0..200_000_u64, 1 => 0..20_000_000_u64, 1 => Just(2 * WINDOW_US_MAX)],
        prop_oneof![4 => Just(0), 1 => 0..1_000_000_u64],
        prop::bool::weighted(0.1),
    )
        .prop_map(|(words, advance_us, back_us, restart)| Step {
            words,
            advance_us,
            back_us,
            restart,
        })
}

/// The generation that a claim is about; one that never was, when there is none.
fn generation(log: &Log, session: u128, claim: &Claim) -> u64 {
    let leases = log.ledger.leases(SessionId(session));
    let mut known: Vec<u64> = leases
        .iter()
        .filter(|lease| lease.key == key(KEYS[claim.key]))
        .map(|lease| lease.generation)
        .collect();
    known.sort_unstable();
    known.into_iter().rev().nth(claim.nth).unwrap_or(1)
}

fn report(log: &Log, session: u128, claim: &Claim) -> Report {
    Report {
        key: key(KEYS[claim.key]),
        generation: generation(log, session, claim),
        last: claim.last,
        spent_total: claim.spent,
        returned_total: claim.returned,
        held: claim.held,
        ages: claim.ages.clone(),
        overrun_total: 0,
    }
}

fn guarded(log: &Log, word: Word, expect: Expectation, accounts_max: Option<u64>) -> Guarded {
    let ledger = &log.ledger;
    let (change, seen) = match word {
        Word::Policy(name, policy) => {
            let name = NAMES[name].to_owned();
            let seen = ledger.policy_view(&name).map(|seen| seen.tag);
            (RuleChange::PutPolicy { name, policy }, seen)
        }
        Word::DropPolicy(name) => {
            let name = NAMES[name].to_owned();
            let seen = ledger.policy_view(&name).map(|seen| seen.tag);
            (RuleChange::DeletePolicy { name }, seen)
        }
        Word::Budget(at, rule) => {
            let pattern = pattern(PATTERNS[at]);
            let seen = ledger.budget_view(&pattern).map(|seen| seen.tag);
            let terms = Terms {
                rule: self::rule(rule),
                accounts_max,
            };
            (RuleChange::PutBudget { pattern, terms }, seen)
        }
        Word::DropBudget(at) => {
            let pattern = pattern(PATTERNS[at]);
            let seen = ledger.budget_view(&pattern).map(|seen| seen.tag);
            (RuleChange::DeleteBudget { pattern }, seen)
        }
        Word::Settings(settings) => (
            RuleChange::PutSettings(settings),
            Some(ledger.settings_tag()),
        ),
        word => panic!("{word:?} is no edit"),
    };
    let expect = match expect {
        Expectation::Anything => Expect::Anything,
        Expectation::Absent => Expect::Absent,
        Expectation::Present => Expect::Present,
        Expectation::Seen => Expect::OneOf(seen.into_iter().collect()),
        Expectation::Never(tag) => Expect::OneOf(vec![tag]),
    };
    Guarded { change, expect }
}

fn rule(rule: Result<usize, Policy>) -> Rule {
    match rule {
        Ok(name) => Rule::Named(NAMES[name].to_owned()),
        Err(policy) => Rule::Inline(policy),
    }
}

/// The policies that somebody wants to be in force.
fn policies_in(word: &Word) -> Vec<&Policy> {
    match word {
        Word::Policy(_, policy) | Word::Budget(_, Err(policy)) => vec![policy],
        Word::Edit(changes, _) => {
            let words = changes.iter();
            words.flat_map(|(word, ..)| policies_in(word)).collect()
        }
        _ => Vec::new(),
    }
}

fn say(log: &Log, entry: &mut Entry, word: Word) {
    let command = match word {
        Word::Sync {
            session,
            seq,
            renew,
            close,
            reports,
        } => {
            let reports = reports
                .iter()
                .map(|claim| report(log, session, claim))
                .collect();
            entry.syncs.push(Sync {
                session: SessionId(session),
                seq,
                renew,
                close,
                reports,
            });
            return;
        }
        Word::Grant(session, at, units) => {
            entry.grants.push(Grant {
                session: SessionId(session),
                key: key(KEYS[at]),
                units,
            });
            return;
        }
        Word::Settle {
            session,
            claims,
            stranger,
        } => Command::Settle {
            session: SessionId(session),
            identity: if stranger { "stranger" } else { "" }.to_owned(),
            leases: claims
                .iter()
                .map(|claim| SettledLease {
                    key: key(KEYS[claim.key]),
                    generation: generation(log, session, claim),
                    spent_total: claim.spent,
                })
                .collect(),
        },
        Word::Open(session) => open(SessionId(session)),
        Word::End(session) => Command::EndSession {
            session: SessionId(session),
        },
        Word::Policy(name, policy) => Command::PutPolicy {
            name: NAMES[name].to_owned(),
            policy,
        },
        Word::DropPolicy(name) => Command::DeletePolicy {
            name: NAMES[name].to_owned(),
        },
        Word::Budget(at, rule) => Command::PutBudget {
            pattern: pattern(PATTERNS[at]),
            rule: self::rule(rule),
        },
        Word::DropBudget(at) => Command::DeleteBudget {
            pattern: pattern(PATTERNS[at]),
        },
        Word::Spend(at, units) => Command::Spend {
            key: key(KEYS[at]),
            units,
        },
        Word::SpendOnce(at, units, name) => Command::SpendOnce {
            key: key(KEYS[at]),
            units,
            idempotency_key: format!("request-{name}"),
        },
        Word::Correct(at, id, units) => Command::Correct {
            key: key(KEYS[at]),
            id: format!("order-{id}"),
            change: units.map_or(Change::Reset, Change::Adjust),
            reason: "they asked".to_owned(),
            by: String::new(),
            wall_unix_us: 7,
        },
        Word::CoolDown(at) => Command::CoolDown { key: key(KEYS[at]) },
        Word::Day(day, begins) => {
            const DAY_US: i64 = 86_400_000_000;
            let roll = Roll {
                calendar: days(),
                start_unix_us: day * DAY_US,
                end_unix_us: (day + 1) * DAY_US,
                ends_in_us: 500_000,
            };
            if begins {
                entry.rolls.push(roll);
                return;
            }
            Command::CorrectPeriod(roll)
        }
        Word::Settings(settings) => Command::PutSettings(settings),
        Word::Edit(changes, by) => Command::Edit(Edit {
            changes: changes
                .into_iter()
                .map(|(word, expect, cap)| guarded(log, word, expect, cap))
                .collect(),
            by,
            wall_unix_us: -1,
        }),
    };
    entry.commands.push(command);
}

/// What was said of an edit that is alone in its entry, and how things stood.
struct Foreseen {
    preview: Result<Preview, CommandRefusal>,
    debt_before: u64,
}

fn foreseen(log: &Log, entry: &Entry) -> Option<Foreseen> {
    let [Command::Edit(edit)] = entry.commands.as_slice() else {
        return None;
    };
    // What else an entry does would be between the two; and it expires and drops.
    let mut before = log.ledger.clone();
    let alone = Entry {
        commands: Vec::new(),
        grants: Vec::new(),
        ..entry.clone()
    };
    before.apply(log.index() + 1, &alone);
    let accounts = before.accounts("", None, 100);
    Some(Foreseen {
        preview: before.freeze().preview(edit, 0),
        debt_before: accounts.iter().map(|account| account.debt).sum(),
    })
}

impl Foreseen {
    /// The edit did what was foreseen: it is refused alike, and debts grew by as much
    /// where none shrank.
    fn check(&self, log: &Log, outcome: &CommandOutcome) -> Result<(), TestCaseError> {
        match (&self.preview, outcome) {
            (Err(why), CommandOutcome::Refused(refused)) => prop_assert_eq!(why, refused),
            (Ok(preview), CommandOutcome::Edited(edited)) => {
                prop_assert_eq!(&preview.changes, edited);
                let debt: u64 = log
                    .ledger
                    .accounts("", None, 100)
                    .iter()
                    .map(|a| a.debt)
                    .sum();
                prop_assert!(debt <= self.debt_before + preview.debt);
                let worst: u64 = preview.worst.iter().map(|(_, debt)| debt).sum();
                prop_assert_eq!(worst, preview.debt, "there are few keys");
            }
            (preview, outcome) => prop_assert!(false, "{preview:?} became {outcome:?}"),
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(
        std::env::var("HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48)
    ))]

    #[test]
    fn nothing_that_anybody_says_breaks_the_books(steps in prop::collection::vec(step(), 1..60)) {
        let mut log = Log::new();
        // None: something that has no bound was in force.
        let mut largest = Some(0);
        for name in NAMES {
            log.command(Command::PutPolicy { name: name.to_owned(), policy: window(10, 1_000_000) });
        }
        log.command(Command::PutBudget {
            pattern: pattern("**"),
            rule: Rule::Named("one".to_owned()),
        });
        largest = largest.max(Some(10));
        for step in steps {
            log.advance(step.advance_us);
            let mut entry = Entry::default();
            for word in step.words {
                for policy in policies_in(&word) {
                    if policy.validate().is_ok() {
                        largest = bound(policy).and_then(|bound| Some(largest?.max(bound)));
                    }
                }
                say(&log, &mut entry, word);
            }
            entry.now_us = log.now_us().saturating_sub(step.back_us);
            let settings: Vec<bool> = entry
                .commands
                .iter()
                .map(|command| matches!(command, Command::PutSettings(settings) if settings.validate().is_err()))
                .collect();
            let foreseen = foreseen(&log, &entry);
            let applied = log.stamped(&entry);
            if let Some(foreseen) = foreseen {
                foreseen.check(&log, &applied.commands[0])?;
            }
            for (outcome, is_invalid) in applied.commands.iter().zip(settings) {
                prop_assert!(!is_invalid || matches!(outcome, CommandOutcome::Refused(_)));
            }
            let bounded = largest.map(|largest| (largest, log.ledger.accounts("", None, 100)));
            let (largest, accounts) = bounded.unwrap_or_default();
            // By hand, anything can be counted.
            for account in accounts.iter().filter(|account| account.corrections == 0) {
                prop_assert!(
                    u128::from(account.counted) + u128::from(account.outstanding) <= u128::from(largest),
                    "{}: {} counted and {} outstanding of {largest}",
                    account.key, account.counted, account.outstanding,
                );
            }
            if step.restart {
                log.restart();
            }
        }
        // Everything ends in the end: nothing stays lent for ever.
        for _ in 0..6 {
            log.advance(2 * WINDOW_US_MAX);
            log.tick();
        }
        let totals = log.ledger.totals();
        prop_assert_eq!((totals.outstanding, totals.leases, totals.sessions), (0, 0, 0));
        log.restart();
    }
}
