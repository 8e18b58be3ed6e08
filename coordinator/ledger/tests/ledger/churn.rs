//! Everything at once, by seed: busy windows with thousands of dates, edits between
//! kinds, windows and drifts, keys that move between budgets, sessions that die, settle
//! and restores. Whatever state comes of it reads back from its snapshot to the last
//! byte, and replicas never diverge. What is right to admit is judged elsewhere.

use std::collections::BTreeMap;

use leasehold_key::Pattern;
use leasehold_ledger::{
    Ledger,
    correction::Change,
    edit::{Edit, Expect, Guarded, RuleChange, Terms},
    entry::{Command, Entry, Grant, Report, Roll, Rule, SessionId, SettledLease, SpentAge},
    policy::{Kind, Policy},
    settings::Settings,
};

use crate::{
    log::{Dice, Log, bucket, key, open, pattern, policy, report, sync, window},
    ops::calendar,
};

const KEYS: [&str; 4] = ["a/x", "a/y", "a/x/z", "b"];
const PATTERNS: [&str; 5] = ["a/**", "a/x", "a/*", "b", "**"];

/// What comes next.
struct Draw(Dice);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.roll(bound)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }

    fn policy(&mut self) -> Policy {
        let limit = self.of(&[0, 3, 400, 3_000, 9_000, (1 << 53) - 1]);
        if self.below(3) == 0 {
            return self.newer(limit);
        }
        match self.below(4) {
            0 => {
                let refill = self.of(&[1, 1_000, (1 << 53) - 1]);
                bucket(limit, refill, self.of(&[100_000, 60_000_000]))
            }
            _ => {
                let windows = [
                    100_000,
                    50_000_000,
                    60_000_000,
                    60_000_001,
                    90_000_000,
                    2_678_400_000_000,
                ];
                window(limit, self.of(&windows))
            }
        }
    }
}

impl Draw {
    /// A policy of a kind that version 6 brought, or with a setting that it brought.
    fn newer(&mut self, limit: u64) -> Policy {
        let kind = match self.below(6) {
            0 => Kind::Period {
                limit: limit.min(9_000),
                calendar: calendar(self.of(&[0, 1])),
                carry_over: self.of(&[0, 7, 5_000]),
            },
            1 => Kind::Total { limit },
            2 => Kind::Concurrency { limit },
            3 => Kind::Estimate {
                limit,
                window_us: self.of(&[100_000, 60_000_000]),
            },
            4 => Kind::Paced {
                capacity: limit,
                refill: self.of(&[1, 1_000]),
                refill_period_us: 100_000,
            },
            _ => Kind::Unlimited,
        };
        let mut policy = policy(kind);
        policy.cooldown_us = self.of(&[0, 0, 400_000]);
        policy
    }
}

/// A holder's own totals: by key and generation, what was granted and spent.
type Held = BTreeMap<(&'static str, u64), (u64, u64)>;

struct Churn {
    draw: Draw,
    log: Log,
    sessions: BTreeMap<SessionId, Held>,
    next: u128,
    seq: u64,
    backups: Vec<Ledger>,
    most_dates: u64,
}

impl Churn {
    fn step(&mut self) {
        self.log.advance(match self.draw.below(400) {
            0 => 70_000_000,
            1 => 11_000_000,
            2..20 => 400_000,
            _ => 1_637,
        });
        match self.draw.below(60) {
            0 if self.draw.below(3) == 0 => self.edit(),
            1 if self.draw.below(4) == 0 => self.settings(),
            2..5 => self.open(),
            5..20 => self.grant(),
            20..40 => self.report(),
            40 => self.settle(),
            41..52 => self.spend(),
            52..54 => self.spend_once(),
            54 if self.draw.below(8) == 0 => self.correct(),
            55 if self.draw.below(4) == 0 => self.begin_period(),
            56 if self.draw.below(4) == 0 => {
                let key = key(self.draw.of(&KEYS));
                self.log.command(Command::CoolDown { key });
            }
            _ => {
                self.log.tick();
            }
        }
    }

    fn edit(&mut self) {
        let name = self.draw.of(&["p", "q"]).to_owned();
        let pattern = pattern(self.draw.of(&PATTERNS));
        let policy = self.draw.policy();
        let command = match self.draw.below(10) {
            0 => Command::DeleteBudget { pattern },
            6..10 => self.edit_of_several(name, pattern, policy),
            1 => Command::PutBudget {
                pattern,
                rule: Rule::Named(name),
            },
            2 => Command::DeletePolicy { name },
            3 => Command::PutPolicy { name, policy },
            _ => Command::PutBudget {
                pattern,
                rule: Rule::Inline(policy),
            },
        };
        self.log.command(command);
    }

    /// All or none of them; the first one often expects what is not so.
    fn edit_of_several(&mut self, name: String, pattern: Pattern, policy: Policy) -> Command {
        let tag = self.log.ledger.policy_view(&name).map(|seen| seen.tag);
        let expect = match self.draw.below(4) {
            0 => Expect::Absent,
            1 => Expect::OneOf(tag.into_iter().collect()),
            _ => Expect::Anything,
        };
        let rule = match self.draw.below(2) {
            0 => Rule::Named(name.clone()),
            _ => Rule::Inline(self.draw.policy()),
        };
        let accounts_max = self.draw.of(&[None, Some(1), Some(7)]);
        let put_policy = Guarded {
            change: RuleChange::PutPolicy { name, policy },
            expect,
        };
        let terms = Terms { rule, accounts_max };
        let put_budget = Guarded::from(RuleChange::PutBudget { pattern, terms });
        Command::Edit(Edit {
            changes: vec![put_policy, put_budget],
            by: self.draw.of(&["", "ada", "grace"]).to_owned(),
            wall_unix_us: i64::try_from(self.log.now_us()).unwrap(),
        })
    }

    fn settings(&mut self) {
        let default_policy = self.draw.of(&[None, Some("p")]).map(str::to_owned);
        self.log.command(Command::PutSettings(Settings {
            max_drift_ppm: self.draw.of(&[0, 1_000, 100_000]),
            default_policy,
            tombstone_ttl_us: self.draw.of(&[0, 5_000_000, 3_600_000_000]),
            ..Settings::default()
        }));
    }

    fn open(&mut self) {
        self.next += 1;
        let id = SessionId(self.next);
        self.log.command(open(id));
        self.sessions.insert(id, Held::new());
    }

    fn any_session(&mut self) -> Option<SessionId> {
        let many = u64::try_from(self.sessions.len()).unwrap();
        let place = self.draw.below(many.max(1));
        let mut ids = self.sessions.keys();
        ids.nth(usize::try_from(place).unwrap()).copied()
    }

    fn grant(&mut self) {
        let Some(session) = self.any_session() else {
            return;
        };
        let name = self.draw.of(&KEYS);
        let units = self.draw.of(&[1, 30, 700, 5_000]);
        let grants = vec![Grant {
            session,
            key: key(name),
            units,
        }];
        let applied = self.log.entry(Entry {
            grants,
            ..Entry::default()
        });
        let outcome = &applied.grants[0];
        if let Some(held) = self.sessions.get_mut(&session)
            && outcome.units > 0
        {
            held.entry((name, outcome.generation)).or_default().0 = outcome.granted_total;
        }
    }

    /// Hundreds of units, each with an age of its own.
    fn report(&mut self) {
        let Some(session) = self.any_session() else {
            return;
        };
        let mut reports: Vec<Report> = Vec::new();
        if let Some(held) = self.sessions.get_mut(&session) {
            for ((name, generation), (granted, spent)) in held.iter_mut() {
                let new = (*granted - *spent).min(self.draw.of(&[1, 500, 500]));
                *spent += new;
                let mut report = report(&key(name), *generation);
                report.spent_total = *spent;
                report.overrun_total = self.draw.of(&[0, 0, 0, 1, 900]);
                let apart = self.draw.of(&[0, 13, 700]);
                let ages = (0..new).map(|place| SpentAge {
                    units: 1,
                    age_us: place * apart,
                });
                report.ages = ages.collect();
                report.last = self.draw.below(20) == 0;
                reports.push(report);
            }
        }
        self.seq += 1;
        let mut sync = sync(session, self.seq, reports);
        sync.close = self.draw.below(30) == 0;
        self.log.entry(Entry {
            syncs: vec![sync],
            ..Entry::default()
        });
    }

    fn settle(&mut self) {
        let Some(session) = self.any_session() else {
            return;
        };
        let Some(held) = self.sessions.remove(&session) else {
            return;
        };
        let leases = held.iter().map(|((name, generation), (_, spent))| {
            let spent_total = *spent;
            SettledLease {
                key: key(name),
                generation: *generation,
                spent_total,
            }
        });
        self.log.command(Command::Settle {
            session,
            identity: String::new(),
            leases: leases.collect(),
        });
    }

    fn spend(&mut self) {
        let name = self.draw.of(&KEYS);
        self.log.command(Command::Spend {
            key: key(name),
            units: self.draw.of(&[0, 1, 2, 300, (1 << 53) - 1]),
        });
    }

    fn spend_once(&mut self) {
        let name = self.draw.of(&KEYS);
        let number = self.draw.below(40);
        self.log.command(Command::SpendOnce {
            key: key(name),
            units: self.draw.of(&[0, 1, 2]),
            idempotency_key: format!("request-{number}"),
        });
    }

    /// A period begins, or had begun already, or its bounds are corrected.
    fn begin_period(&mut self) {
        let number = i64::try_from(self.log.now_us() / 1_000_000).unwrap();
        let number = number + self.draw.of(&[-1, 0, 0, 1]);
        let roll = Roll {
            calendar: calendar(self.draw.of(&[0, 1])),
            start_unix_us: number,
            end_unix_us: number + 1,
            ends_in_us: self.draw.of(&[0, 1_000_000, u64::MAX]),
        };
        if self.draw.below(8) == 0 {
            self.log.command(Command::CorrectPeriod(roll));
        } else {
            self.log.entry(Entry {
                rolls: vec![roll],
                ..Entry::default()
            });
        }
    }

    fn correct(&mut self) {
        let name = self.draw.of(&KEYS);
        let number = self.draw.below(20);
        self.log.command(Command::Correct {
            key: key(name),
            id: format!("order-{number}"),
            change: self
                .draw
                .of(&[Change::Reset, Change::Adjust(300), Change::Adjust(-40)]),
            reason: "they asked".to_owned(),
            by: "zoe".to_owned(),
            wall_unix_us: 1_774_738_800_000_000,
        });
    }

    fn look_back(&mut self, step: u64) {
        if step.is_multiple_of(7) {
            self.log.restart();
        }
        if self.draw.below(150) == 0 {
            self.backups.push(self.log.ledger.clone());
        }
        if self.draw.below(400) == 0
            && let Some(backup) = self.backups.last().cloned()
        {
            self.next += 1;
            self.log.begin_from(&backup, self.next, 0);
            self.sessions.clear();
        }
    }
}

#[test]
fn whatever_happens_a_snapshot_reads_back_and_replicas_agree() {
    let mut most_dates = 0;
    for seed in 0..16 {
        let mut churn = Churn {
            draw: Draw(Dice(seed)),
            log: Log::new(),
            sessions: BTreeMap::new(),
            next: 0,
            seq: 0,
            backups: Vec::new(),
            most_dates: 0,
        };
        for step in 0..4_000 {
            // To and fro between windows that keep many dates and few, whatever is drawn.
            if step % 400 == 0 {
                let window_us = if step % 800 == 0 {
                    60_000_000
                } else {
                    90_000_000
                };
                churn.log.command(Command::PutBudget {
                    pattern: pattern("a/**"),
                    rule: Rule::Inline(window(9_000, window_us)),
                });
            }
            churn.step();
            churn.look_back(step);
            let bytes = crate::log::bytes(&churn.log.ledger).len() as u64;
            churn.most_dates = churn.most_dates.max(bytes / 9);
        }
        most_dates = most_dates.max(churn.most_dates);
    }
    assert!(
        most_dates > 2_048,
        "no account was busy: {most_dates} dates"
    );
}
