//! What the other members last said in roll calls: their wall clocks, and which format
//! they read. Knows neither who asks them nor what follows from it.
//!
//! **The majority's wall clock** is the greatest time of which a majority of the voters
//! say that it is over. It decides when a period ends, so it may be late and must never
//! be early: one clock that is ahead moves nothing, because a second one would have to
//! agree, and one that is behind holds up nothing where two others agree. This node's own
//! clock is one among them. What a member said counts from the moment its answer came,
//! by which its clock showed at least that much, and it goes on with the clocks that
//! nobody sets; after ten seconds it says nothing any more.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_proto::v1::RollCallReply;
use parking_lot::Mutex;

use crate::clock::Reading;

/// Long enough for a round of roll calls in which somebody else does not answer; short
/// enough that a clock which was set right counts soon.
const COUNTS_FOR_US: u64 = 10_000_000;
/// What nodes read that do not say what they read.
const FORMAT_OF_THE_SILENT: u32 = 5;

/// Of each member that ever answered since this node started.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<BTreeMap<u64, Said>>);

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// What its wall clock showed, and the moment since which it has shown it at least.
    wall: Option<(u64, Reading)>,
    format_version: Option<u32>,
}

impl Answers {
    /// Keeps what a member answered; `came` was read after its answer had come.
    pub(super) fn note(&self, reply: &RollCallReply, came: Reading) {
        let format_version = match reply.format_version {
            0 => FORMAT_OF_THE_SILENT,
            version => version,
        };
        let said = Said {
            wall: Some((reply.wall_unix_us, came)),
            format_version: Some(format_version),
        };
        self.0.lock().insert(reply.node_id, said);
    }

    /// Keeps what a node said of itself when it asked; 0 says nothing.
    pub(super) fn note_asker(&self, node_id: u64, format_version: u32) {
        if format_version > 0 {
            let mut answers = self.0.lock();
            answers.entry(node_id).or_default().format_version = Some(format_version);
        }
    }

    /// What the wall clocks show at least at `now`, of everybody who answered lately.
    pub(super) fn wall_clocks(&self, now: Reading) -> BTreeMap<u64, u64> {
        let answers = self.0.lock();
        let walls = answers.iter().filter_map(|(node_id, said)| {
            let (wall_unix_us, came) = said.wall?;
            let elapsed_us = came.elapsed_us_until(now);
            let counts = elapsed_us <= COUNTS_FOR_US;
            counts.then_some((*node_id, wall_unix_us.saturating_add(elapsed_us)))
        });
        walls.collect()
    }

    /// The newest format that a member said it reads.
    pub(super) fn format_version(&self, node_id: u64) -> Option<u32> {
        self.0.lock().get(&node_id)?.format_version
    }
}

/// The greatest time of which a majority of the voters say that it is over, in each of
/// the sets that decide (two, while the membership changes); none: no majority says
/// anything.
pub(super) fn majority_time(voters: &[BTreeSet<u64>], walls: &BTreeMap<u64, u64>) -> Option<u64> {
    let of_each = voters.iter().map(|voters| {
        let mut said: Vec<u64> = voters
            .iter()
            .filter_map(|node_id| walls.get(node_id).copied())
            .collect();
        // The latest first: as many as make a majority say at least what the last of
        // them says.
        said.sort_unstable_by(|a, b| b.cmp(a));
        said.get(voters.len() / 2).copied()
    });
    // `None` is less than any time: no majority in one of the sets is none at all.
    of_each.min().flatten()
}

/// The lowest of the versions that members read; none while it is unknown of one.
pub(super) fn lowest(versions: impl Iterator<Item = Option<u32>>) -> Option<u32> {
    versions.min().flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const HOUR: i64 = 3_600;

    /// What a majority of the voters 1, 2, ... says whose clocks show an hour more or
    /// less than noon; `None` did not answer.
    fn of(walls: &[Option<i64>]) -> Option<i64> {
        let noon: u64 = 1_000_000;
        let ids = || 1..=u64::try_from(walls.len()).unwrap();
        let walls = ids().zip(walls).filter_map(|(node_id, ahead)| {
            Some((node_id, noon.checked_add_signed((*ahead)?).unwrap()))
        });
        majority_time(&[ids().collect()], &walls.collect())
            .map(|time| i64::try_from(time).unwrap() - i64::try_from(noon).unwrap())
    }

    #[test]
    fn one_node_is_its_own_majority_and_two_must_agree() {
        assert_eq!(of(&[Some(7)]), Some(7));
        assert_eq!(of(&[None]), None);
        assert_eq!(of(&[Some(3), Some(5)]), Some(3));
        assert_eq!(of(&[Some(HOUR), Some(0)]), Some(0));
        assert_eq!(of(&[Some(0), Some(-HOUR)]), Some(-HOUR));
        assert_eq!(of(&[Some(0), None]), None);
    }

    #[test]
    fn one_wrong_clock_of_three_neither_hurries_nor_holds_up_the_others() {
        for wrong in 0..3 {
            for (ahead, expected) in [(HOUR, 5), (4, 4), (-HOUR, 3)] {
                let mut walls = vec![Some(3), Some(5)];
                walls.insert(wrong, Some(ahead));
                assert_eq!(of(&walls), Some(expected), "{walls:?}");
            }
        }
        assert_eq!(of(&[Some(HOUR), Some(HOUR), Some(0)]), Some(HOUR));
    }

    #[test]
    fn who_does_not_answer_agrees_with_nothing() {
        assert_eq!(of(&[Some(3), Some(5), None]), Some(3));
        assert_eq!(of(&[Some(HOUR), None, Some(0)]), Some(0));
        assert_eq!(of(&[Some(0), None, None]), None);
        assert_eq!(of(&[Some(HOUR), Some(0), Some(1), None, None]), Some(0));
        assert_eq!(
            of(&[Some(HOUR), Some(HOUR), Some(1), Some(2), None]),
            Some(2)
        );
        assert_eq!(of(&[Some(3), Some(2), None, None]), None);
        assert_eq!(of(&[Some(3), Some(2), Some(1), None]), Some(1));
    }

    #[test]
    fn while_the_voters_change_both_majorities_must_say_so() {
        let walls = BTreeMap::from([(1, 10), (2, 10), (3, 0), (4, 20), (5, 20)]);
        let set = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        let of = |sets: &[&[u64]]| {
            let sets: Vec<_> = sets.iter().map(|ids| set(ids)).collect();
            majority_time(&sets, &walls)
        };
        assert_eq!(of(&[&[1, 2, 3], &[1, 4, 5]]), Some(10));
        assert_eq!(of(&[&[1, 4, 5], &[1, 2, 3]]), Some(10));
        assert_eq!(of(&[&[1, 4, 5]]), Some(20));
        assert_eq!(of(&[&[1, 2, 3], &[1, 8, 9]]), None);
        assert_eq!(of(&[]), None, "nobody decides yet");
        // Learners are in none of the sets.
        assert_eq!(of(&[&[3]]), Some(0));
    }

    fn reply(node_id: u64, wall_unix_us: u64, format_version: u32) -> RollCallReply {
        RollCallReply {
            node_id,
            wall_unix_us,
            format_version,
            ..RollCallReply::default()
        }
    }

    #[test]
    fn what_a_member_said_goes_on_with_the_time_and_is_forgotten_after_ten_seconds() {
        let answers = Answers::default();
        let came = Reading::now();
        answers.note(&reply(2, 500, 6), came);
        let at = |later_us| answers.wall_clocks(came.later(later_us));
        assert_eq!(at(0), BTreeMap::from([(2, 500)]));
        // Elapsed time is rounded down by one.
        assert_eq!(at(2_000_001), BTreeMap::from([(2, 2_000_500)]));
        assert_eq!(at(COUNTS_FOR_US + 1), BTreeMap::from([(2, 10_000_500)]));
        assert_eq!(at(COUNTS_FOR_US + 2), BTreeMap::new());
        let again = came.later(COUNTS_FOR_US + 2);
        answers.note(&reply(2, 400, 6), again);
        assert_eq!(answers.wall_clocks(again), BTreeMap::from([(2, 400)]));
    }

    #[test]
    fn the_format_that_a_member_reads_is_the_last_it_said_and_unknown_until_then() {
        let answers = Answers::default();
        let lowest = |ids: &[u64]| lowest(ids.iter().map(|id| answers.format_version(*id)));
        answers.note(&reply(2, 0, 7), Reading::now());
        answers.note_asker(3, 6);
        assert_eq!(lowest(&[2, 3]), Some(6));
        assert_eq!(lowest(&[2, 3, 4]), None, "4 was never heard");
        answers.note_asker(3, 0);
        assert_eq!(lowest(&[2, 3]), Some(6), "0 says nothing when it asks");
        answers.note(&reply(3, 0, 0), Reading::now());
        assert_eq!(lowest(&[2, 3]), Some(FORMAT_OF_THE_SILENT));
        answers.note(&reply(3, 0, 8), Reading::now());
        assert_eq!(lowest(&[2, 3]), Some(7));
        assert_eq!(
            answers.wall_clocks(Reading::now()).len(),
            2,
            "who only asked has shown no clock"
        );
    }
}
