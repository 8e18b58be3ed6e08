//! Edits by operators: on conditions, of several rules at once, under a name, and
//! foreseen. Knows nothing of HTTP.

use leasehold_ledger::{
    Preview,
    edit::{Edit, Expect, Guarded, RuleChange, Terms},
    entry::{Command, Entry, Grant, Rule, SessionId},
    outcome::{Code, CommandOutcome, CommandRefusal, Edited},
    policy::Policy,
};

use crate::log::{Log, bucket, bytes, key, open, pattern, window};

const MINUTE_US: u64 = 60_000_000;

fn put_policy(name: &str, policy: Policy) -> RuleChange {
    let name = name.to_owned();
    RuleChange::PutPolicy { name, policy }
}

fn put_budget(text: &str, name: &str) -> RuleChange {
    RuleChange::PutBudget {
        pattern: pattern(text),
        terms: Rule::Named(name.to_owned()).into(),
    }
}

fn no_such_policy(name: &str) -> CommandRefusal {
    let name = name.to_owned();
    CommandRefusal::NoSuchPolicy { name }
}

fn edit(changes: impl IntoIterator<Item = impl Into<Guarded>>) -> Edit {
    Edit {
        changes: changes.into_iter().map(Into::into).collect(),
        by: "ada".to_owned(),
        wall_unix_us: 1_700_000_000_000_000,
    }
}

fn one(change: RuleChange, expect: Expect) -> Edit {
    edit([Guarded { change, expect }])
}

impl Log {
    fn edit(&mut self, edit: Edit) -> Result<Vec<Edited>, CommandRefusal> {
        match self.command(Command::Edit(edit)) {
            CommandOutcome::Edited(edited) => Ok(edited),
            CommandOutcome::Refused(why) => Err(why),
            other => panic!("{other:?}"),
        }
    }

    fn spend(&mut self, name: &str, units: u64) -> Option<Code> {
        let key = key(name);
        match self.command(Command::Spend { key, units }) {
            CommandOutcome::Spent(spent) => spent.refusal.map(|refusal| refusal.code),
            other => panic!("{other:?}"),
        }
    }
}

/// A log whose keys `a/**` follow a policy of so many units.
fn log(limit: u64) -> Log {
    let mut log = Log::new();
    let edited = log.edit(edit([
        put_policy("p", window(limit, MINUTE_US)),
        put_budget("a/**", "p"),
    ]));
    assert!(edited.unwrap().iter().all(|edited| edited.changed));
    log
}

#[test]
fn of_two_operators_who_saw_the_same_the_first_wins_and_the_second_is_told() {
    let mut log = log(10);
    let seen = log.ledger.policy_view("p").unwrap().tag;
    let put = |limit| {
        one(
            put_policy("p", window(limit, MINUTE_US)),
            Expect::OneOf(vec![seen]),
        )
    };
    // In one entry, as when both arrive at once.
    let applied = log.entry(Entry {
        commands: vec![Command::Edit(put(20)), Command::Edit(put(30))],
        ..Entry::default()
    });
    let present = log.ledger.policy_view("p").unwrap();
    assert_eq!((present.value.kind.limit(), present.version), (20, 2));
    let first = Edited {
        changed: true,
        version: 2,
        tag: Some(present.tag),
    };
    let lost = CommandRefusal::PreconditionFailed {
        present: Some(present.tag),
    };
    assert_eq!(
        applied.commands,
        [
            CommandOutcome::Edited(vec![first]),
            CommandOutcome::Refused(lost)
        ]
    );
}

#[test]
fn each_condition_holds_exactly_when_it_says_so_and_a_failed_one_changes_nothing() {
    let mut log = log(10);
    let tag = log.ledger.policy_view("p").unwrap().tag;
    let new = window(11, MINUTE_US);
    let cases = [
        ("p", Expect::Absent, false),
        ("q", Expect::Present, false),
        ("p", Expect::OneOf(vec![tag ^ 1]), false),
        ("q", Expect::OneOf(vec![tag]), false),
        ("p", Expect::OneOf(Vec::new()), false),
        ("p", Expect::Present, true),
        ("q", Expect::Absent, true),
    ];
    for (name, expect, holds) in cases {
        let before = bytes(&log.ledger);
        let done = log.edit(one(put_policy(name, new.clone()), expect.clone()));
        assert_eq!(done.is_ok(), holds, "{name} {expect:?}: {done:?}");
        if !holds {
            assert!(matches!(
                done,
                Err(CommandRefusal::PreconditionFailed { .. })
            ));
            // Time and index apart.
            assert_eq!(bytes(&log.ledger).len(), before.len());
        }
    }
    let budget = log.ledger.budget_view(&pattern("a/**")).unwrap().tag;
    let delete = |expect| {
        let pattern = pattern("a/**");
        one(RuleChange::DeleteBudget { pattern }, expect)
    };
    assert!(log.edit(delete(Expect::OneOf(vec![budget ^ 1]))).is_err());
    assert!(log.edit(delete(Expect::OneOf(vec![budget]))).is_ok());
    let gone = log.edit(delete(Expect::OneOf(vec![budget])));
    assert_eq!(gone, Err(CommandRefusal::NoSuchBudget));
    let settings = log.ledger.settings().clone();
    let put = |tag| {
        let settings = RuleChange::PutSettings(settings.clone());
        one(settings, Expect::OneOf(vec![tag]))
    };
    let tag = log.ledger.settings_tag();
    assert!(log.edit(put(tag ^ 1)).is_err());
    assert!(log.edit(put(tag)).is_ok());
}

#[test]
fn an_edit_of_many_makes_all_changes_or_none_and_says_which_one_is_refused() {
    let mut log = log(10);
    log.spend("a/x", 3);
    let before = log.ledger.digest();
    let many = |last: &str| {
        edit([
            put_policy("p", window(500, MINUTE_US)),
            put_policy("q", window(7, MINUTE_US)),
            put_budget("a/x", "q"),
            put_budget("b/**", last),
        ])
    };
    let refused = log.edit(many("nobody"));
    let why = CommandRefusal::OneOfMany {
        place: 3,
        why: Box::new(no_such_policy("nobody")),
    };
    assert_eq!(refused, Err(why));
    assert_eq!(log.ledger.policies().len(), 1);
    assert_eq!(log.ledger.account(&key("a/x")).unwrap().limit, 10);
    assert_ne!(log.ledger.digest(), before, "only the index went on");
    log.edit(many("p")).unwrap();
    // At once for every account, and each by its most specific pattern.
    assert_eq!(log.ledger.account(&key("a/x")).unwrap().limit, 7);
    assert_eq!(log.spend("a/x", 4), None);
    assert_eq!(log.spend("a/x", 1), Some(Code::Limit));
    assert_eq!(log.spend("a/y", 500), None);
    assert_eq!(log.spend("b/y", 500), None);
    log.restart();
}

#[test]
fn a_budget_has_no_more_accounts_than_its_cap_whatever_the_settings_say() {
    let mut log = log(10);
    let cap = |accounts_max| {
        edit([RuleChange::PutBudget {
            pattern: pattern("a/**"),
            terms: Terms {
                rule: Rule::Named("p".to_owned()),
                accounts_max,
            },
        }])
    };
    for most in [0, 10_000_001] {
        let refused = log.edit(cap(Some(most))).unwrap_err();
        let text = format!("accounts_max ({most}) must be 1 to 10000000");
        assert_eq!(refused, CommandRefusal::Invalid(text));
    }
    log.edit(cap(Some(2))).unwrap();
    assert_eq!(log.spend("a/1", 1), None);
    assert_eq!(log.spend("a/2", 1), None);
    assert_eq!(log.spend("a/3", 1), Some(Code::TooManyAccounts));
    log.restart();
    assert_eq!(log.spend("a/3", 1), Some(Code::TooManyAccounts));
    // A raised cap counts at once; accounts that are there stay when it is lowered.
    log.edit(cap(Some(3))).unwrap();
    assert_eq!(log.spend("a/3", 1), None);
    log.edit(cap(Some(1))).unwrap();
    assert_eq!(log.spend("a/1", 1), None);
    assert_eq!(log.spend("a/4", 1), Some(Code::TooManyAccounts));
    log.edit(cap(None)).unwrap();
    assert_eq!(log.spend("a/4", 1), None);
}

#[test]
fn versions_say_what_by_whom_and_when_and_survive_a_restart() {
    let mut log = Log::new();
    let old = |limit| Command::PutPolicy {
        name: "p".to_owned(),
        policy: window(limit, MINUTE_US),
    };
    log.command(old(1));
    log.command(old(2));
    assert_eq!(bytes(&log.ledger)[8], 1, "an older node still reads it");
    assert_eq!(log.ledger.policy_view("p").unwrap().version, 1);
    log.edit(edit([put_policy("p", window(3, MINUTE_US))]))
        .unwrap();
    assert_eq!(bytes(&log.ledger)[8], 6);
    let same = log.edit(edit([put_policy("p", window(3, MINUTE_US))]));
    assert!(!same.unwrap()[0].changed, "it says so already");
    log.command(old(4));
    log.restart();
    let versions = log.ledger.policy_versions("p").unwrap();
    let said: Vec<(u64, u64, &str, i64)> = versions
        .iter()
        .map(|v| {
            (
                v.number,
                v.value.kind.limit(),
                v.by.as_str(),
                v.wall_unix_us,
            )
        })
        .collect();
    assert_eq!(
        said,
        [
            (1, 2, "", 0),
            (2, 3, "ada", 1_700_000_000_000_000),
            (3, 4, "", 0)
        ]
    );
    // Going back to what it was is another version with another tag.
    let tag = log.ledger.policy_view("p").unwrap().tag;
    for limit in [5, 4] {
        log.edit(edit([put_policy("p", window(limit, MINUTE_US))]))
            .unwrap();
    }
    assert_ne!(log.ledger.policy_view("p").unwrap().tag, tag);
    for limit in 10..60 {
        log.edit(edit([put_policy("p", window(limit, MINUTE_US))]))
            .unwrap();
    }
    log.restart();
    let versions = log.ledger.policy_versions("p").unwrap();
    assert_eq!(versions.len(), 32);
    assert_eq!(versions.last().unwrap().number, 55);
    let too_long = Edit {
        by: "x".repeat(129),
        ..edit([put_policy("p", window(1, MINUTE_US))])
    };
    let why = "by (129 bytes) must have at most 128 bytes".to_owned();
    assert_eq!(log.edit(too_long), Err(CommandRefusal::Invalid(why)));
}

#[test]
fn a_policys_edit_leaves_the_histories_of_its_budgets_alone() {
    let mut log = log(10);
    for limit in 11..14 {
        log.edit(edit([put_policy("p", window(limit, MINUTE_US))]))
            .unwrap();
    }
    let budget = log.ledger.budget_view(&pattern("a/**")).unwrap();
    assert_eq!(budget.version, 1);
    assert_eq!(
        log.ledger.budget_versions(&pattern("a/**")).unwrap().len(),
        1
    );
}

fn preview(log: &Log, edit: &Edit) -> Preview {
    log.ledger.freeze().preview(edit, log.now_us()).unwrap()
}

#[test]
fn a_lowered_limit_makes_a_debt_that_is_foreseen_and_raising_it_again_gives_no_free_lunch() {
    let mut log = log(100);
    log.spend("a/x", 90);
    log.spend("a/y", 30);
    log.spend("a/z", 1);
    let lower = edit([put_policy("p", window(20, MINUTE_US))]);
    let foreseen = preview(&log, &lower);
    assert_eq!((foreseen.accounts, foreseen.new_generations), (3, 0));
    assert_eq!((foreseen.debt, foreseen.freed, foreseen.left), (80, 0, 0));
    assert_eq!(foreseen.worst, [(key("a/x"), 70), (key("a/y"), 10)]);
    assert_eq!(
        log.ledger.account(&key("a/x")).unwrap().debt,
        0,
        "nothing was changed"
    );
    log.edit(lower).unwrap();
    let account = log.ledger.account(&key("a/x")).unwrap();
    assert_eq!((account.free, account.debt), (0, 70));
    let raise = edit([put_policy("p", window(100, MINUTE_US))]);
    let foreseen = preview(&log, &raise);
    assert_eq!((foreseen.debt, foreseen.freed), (0, 10 + 70 + 80));
    log.edit(raise).unwrap();
    assert_eq!(log.spend("a/x", 11), Some(Code::Limit));
    assert_eq!(
        log.spend("a/x", 10),
        None,
        "a raised limit is usable at once"
    );
    assert_eq!(log.spend("a/x", 1), Some(Code::Limit));
}

#[test]
fn a_change_of_kind_and_a_budget_that_goes_are_foreseen() {
    let mut log = log(100);
    log.command(open(SessionId(1)));
    log.entry(Entry {
        grants: vec![Grant {
            session: SessionId(1),
            key: key("a/x"),
            units: 40,
        }],
        ..Entry::default()
    });
    let to_bucket = edit([put_policy("p", bucket(50, 1, 1_000_000))]);
    let foreseen = preview(&log, &to_bucket);
    assert_eq!((foreseen.accounts, foreseen.new_generations), (1, 1));
    let gone = edit([RuleChange::DeleteBudget {
        pattern: pattern("a/**"),
    }]);
    let foreseen = preview(&log, &gone);
    assert_eq!((foreseen.accounts, foreseen.left), (1, 1));
    assert_eq!((foreseen.debt, foreseen.freed), (0, 0));
    // What has aged by then is neither debt nor freed.
    log.spend("a/y", 100);
    let lower = edit([put_policy("p", window(20, MINUTE_US))]);
    let later = log.now_us() + 2 * MINUTE_US;
    let foreseen = log.ledger.freeze().preview(&lower, later).unwrap();
    assert_eq!(
        (foreseen.debt, foreseen.worst),
        (20, vec![(key("a/x"), 20)])
    );
    let refused = log
        .ledger
        .freeze()
        .preview(&edit([put_budget("a/**", "q")]), 0);
    assert_eq!(refused, Err(no_such_policy("q")));
}
