//! Nothing that was acknowledged is lost: after healing, a register holds the last
//! value that was put into it, and a purse has counted every central spend. Judges
//! single reads, each by the writes around it, however wide the history; in which
//! order everything may have happened is `linearizability`'s to say. A register
//! that nobody wrote before holds nothing.
//!
//! Writes with unknown outcomes may have happened, at any moment after their call,
//! or not.

use std::collections::BTreeMap;

use crate::{Act, Operation, Spent, Verdict};

/// Judges every acknowledged read that was called at `healed_ns` or later. An
/// object that was written and never read after that is undecided.
#[must_use]
pub fn lost_acks(operations: &[Operation], healed_ns: u64) -> Verdict {
    let mut by_object: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        by_object
            .entry(&operation.object)
            .or_default()
            .push(operation);
    }
    let mut verdict = Verdict::default();
    for (object, operations) in by_object {
        let mut reads = 0_u64;
        for read in &operations {
            if !read.acknowledged || read.call_ns < healed_ns {
                continue;
            }
            let wrong = match &read.act {
                Act::Read(value) => wrong_value(&operations, read, value.as_deref()),
                Act::Used(units) => wrong_total(&operations, read, *units),
                Act::Write(_) | Act::Limit(_) | Act::Spend { .. } => continue,
            };
            reads = reads.saturating_add(1);
            if let Some(wrong) = wrong {
                verdict.violated(object, read.call_ns, wrong);
            }
        }
        verdict.checked = verdict.checked.saturating_add(reads);
        // Limits are objects of their own, too, if they are to be read back.
        let written = operations.iter().any(|operation| {
            operation.acknowledged && matches!(operation.act, Act::Write(_) | Act::Spend { .. })
        });
        if reads == 0 && written {
            verdict
                .undecided
                .push(format!("{object} was written and not read after healing"));
        }
    }
    verdict
}

fn wrong_value(operations: &[&Operation], read: &Operation, value: Option<&str>) -> Option<String> {
    let writes = || {
        operations.iter().filter_map(|operation| {
            let Act::Write(value) = &operation.act else {
                return None;
            };
            (operation.call_ns <= read.return_ns).then_some((operation, value.as_deref()))
        })
    };
    // Acknowledged writes that returned before the read: one of them, or a later
    // one, is what must be read. Only the last can be: those that returned before
    // its call were overwritten by it.
    let last_call_ns = writes()
        .filter(|(write, _)| write.acknowledged && write.return_ns < read.call_ns)
        .map(|(write, _)| write.call_ns)
        .max();
    let standing = |write: &Operation| {
        !write.acknowledged || last_call_ns.is_none_or(|at| write.return_ns >= at)
    };
    let explained = writes().any(|(write, written)| standing(write) && written == value)
        || (last_call_ns.is_none() && value.is_none());
    (!explained).then(|| {
        let expected: Vec<String> = writes()
            .filter(|(write, _)| standing(write))
            .map(|(_, written)| format!("{written:?}"))
            .collect();
        format!("read {value:?}, which none of the standing writes put there: {expected:?}")
    })
}

fn wrong_total(operations: &[&Operation], read: &Operation, used: u64) -> Option<String> {
    let mut least = 0_u64;
    let mut most = 0_u64;
    for operation in operations {
        let Act::Spend { units, answer } = &operation.act else {
            continue;
        };
        let admitted = matches!(answer, Some(Spent { admitted: true, .. }));
        if operation.acknowledged && admitted && operation.return_ns < read.call_ns {
            least = least.saturating_add(*units);
        }
        if (admitted || !operation.acknowledged) && operation.call_ns <= read.return_ns {
            most = most.saturating_add(*units);
        }
    }
    (!(least..=most).contains(&used)).then(|| {
        format!("{used} units count as spent, but at least {least} and at most {most} were")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation(call_ns: u64, return_ns: u64, acknowledged: bool, act: Act) -> Operation {
        Operation {
            object: "o".to_owned(),
            call_ns,
            return_ns,
            acknowledged,
            act,
        }
    }

    fn write(call_ns: u64, return_ns: u64, acknowledged: bool, value: &str) -> Operation {
        operation(
            call_ns,
            return_ns,
            acknowledged,
            Act::Write(Some(value.to_owned())),
        )
    }

    fn read(call_ns: u64, value: Option<&str>) -> Operation {
        let value = value.map(str::to_owned);
        operation(call_ns, call_ns + 1, true, Act::Read(value))
    }

    fn spend(call_ns: u64, units: u64, admitted: Option<bool>) -> Operation {
        let answer = admitted.map(|admitted| Spent {
            admitted,
            free: None,
        });
        let act = Act::Spend { units, answer };
        operation(call_ns, call_ns + 1, admitted.is_some(), act)
    }

    fn used(call_ns: u64, units: u64) -> Operation {
        operation(call_ns, call_ns + 1, true, Act::Used(units))
    }

    fn lost(operations: &[Operation]) -> usize {
        let verdict = lost_acks(operations, 100);
        assert!(verdict.undecided.is_empty(), "{verdict:?}");
        verdict.violations.len()
    }

    #[test]
    fn an_acknowledged_write_that_is_gone_is_found() {
        let gone = [write(1, 2, true, "a"), write(3, 4, true, "b")];
        for (value, violations) in [(Some("b"), 0), (Some("a"), 1), (None, 1), (Some("c"), 1)] {
            let mut history = gone.to_vec();
            history.push(read(100, value));
            assert_eq!(lost(&history), violations, "{value:?}");
        }
    }

    #[test]
    fn a_deletion_that_is_undone_is_found() {
        let deleted = [
            write(1, 2, true, "a"),
            operation(3, 4, true, Act::Write(None)),
        ];
        for (value, violations) in [(None, 0), (Some("a"), 1)] {
            let mut history = deleted.to_vec();
            history.push(read(100, value));
            assert_eq!(lost(&history), violations, "{value:?}");
        }
    }

    #[test]
    fn any_of_concurrent_writes_may_be_the_last() {
        let writes = [
            write(1, 2, true, "old"),
            write(3, 9, true, "a"),
            write(4, 8, true, "b"),
        ];
        for (value, violations) in [(Some("a"), 0), (Some("b"), 0), (Some("old"), 1)] {
            let mut history = writes.to_vec();
            history.push(read(100, value));
            assert_eq!(lost(&history), violations, "{value:?}");
        }
    }

    #[test]
    fn an_unknown_write_may_have_happened_later_or_never() {
        let writes = [write(1, 2, false, "u"), write(5, 6, true, "a")];
        for (value, violations) in [(Some("u"), 0), (Some("a"), 0), (None, 1)] {
            let mut history = writes.to_vec();
            history.push(read(100, value));
            assert_eq!(lost(&history), violations, "{value:?}");
        }
    }

    #[test]
    fn a_total_lies_between_what_was_admitted_and_what_may_have_been() {
        let spends = [
            spend(1, 3, Some(true)),
            spend(2, 4, Some(false)),
            spend(5, 2, None),
            // Under way while it is read.
            spend(100, 1, Some(true)),
        ];
        for (total, violations) in [(2, 1), (3, 0), (5, 0), (6, 0), (7, 1)] {
            let mut history = spends.to_vec();
            history.push(used(100, total));
            assert_eq!(lost(&history), violations, "{total}");
        }
    }

    #[test]
    fn what_nobody_read_back_is_undecided() {
        let verdict = lost_acks(&[write(1, 2, true, "a"), read(50, Some("a"))], 100);
        assert!(!verdict.is_fine() && verdict.checked == 0);
    }

    proptest! {
        /// Judges against putting all writes into every order that the calls and
        /// returns allow, each unknown one at the end, anywhere, or nowhere.
        #[test]
        fn it_agrees_with_trying_every_order(
            raw in proptest::collection::vec((0_u64..20, 0_u64..8, any::<bool>()), 1..5),
            seen in 0_usize..6,
        ) {
            let writes: Vec<_> = raw
                .iter()
                .enumerate()
                .map(|(i, &(call, took, known))| write(call, call + took, known, &i.to_string()))
                .collect();
            let value = (seen < writes.len()).then(|| seen.to_string());
            let mut history = writes.clone();
            history.push(read(100, value.as_deref()));
            let mut possible = vec![];
            for chosen in 0..1_u32 << writes.len() {
                let chosen: Vec<usize> = (0..writes.len()).filter(|i| chosen >> i & 1 == 1).collect();
                let all_known = (0..writes.len()).all(|i| !writes[i].acknowledged || chosen.contains(&i));
                if all_known {
                    orders(&writes, &chosen, None, &mut possible);
                }
            }
            let good = possible.contains(&value.and_then(|v| v.parse::<usize>().ok()));
            prop_assert_eq!(lost(&history) == 0, good, "{:?}", possible);
        }
    }

    /// The last write of every order of `left` that their instants allow.
    fn orders(
        writes: &[Operation],
        left: &[usize],
        last: Option<usize>,
        ends: &mut Vec<Option<usize>>,
    ) {
        if left.is_empty() {
            ends.push(last);
        }
        for &next in left {
            let may_be_next = left.iter().all(|&other| {
                !writes[other].acknowledged || writes[other].return_ns >= writes[next].call_ns
            });
            if may_be_next {
                let rest: Vec<usize> = left.iter().copied().filter(|i| *i != next).collect();
                orders(writes, &rest, Some(next), ends);
            }
        }
    }
}
