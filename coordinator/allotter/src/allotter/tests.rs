//! Claims about proposals and conclusions over a real ledger. Past 600 lines because all of
//! them are made at one desk.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use leasehold_key::Pattern;
use leasehold_ledger::{
    entry::{Command, Entry, Report, Rule, SpentAge, Sync},
    policy::{Kind, Policy},
};
use proptest::prelude::*;

use super::*;

const WINDOW_US: u64 = 60_000_000;

/// A leader without a log: one ledger, one allotter, entries one after another.
struct Desk {
    ledger: Ledger,
    allotter: Allotter,
    index: u64,
    now_us: u64,
    syncs: Vec<Sync>,
    seq: u64,
}

fn key() -> Key {
    Key::parse("acme/orders").unwrap()
}

fn session(number: u128) -> SessionId {
    SessionId(number)
}

fn policy(kind: Kind) -> Policy {
    Policy {
        public_name: "orders".to_owned(),
        ..Policy::new(kind)
    }
}

fn window(limit: u64) -> Policy {
    policy(Kind::SlidingWindow {
        limit,
        window_us: WINDOW_US,
    })
}

/// One request waits.
fn waits(units: u64) -> Level {
    Level {
        want: units,
        waiting: units,
        waiting_head: units,
        ..Level::default()
    }
}

/// Units wanted ahead by somebody with this demand.
fn wants(units: u64, demand: u64) -> Level {
    Level {
        want: units,
        peak: demand,
        demand_milli: demand * 1_000,
        ..Level::default()
    }
}

impl Desk {
    fn new(policy: Policy, sessions: u128) -> Self {
        let mut desk = Self {
            ledger: Ledger::new(),
            allotter: Allotter::new(),
            index: 0,
            now_us: 1_000_000,
            syncs: Vec::new(),
            seq: 0,
        };
        let mut commands = vec![Command::PutBudget {
            pattern: Pattern::parse("acme/*").unwrap(),
            rule: Rule::Inline(policy),
        }];
        for number in 1..=sessions {
            commands.push(Command::Open {
                session: session(number),
                holder: format!("gw-{number}"),
                identity: String::new(),
            });
        }
        desk.apply(Entry {
            commands,
            ..Entry::default()
        });
        for number in 1..=sessions {
            desk.allotter.attach(session(number));
        }
        desk
    }

    fn apply(&mut self, mut entry: Entry) -> leasehold_ledger::outcome::Applied {
        self.index += 1;
        entry.now_us = self.now_us;
        let applied = self.ledger.apply(self.index, &entry);
        self.ledger.check().unwrap();
        applied
    }

    /// A session says this of the key, with what it has by the books.
    fn hear(&mut self, number: u128, mut level: Level) {
        if let Some(lease) = self.ledger.lease(session(number), &key()) {
            level.generation = lease.generation;
            level.granted_seen = lease.granted_total;
            level.spent_total = level.spent_total.max(lease.spent_total);
            level.returned_total = level.returned_total.max(lease.returned_total);
            level.left = lease
                .granted_total
                .saturating_sub(level.spent_total)
                .saturating_sub(level.returned_total);
            self.seq += 1;
            self.syncs.push(Sync {
                session: session(number),
                seq: self.seq,
                renew: true,
                close: false,
                reports: vec![Report {
                    key: key(),
                    generation: level.generation,
                    last: false,
                    spent_total: level.spent_total,
                    returned_total: level.returned_total,
                    held: 0,
                    overrun_total: 0,
                    ages: vec![SpentAge {
                        units: 0,
                        age_us: 0,
                    }],
                }],
            });
        }
        self.allotter
            .hear(&self.ledger, self.now_us, session(number), &key(), &level);
    }

    /// One entry: who got how much, and what was concluded.
    fn round(&mut self) -> (Vec<(u128, u64)>, Conclusion) {
        let grants = self.allotter.propose(&self.ledger, self.now_us);
        let syncs = mem::take(&mut self.syncs);
        let applied = self.apply(Entry {
            syncs,
            grants: grants.clone(),
            ..Entry::default()
        });
        let conclusion =
            self.allotter
                .conclude(&self.ledger, applied.now_us, &grants, &applied.grants);
        let got = grants
            .iter()
            .zip(&applied.grants)
            .filter(|(_, outcome)| outcome.units > 0)
            .map(|(grant, outcome)| (grant.session.0, outcome.units))
            .collect();
        (got, conclusion)
    }

    fn advance(&mut self, us: u64) {
        self.now_us += us;
    }
}

fn refused(conclusion: &Conclusion) -> Vec<(u128, Code, Option<u64>)> {
    conclusion
        .refusals
        .iter()
        .map(|refused| {
            let Refusal {
                code,
                retry_after_us,
            } = refused.refusal;
            (refused.session.0, code, retry_after_us)
        })
        .collect()
}

#[test]
fn a_waiting_request_gets_its_unit_and_the_rest_of_what_it_wants() {
    let mut desk = Desk::new(window(100), 1);
    desk.hear(
        1,
        Level {
            want: 15,
            waiting: 1,
            peak: 10,
            ..Level::default()
        },
    );
    let (got, conclusion) = desk.round();
    assert_eq!(got, [(1, 15)]);
    assert_eq!(conclusion, Conclusion::default());
}

#[test]
fn of_a_used_up_total_nobody_is_told_when_to_ask_again_unless_somebody_has_some_of_it() {
    let mut desk = Desk::new(Policy::new(Kind::Total { limit: 2 }), 2);
    desk.hear(1, waits(2));
    assert_eq!(desk.round().0, [(1, 2)]);
    // The first one has them, and may hand them back.
    let retry = |desk: &mut Desk| {
        desk.hear(2, waits(2));
        for _ in 0..50 {
            let (got, conclusion) = desk.round();
            assert_eq!(got, []);
            if let [(2, Code::Limit, retry_after_us)] = refused(&conclusion)[..] {
                return retry_after_us;
            }
            desk.advance(100_000);
        }
        panic!("never refused");
    };
    assert!(retry(&mut desk).is_some());
    desk.hear(
        1,
        Level {
            spent_total: 2,
            ..Level::default()
        },
    );
    desk.round();
    assert_eq!(retry(&mut desk), None);
}

#[test]
fn units_that_come_back_in_an_entry_are_given_in_the_same_entry() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 10));
    assert_eq!(desk.round().0, [(1, 10)]);
    desk.hear(
        1,
        Level {
            returned_total: 4,
            ..Level::default()
        },
    );
    desk.hear(2, waits(3));
    assert_eq!(desk.round().0, [(2, 3)]);
}

#[test]
fn when_everything_is_spent_the_refusal_says_exactly_when_a_unit_is_free_again() {
    let mut desk = Desk::new(window(10), 1);
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.advance(5_000_000);
    desk.hear(
        1,
        Level {
            spent_total: 10,
            ..waits(1)
        },
    );
    let (got, conclusion) = desk.round();
    assert_eq!(got, []);
    let [(1, Code::Limit, Some(retry_us))] = refused(&conclusion)[..] else {
        panic!("{conclusion:?}");
    };
    // One microsecond before, nothing is free; then, everything is.
    for (wait_us, free) in [(retry_us - 1, 0), (retry_us, 10)] {
        let Availability::Open { free: is_free, .. } =
            desk.ledger.available(&key(), desk.now_us + wait_us)
        else {
            panic!("a budget");
        };
        assert_eq!(is_free, free);
    }
}

#[test]
fn what_was_refused_stays_wanted_and_comes_when_units_age_out() {
    let mut desk = Desk::new(window(10), 1);
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.hear(
        1,
        Level {
            want: 4,
            spent_total: 10,
            ..waits(1)
        },
    );
    desk.round();
    let wake_us = desk.allotter.next_wake_us().unwrap();
    assert!(wake_us > desk.now_us + WINDOW_US);
    desk.now_us = wake_us;
    assert!(desk.allotter.is_due(desk.now_us));
    // The session would have been renewed meanwhile; here it expired, so the
    // ledger refuses and the allotter forgets what it wanted.
    let (got, conclusion) = desk.round();
    assert_eq!(got, []);
    assert_eq!(refused(&conclusion), [(1, Code::SessionExpired, None)]);
    assert_eq!(desk.allotter.notes(), 0);
}

#[test]
fn a_registered_want_is_served_by_time_alone() {
    let mut desk = Desk::new(
        policy(Kind::TokenBucket {
            capacity: 10,
            refill: 10,
            refill_period_us: 1_000_000,
        }),
        1,
    );
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.hear(
        1,
        Level {
            want: 3,
            peak: 1,
            spent_total: 10,
            ..Level::default()
        },
    );
    desk.round();
    let mut given = 0;
    while given < 3 {
        desk.now_us = desk.allotter.next_wake_us().unwrap();
        given += desk.round().0.iter().map(|(_, units)| units).sum::<u64>();
    }
    assert_eq!(given, 3);
    // Four tenths of a second bring that much; who has some of it can wait for more.
    assert!(desk.now_us < 1_000_000 + 800_000);
    assert_eq!(desk.allotter.next_wake_us(), None);
}

#[test]
fn idle_units_are_recalled_for_a_waiting_request_and_no_refusal_is_given_meanwhile() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 0));
    desk.round();
    desk.advance(5_000_000);
    desk.hear(2, waits(1));
    let (got, conclusion) = desk.round();
    assert_eq!(got, []);
    assert_eq!(conclusion.refusals, []);
    let [recall] = &conclusion.recalls[..] else {
        panic!("{conclusion:?}");
    };
    assert_eq!(recall.session, session(1));
    assert_eq!(recall.returned_total_target, 5);
    assert_eq!(recall.granted_total, 10);

    desk.hear(
        1,
        Level {
            returned_total: 5,
            ..Level::default()
        },
    );
    let (got, conclusion) = desk.round();
    assert_eq!(got, [(2, 1)]);
    assert_eq!(conclusion, Conclusion::default());
}

#[test]
fn a_recall_that_nobody_answers_ends_in_a_refusal_within_the_time_that_a_request_waits() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.advance(5_000_000);
    desk.hear(2, waits(1));
    let asked_us = desk.now_us;
    assert_eq!(desk.round().1.recalls.len(), 1);
    let mut refusals = Vec::new();
    while refusals.is_empty() {
        desk.now_us = desk.allotter.next_wake_us().unwrap();
        refusals = refused(&desk.round().1);
    }
    assert!(matches!(refusals[..], [(2, Code::Limit, Some(_))]));
    assert!(desk.now_us - asked_us <= 250_000);
}

#[test]
fn holders_that_spend_are_not_asked_for_units_back() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 100));
    desk.round();
    desk.hear(2, waits(1));
    let (_, conclusion) = desk.round();
    assert_eq!(conclusion.recalls, []);
    assert!(matches!(
        refused(&conclusion)[..],
        [(2, Code::Limit, Some(_))]
    ));
}

#[test]
fn a_cost_above_the_limit_is_refused_for_ever() {
    let mut desk = Desk::new(window(10), 1);
    desk.hear(1, waits(11));
    let (got, conclusion) = desk.round();
    assert_eq!(refused(&conclusion), [(1, Code::CostAboveLimit, None)]);
    assert_eq!(got, []);
}

#[test]
fn a_key_without_a_budget_is_refused_for_ever_and_forgotten() {
    let mut desk = Desk::new(window(10), 1);
    let unknown = Key::parse("nobody/knows").unwrap();
    let level = waits(1);
    desk.allotter
        .hear(&desk.ledger, desk.now_us, session(1), &unknown, &level);
    let (_, conclusion) = desk.round();
    assert_eq!(refused(&conclusion), [(1, Code::NoBudget, None)]);
    assert_eq!(desk.allotter.notes(), 0);
    assert!(desk.allotter.books.is_empty());
}

#[test]
fn what_a_client_has_not_seen_yet_is_not_given_twice() {
    let mut desk = Desk::new(window(100), 1);
    desk.hear(1, wants(10, 1));
    assert_eq!(desk.round().0, [(1, 10)]);
    // The same levels again, said before the grant arrived.
    desk.allotter
        .hear(&desk.ledger, desk.now_us, session(1), &key(), &wants(10, 1));
    assert_eq!(desk.round().0, []);
    assert_eq!(desk.allotter.notes(), 1);
}

#[test]
fn a_new_stream_clears_what_the_old_one_asked_for() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.hear(
        2,
        Level {
            wait_us: 1_000_000,
            ..waits(1)
        },
    );
    desk.round();
    desk.allotter.attach(session(2));
    desk.hear(
        1,
        Level {
            returned_total: 10,
            ..Level::default()
        },
    );
    assert_eq!(desk.round().0, []);
}

#[test]
fn nobody_without_a_stream_is_asked_or_given_anything() {
    let mut desk = Desk::new(window(10), 2);
    desk.hear(1, wants(10, 10));
    desk.round();
    desk.advance(5_000_000);
    desk.allotter.detach(session(1));
    desk.hear(2, waits(1));
    let (_, conclusion) = desk.round();
    assert_eq!(conclusion.recalls, []);
    assert_eq!(conclusion.refusals.len(), 1);
}

#[test]
fn somebody_who_stays_queued_after_a_refusal_is_served_before_later_ones() {
    let mut desk = Desk::new(window(10), 3);
    desk.hear(1, wants(10, 100));
    desk.round();
    desk.hear(
        2,
        Level {
            wait_us: 10_000_000,
            ..waits(5)
        },
    );
    assert_eq!(desk.round().1.refusals.len(), 1);
    desk.hear(3, waits(1));
    assert_eq!(desk.round().1.refusals.len(), 1);
    desk.hear(
        3,
        Level {
            wait_us: 10_000_000,
            ..waits(1)
        },
    );
    // Three come back: they are saved up for the first, who needs five.
    desk.hear(
        1,
        Level {
            returned_total: 3,
            ..wants(0, 100)
        },
    );
    assert_eq!(desk.round().0, []);
    desk.hear(
        1,
        Level {
            returned_total: 6,
            ..wants(0, 100)
        },
    );
    assert_eq!(desk.round().0, [(2, 5), (3, 1)]);
}

#[test]
fn notes_on_who_wants_nothing_are_dropped_after_a_while() {
    let mut desk = Desk::new(window(10), 1);
    desk.hear(1, wants(5, 1));
    desk.round();
    assert_eq!(desk.allotter.notes(), 1);
    desk.advance(NOTES_US + 1);
    desk.round();
    assert_eq!(desk.allotter.notes(), 0);
    assert!(desk.allotter.books.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever sessions say, in whatever order: the books hold, nobody gets more
    /// than it wants, and a waiting request is given units, refused, or has a
    /// recall under way.
    #[test]
    fn every_waiting_request_is_answered_or_recalled_for(
        steps in prop::collection::vec((1..5_u128, 0..8_u64, 0..4_u64, 0..6_u64, 0..3_u64, any::<bool>(), 0..2_000_000_u64), 1..60),
        limit in 0..30_u64,
    ) {
        let mut desk = Desk::new(window(limit), 4);
        for (number, want, waiting, spend, give_back, stays, pause_us) in steps {
            desk.advance(pause_us);
            let lease = desk.ledger.lease(session(number), &key());
            let (spent, returned) = lease.map_or((0, 0), |lease| {
                let left = lease.granted_total - lease.spent_total - lease.returned_total;
                let spend = spend.min(left);
                (lease.spent_total + spend, lease.returned_total + give_back.min(left - spend))
            });
            let level = Level {
                want: want.max(waiting),
                waiting,
                waiting_head: waiting.min(2),
                wait_us: if stays { 500_000 } else { 0 },
                spent_total: spent,
                returned_total: returned,
                peak: want,
                demand_milli: want * 500,
                ..Level::default()
            };
            desk.hear(number, level);
            let (got, conclusion) = desk.round();
            for (other, units) in &got {
                if *other == number {
                    prop_assert!(*units <= want.max(waiting));
                }
            }
            if waiting > 0 {
                let given = got.iter().find(|(other, _)| *other == number).map_or(0, |(_, n)| *n);
                let refused = conclusion.refusals.iter().any(|refused| refused.session == session(number));
                let pending = desk
                    .allotter
                    .books
                    .get(&key())
                    .is_some_and(|book| book.recalls_under_way(desk.now_us).is_some() || book.listed);
                prop_assert!(given >= waiting || refused || pending, "{conclusion:?} {got:?}");
            }
        }
    }
}

#[test]
fn an_ask_beside_a_final_report_is_not_lost() {
    let mut desk = Desk::new(window(100), 1);
    desk.hear(1, wants(10, 1));
    desk.round();
    let lease = desk.ledger.lease_totals(session(1), &key()).unwrap();
    let ended = Level {
        generation: lease.generation,
        granted_seen: lease.granted,
        last: true,
        spent_total: 10,
        ..Level::default()
    };
    for level in [ended, waits(1)] {
        desk.allotter
            .hear(&desk.ledger, desk.now_us, session(1), &key(), &level);
    }
    assert_eq!(desk.round().0, [(1, 1)]);
}

#[test]
fn reports_of_who_wants_nothing_do_not_cost_a_look_at_the_key() {
    let mut desk = Desk::new(window(100), 1);
    desk.hear(1, wants(10, 1));
    desk.round();
    desk.hear(
        1,
        Level {
            spent_total: 3,
            demand_milli: 1_000,
            ..Level::default()
        },
    );
    assert!(!desk.allotter.is_due(desk.now_us));
    assert_eq!(desk.allotter.notes(), 1);
}
