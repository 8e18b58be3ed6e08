//! The leader's notes on one key: who wants how much, since when, and what each
//! holder is thought to keep. Knows nothing of limits or of other keys.

use std::{collections::BTreeMap, mem};

use leasehold_ledger::{entry::SessionId, outcome::Code};

use crate::level::LaneLevel;

/// Requests of one lane that wait at one session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// The lane as it was said; one that the policy does not have is its lowest.
    pub(crate) lane: u32,
    /// Units that they wait for; at least 1.
    pub(crate) waiting: u64,
    /// How many of those the first request needs; at least 1.
    pub(crate) head: u64,
    /// The place among all that wait in this lane.
    pub(crate) since: u64,
    /// How long they stay queued after a refusal.
    pub(crate) wait_until_us: u64,
    /// They were told no, and stay queued.
    pub(crate) refused: bool,
    /// Rounds of recalls made for them.
    pub(crate) rounds: u8,
}

/// What is known of one session on one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    /// Which attachment of the session said this; another one's words are void.
    pub(crate) attachment: u64,
    /// Units that it still wants.
    pub(crate) want: u64,
    /// Its waiting requests: one queue for each lane in which any wait, the highest
    /// first. Together they wait for at most `want`.
    pub(crate) queues: Vec<Queue>,
    /// A first request needs more than there can be: they are to be told so.
    pub(crate) impossible: Option<Code>,
    /// Unspent units that it is thought to have.
    pub(crate) unspent: u64,
    /// Most arrivals in any demand horizon lately.
    pub(crate) peak: u64,
    /// Smoothed demand in thousandths of a unit per second.
    pub(crate) demand_milli: u64,
    /// When it last said anything of this key.
    pub(crate) heard_us: u64,
    /// When it was last seen to spend or want.
    pub(crate) active_us: u64,
    /// For how long it may spend without a word: what it has changed by then, it
    /// says with its next regular sync.
    pub(crate) untold_us_max: u64,
    /// Units spent when it was last heard.
    pub(crate) spent_total: u64,
    /// Units handed back when it was last heard.
    pub(crate) returned_total: u64,
    /// The newest lease that it has spoken of, and the greatest granted total of it
    /// that it had seen.
    pub(crate) seen: (u64, u64),
    /// Until when an answer to a recall is awaited.
    pub(crate) recalled_until_us: Option<u64>,
    /// Units that the answer is expected to bring.
    pub(crate) recalled: u64,
    /// While it demands far more than its fair share: what it may get, in
    /// millionths of a unit, and as of when.
    pub(crate) allowance: Option<(u64, u128)>,
}

impl Holder {
    /// Unspent units that it is thought to have by now: what it said, less what it
    /// is likely to have spent since, but not nothing: it says so when it runs out.
    pub(crate) fn held_at(&self, now_us: u64) -> u64 {
        let passed_us = now_us.saturating_sub(self.heard_us).min(self.untold_us_max);
        let passed_us = u128::from(passed_us);
        let spent = u128::from(self.demand_milli) * passed_us / 1_000_000_000;
        self.unspent
            .saturating_sub(u64::try_from(spent).unwrap_or(u64::MAX))
            .max(self.unspent.min(1))
    }

    /// For how long what it has will go on idling: as long as it lasts at its
    /// demand, or as long as nothing was heard of a spend, whichever is more.
    pub(crate) fn idle_us(&self, unspent: u64, now_us: u64) -> u64 {
        let silence_us = now_us.saturating_sub(self.active_us);
        let lasts_us = u128::from(unspent).saturating_mul(1_000_000_000)
            / u128::from(self.demand_milli.max(1));
        silence_us.max(u64::try_from(lasts_us).unwrap_or(u64::MAX))
    }

    /// Units that its requests wait for.
    pub(crate) fn waiting(&self) -> u64 {
        self.queues
            .iter()
            .fold(0, |sum, queue| sum.saturating_add(queue.waiting))
    }

    /// Whether any of its requests waits.
    pub(crate) fn waits(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Drops the waiting requests because a first one needs more than there can be, for
    /// now or for ever.
    pub(crate) fn give_up(&mut self, code: Code) {
        self.want = self.want.saturating_sub(self.waiting());
        self.queues.clear();
        self.impossible = Some(code);
    }

    /// Drops everything that is wanted.
    pub(crate) fn stop_wanting(&mut self) {
        self.want = 0;
        self.queues.clear();
    }

    /// Takes note of units that it was given: as it does, they go to its highest lane
    /// first.
    pub(crate) fn given(&mut self, units: u64, place: u64) {
        self.want = self.want.saturating_sub(units);
        self.unspent = self.unspent.saturating_add(units);
        if let Some((_, micro)) = &mut self.allowance {
            *micro = micro.saturating_sub(u128::from(units) * 1_000_000);
        }
        let mut units = units;
        self.queues.retain_mut(|queue| {
            let served = units.min(queue.waiting);
            if served == 0 {
                return true;
            }
            units -= served;
            queue.waiting -= served;
            // Served in part: the rest queues behind the others, so that one
            // gateway with many waiting requests does not shut them out.
            queue.since = place;
            queue.head = 1;
            queue.waiting > 0
        });
    }

    /// Takes in what is said to wait by lane, of which `unseen` units are on their way
    /// already. A queue keeps its place among the others as long as it is not empty.
    pub(crate) fn queue_up(
        &mut self,
        lanes: &[LaneLevel],
        mut unseen: u64,
        now_us: u64,
        place: &mut u64,
    ) {
        let before = mem::take(&mut self.queues);
        let mut room = self.want;
        for said in lanes {
            // What was not seen goes to the first requests of the highest lanes.
            let served = unseen.min(said.waiting);
            unseen -= served;
            let waiting = (said.waiting - served).min(room);
            room -= waiting;
            if waiting == 0 {
                continue;
            }
            let known = before.iter().find(|queue| queue.lane == said.lane);
            let (since, rounds) = match known {
                Some(queue) => (queue.since, if queue.refused { 0 } else { queue.rounds }),
                None => {
                    *place += 1;
                    (*place, 0)
                }
            };
            self.queues.push(Queue {
                lane: said.lane,
                waiting,
                head: said.head.saturating_sub(served).clamp(1, waiting),
                since,
                wait_until_us: match said.wait_us {
                    0 => 0,
                    wait_us => now_us.saturating_add(wait_us),
                },
                refused: false,
                rounds,
            });
        }
    }
}

/// The notes on one key.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// Everybody who wants units or is thought to have some.
    pub(crate) holders: BTreeMap<SessionId, Holder>,
    /// The sum of the holders' peaks.
    pub(crate) peaks: u128,
    /// Units that reports of the entry under way hand back.
    pub(crate) returning: u64,
    /// It is on the list for the next proposal.
    pub(crate) listed: bool,
    /// When it is looked at again though nobody says anything.
    pub(crate) wake_us: Option<u64>,
    /// Somebody may want units; when not, nobody does.
    pub(crate) wanted: bool,
    /// Nobody was found to recall from; not tried again before this.
    pub(crate) no_recall_until_us: u64,
}

impl Book {
    /// Changes a holder and keeps the sum of peaks.
    pub(crate) fn set(&mut self, session: SessionId, holder: Holder) {
        self.peaks = self.peaks.saturating_add(u128::from(holder.peak));
        if let Some(old) = self.holders.insert(session, holder) {
            self.peaks = self.peaks.saturating_sub(u128::from(old.peak));
        }
    }

    /// Forgets a holder and keeps the sum of peaks.
    pub(crate) fn remove(&mut self, session: SessionId) {
        if let Some(old) = self.holders.remove(&session) {
            self.peaks = self.peaks.saturating_sub(u128::from(old.peak));
        }
    }

    /// Keeps the holders that `keep` says to, and the sum of peaks.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(SessionId, &mut Holder) -> bool) {
        let peaks = &mut self.peaks;
        self.holders.retain(|session, holder| {
            let kept = keep(*session, holder);
            if !kept {
                *peaks = peaks.saturating_sub(u128::from(holder.peak));
            }
            kept
        });
    }

    /// Whether anybody wants units.
    pub(crate) fn is_wanted(&self) -> bool {
        self.holders
            .values()
            .any(|holder| holder.want > 0 || holder.impossible.is_some())
    }

    /// Units that answers to recalls are expected to bring; none: no answer is
    /// awaited.
    pub(crate) fn recalls_under_way(&self, now_us: u64) -> Option<u64> {
        self.holders
            .values()
            .filter(|holder| holder.recalled_until_us.is_some_and(|until| now_us < until))
            .map(|holder| holder.recalled)
            .reduce(u64::saturating_add)
    }

    /// The earliest moment at which an awaited recall is given up.
    pub(crate) fn recall_end_us(&self) -> Option<u64> {
        self.holders
            .values()
            .filter_map(|holder| holder.recalled_until_us)
            .min()
    }
}
