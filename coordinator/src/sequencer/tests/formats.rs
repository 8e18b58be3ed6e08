//! While not every member reads the newest formats: what is written, and what is refused.

use leasehold_ledger::{
    edit::{Edit, Expect, Guarded, RuleChange},
    entry::{Command, Entry},
    policy::{Calendar, Kind, PeriodUnit, Policy},
};

use super::{super::SubmitError, Bench, leading};

fn periods(unit: PeriodUnit) -> Policy {
    Policy::new(Kind::Period {
        limit: 10,
        calendar: Calendar {
            unit,
            time_zone: "UTC".to_owned(),
            anchor: u8::from(unit == PeriodUnit::Year),
            anchor_month: u8::from(unit == PeriodUnit::Year),
        },
        carry_over: 0,
    })
}

fn window(limit: u64) -> Policy {
    Policy::new(Kind::SlidingWindow {
        limit,
        window_us: 60_000_000,
    })
}

fn edit(policy: Policy, expect: Expect) -> Command {
    let change = RuleChange::PutPolicy {
        name: "p".to_owned(),
        policy,
    };
    Command::Edit(Edit {
        changes: vec![Guarded { change, expect }],
        by: "jo".to_owned(),
        wall_unix_us: 1,
    })
}

impl Bench {
    fn members_read(&self, version: u32) {
        self.log.books.lock().members_format = Some(version);
    }

    async fn too_old(&self, command: Command) -> (u32, u32) {
        match self.command(command).await.await.unwrap() {
            Err(SubmitError::MemberTooOld { needed, allowed }) => (needed, allowed),
            other => panic!("{other:?}"),
        }
    }

    async fn done(&self, command: Command) {
        self.command(command).await.await.unwrap().unwrap();
    }

    fn last_commands(&self) -> Vec<Command> {
        let books = self.log.books.lock();
        let mut commands = books.entries.iter().rev().map(|entry| &entry.commands);
        commands
            .find(|commands| !commands.is_empty())
            .cloned()
            .unwrap_or_default()
    }

    /// What each entry was written as: the second byte of a field that comes first.
    fn versions(&self) -> Vec<u32> {
        let books = self.log.books.lock();
        let encoded = books.entries.iter().map(Entry::encode);
        encoded.map(|bytes| bytes[1].into()).collect()
    }
}

#[tokio::test]
async fn an_edit_goes_without_its_author_to_members_that_know_no_edits_and_a_condition_is_refused()
{
    let bench = Bench::start(leading(1, 1_000));
    bench.members_read(5);
    bench.done(edit(window(7), Expect::Anything)).await;
    let plain = Command::PutPolicy {
        name: "p".to_owned(),
        policy: window(7),
    };
    assert_eq!(bench.last_commands(), [plain]);
    // A condition cannot be told to them, and is not left out either.
    assert_eq!(
        bench.too_old(edit(window(8), Expect::Present)).await,
        (6, 5)
    );
    assert_eq!(
        bench
            .too_old(edit(periods(PeriodUnit::Day), Expect::Anything))
            .await,
        (6, 5)
    );
    assert!(bench.versions().iter().all(|version| *version <= 5));
    bench.members_read(6);
    let guarded = edit(window(8), Expect::Present);
    bench.done(guarded.clone()).await;
    assert_eq!(bench.last_commands(), [guarded], "with its author");
    bench.stop.cancel();
}

#[tokio::test]
async fn a_year_is_refused_while_a_member_does_not_read_it_and_other_periods_go_on() {
    let bench = Bench::start(leading(1, 1_000));
    bench.members_read(6);
    bench
        .done(edit(periods(PeriodUnit::Day), Expect::Anything))
        .await;
    let rolls = |bench: &Bench| -> usize {
        let books = bench.log.books.lock();
        books.entries.iter().map(|entry| entry.rolls.len()).sum()
    };
    assert_eq!(rolls(&bench), 1, "the day begins");
    let yearly = edit(periods(PeriodUnit::Year), Expect::Anything);
    assert_eq!(bench.too_old(yearly.clone()).await, (7, 6));
    assert!(bench.versions().iter().all(|version| *version <= 6));
    bench.members_read(7);
    bench.done(yearly.clone()).await;
    assert_eq!((bench.last_commands(), rolls(&bench)), (vec![yearly], 2));
    let versions = bench.versions();
    let first = versions.iter().position(|version| *version == 7).unwrap();
    assert_eq!(
        bench.log.books.lock().entries[first].commands,
        [Command::RaiseFormat { version: 7 }],
        "said first"
    );
    bench.stop.cancel();
}
