//! All keys' notes together, and the two steps of every entry: propose before
//! it, conclude after it.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    mem,
};

use leasehold_key::Key;
use leasehold_ledger::{
    Ledger,
    entry::{Grant, SessionId},
    outcome::{Availability, Code, GrantOutcome, Refusal},
    policy::Policy,
};

use crate::{
    book::Book,
    fair::Fairness,
    level::Level,
    recall::Recall,
    scarce::{LOOK_AGAIN_US, Scarce, answer_waiting, refuse_all},
    serve::{Supply, divide},
};

/// More grants than this are left to the next entry.
const GRANTS_MAX: usize = 4_096;
/// More notes than this are not kept: what is wanted is then served in the entry
/// that brings it, or refused.
const HOLDERS_MAX: usize = 2_000_000;
/// Notes on somebody who wants nothing are dropped after this silence: four times
/// the longest timescale, when its client hands everything back anyway.
const NOTES_US: u64 = 240_000_000;
/// How many keys a conclusion looks at for such notes.
const SWEEP_MAX: usize = 64;

/// A no to one session about one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Who is told.
    pub session: SessionId,
    /// About which account.
    pub key: Key,
    /// What.
    pub refusal: Refusal,
    /// The highest lane whose requests are refused; those of the lanes below are as
    /// well. 0: all.
    pub lane: u32,
}

/// What follows from an entry that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conclusion {
    /// Waiting requests that get no more for now, and wants that never will.
    pub refusals: Vec<Refused>,
    /// Holders to ask for units back.
    pub recalls: Vec<Recall>,
}

impl Conclusion {
    /// Refuses everything that a session wants of a key.
    pub(crate) fn refuse(&mut self, session: SessionId, key: &Key, refusal: Refusal) {
        self.refusals.push(Refused {
            session,
            key: key.clone(),
            refusal,
            lane: 0,
        });
    }
}

/// The lease policy's memory.
#[derive(Debug, Default)]
pub struct Allotter {
    books: HashMap<Key, Book>,
    /// Sessions with a live stream, and which stream of theirs it is.
    attached: HashMap<SessionId, u64>,
    attachments: u64,
    places: u64,
    holders: usize,
    /// Keys to look at for the next entry.
    listed: Vec<Key>,
    /// How many of those the last proposal looked at.
    looked: usize,
    wakes: BTreeSet<(u64, Key)>,
    sweep: VecDeque<(u64, Key)>,
    /// The keys in it: a book that comes and goes is swept once.
    swept: HashSet<Key>,
}

/// Units kept back for each lane, the highest first.
fn lane_reserves(policy: &Policy) -> Vec<u64> {
    policy.lanes.iter().map(|lane| lane.reserve).collect()
}

impl Allotter {
    /// One that remembers nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A session has a new stream: what it asked for before is void.
    pub fn attach(&mut self, session: SessionId) {
        self.attachments += 1;
        self.attached.insert(session, self.attachments);
    }

    /// A session has no stream any more: it cannot be given or asked for anything.
    pub fn detach(&mut self, session: SessionId) {
        self.attached.remove(&session);
    }

    /// How many notes are kept.
    #[must_use]
    pub const fn notes(&self) -> usize {
        self.holders
    }

    /// Takes note of what a session says of a key, in a report that will be in the
    /// next entry. `ledger` is the state before it, with every earlier entry.
    pub fn hear(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        session: SessionId,
        key: &Key,
        level: &Level,
    ) {
        let known = self.books.contains_key(key);
        if !known && level.is_blank() {
            return;
        }
        let Some(&attachment) = self.attached.get(&session) else {
            return;
        };
        let book = self.books.entry(key.clone()).or_default();
        let is_new = !book.holders.contains_key(&session);
        if is_new && self.holders >= HOLDERS_MAX {
            if book.holders.is_empty() {
                self.books.remove(key);
            }
            return;
        }
        let mut holder = book
            .holders
            .get(&session)
            .filter(|old| old.attachment == attachment || old.attachment == 0)
            .cloned()
            .unwrap_or_default();
        // Where nobody wants anything and nothing comes back, what the books say makes
        // no difference.
        let gives_back = level.last || level.returned_total != holder.returned_total;
        holder.returned_total = level.returned_total;
        let lease = if level.want > 0 || book.wanted || gives_back {
            ledger.lease_totals(session, key)
        } else {
            None
        };
        if level.generation >= holder.seen.0 {
            holder.seen = (level.generation, level.granted_seen);
        }
        // Units that were granted but that the client had not seen when it spoke:
        // its levels do not know them yet.
        let unseen = lease.map_or(0, |lease| {
            let (generation, granted) = holder.seen;
            if lease.generation == generation {
                lease.granted.saturating_sub(granted)
            } else {
                lease.granted
            }
        });
        let mut returned = 0;
        if let Some(lease) = lease.filter(|lease| lease.generation == level.generation) {
            let total = if level.last {
                lease
                    .granted
                    .saturating_sub(level.spent_total.max(lease.spent))
            } else {
                level.returned_total
            };
            returned = total.saturating_sub(lease.returned);
            book.returning = book.returning.saturating_add(returned);
        }
        let wanted_before = holder.want > 0;
        let was_asked = holder.recalled_until_us.take().is_some();
        if holder.heard_us == 0 || level.spent_total != holder.spent_total || level.want > 0 {
            holder.active_us = now_us;
        }
        holder.attachment = attachment;
        holder.want = level.want.saturating_sub(unseen);
        holder.queue_up(&level.by_lane(), unseen, now_us, &mut self.places);
        holder.unspent = level.left.saturating_add(level.held).saturating_add(unseen);
        holder.peak = level.peak;
        holder.demand_milli = level.demand_milli;
        holder.heard_us = now_us;
        holder.untold_us_max = ledger.settings().sync_interval_us;
        holder.spent_total = level.spent_total;
        book.wanted |= holder.want > 0;
        // A report that changes nothing for anybody does not cost a look at the key.
        // One that ends a lease is kept until the entry is applied: an ask beside it
        // must not be taken for one that knows nothing of that lease.
        let is_due = holder.want > 0
            || wanted_before
            || level.last
            || (book.wanted && (returned > 0 || was_asked));
        if holder.want == 0 && holder.unspent == 0 && !level.last {
            if !is_new {
                self.holders = self.holders.saturating_sub(1);
            }
            book.remove(session);
        } else {
            if is_new {
                self.holders += 1;
            }
            book.set(session, holder);
        }
        if is_due {
            self.list(key);
        } else if self
            .books
            .get(key)
            .is_some_and(|book| book.holders.is_empty() && !book.listed)
        {
            self.drop_book(key);
            return;
        }
        if !known && self.swept.insert(key.clone()) {
            self.sweep
                .push_back((now_us.saturating_add(NOTES_US), key.clone()));
        }
    }

    /// A session's notes on a key are void. Says whether it wanted units of it.
    pub fn forget(&mut self, session: SessionId, key: &Key) -> bool {
        let Some(book) = self.books.get_mut(key) else {
            return false;
        };
        let Some(holder) = book.holders.get(&session) else {
            return false;
        };
        let wanted = holder.want > 0;
        book.remove(session);
        self.holders = self.holders.saturating_sub(1);
        if book.holders.is_empty() && !book.listed {
            self.drop_book(key);
        } else if wanted {
            // What was kept for it may serve others.
            self.list(key);
        }
        wanted
    }

    /// Units of a key may have come back in another way than by a report that was
    /// heard: look at it for the next entry.
    pub fn touch(&mut self, key: &Key) {
        self.list(key);
    }

    /// The rules may have changed: look at every key that somebody wants.
    pub fn touch_all(&mut self) {
        for (key, book) in &mut self.books {
            if !book.listed && book.wanted {
                book.listed = true;
                self.listed.push(key.clone());
            }
        }
    }

    /// Whether there is something to look at for the next entry.
    #[must_use]
    pub fn is_due(&self, now_us: u64) -> bool {
        !self.listed.is_empty() || self.wakes.first().is_some_and(|(wake, _)| *wake <= now_us)
    }

    /// When there will be something to look at though nobody says anything.
    #[must_use]
    pub fn next_wake_us(&self) -> Option<u64> {
        self.wakes.first().map(|(wake, _)| *wake)
    }

    /// Proposes grants for the next entry. `ledger` is the state before it; units
    /// that come back by reports heard for this entry are counted on.
    pub fn propose(&mut self, ledger: &Ledger, now_us: u64) -> Vec<Grant> {
        while let Some((wake, _)) = self.wakes.first() {
            if *wake > now_us {
                break;
            }
            let Some((_, key)) = self.wakes.pop_first() else {
                break;
            };
            if let Some(book) = self.books.get_mut(&key) {
                book.wake_us = None;
            }
            self.list(&key);
        }
        let mut grants = Vec::new();
        self.looked = 0;
        for key in &self.listed {
            if grants.len() >= GRANTS_MAX {
                break;
            }
            self.looked += 1;
            let Some(book) = self.books.get_mut(key) else {
                continue;
            };
            let attached = &self.attached;
            let holders = &mut self.holders;
            book.retain(|session, holder| {
                let kept =
                    attached.get(&session) == Some(&holder.attachment) || holder.attachment == 0;
                if !kept {
                    *holders = holders.saturating_sub(1);
                }
                holder
                    .queues
                    .retain(|queue| !queue.refused || queue.wait_until_us > now_us);
                kept
            });
            if !book.is_wanted() {
                continue;
            }
            if let Availability::Open {
                policy,
                limit,
                largest_cost,
                free,
                outstanding,
                cooling_us: None,
                ..
            } = ledger.available(key, now_us)
            {
                if policy.kind.tells() {
                    grants.extend(leases_to_tell_by(book, key));
                    continue;
                }

                let fairness = Fairness::judge(book, &policy, free, now_us);
                let reserves = lane_reserves(&policy);
                let supply = Supply {
                    lanes: &reserves,
                    free: free.saturating_add(book.returning).min(limit),
                    outstanding: outstanding.saturating_sub(book.returning),
                    reserve: policy.reserve,
                    idle_us: fairness.idle_us(&policy),
                    now_us,
                };
                for holder in book.holders.values_mut() {
                    let head = holder.queues.iter().map(|queue| queue.head).max();
                    match head.unwrap_or(0) {
                        head if head > largest_cost => holder.give_up(Code::CostAboveLimit),
                        // Units may be added by hand, or carried over.
                        head if head > limit => holder.give_up(Code::Limit),
                        _ => {}
                    }
                }
                grants.extend(
                    divide(book, supply, &fairness)
                        .into_iter()
                        .map(|share| Grant {
                            session: share.session,
                            key: key.clone(),
                            units: share.units,
                        }),
                );
            }
        }
        grants
    }

    /// Draws the conclusions once the entry was applied: `grants` as proposed,
    /// `outcomes` as the ledger decided, `ledger` with the entry.
    pub fn conclude(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        grants: &[Grant],
        outcomes: &[GrantOutcome],
    ) -> Conclusion {
        let mut conclusion = Conclusion::default();
        for (grant, outcome) in grants.iter().zip(outcomes) {
            let Some(book) = self.books.get_mut(&grant.key) else {
                continue;
            };
            let Some(holder) = book.holders.get_mut(&grant.session) else {
                continue;
            };
            self.places += 1;
            holder.given(outcome.units, self.places);
            // It may be who units can be recalled from.
            book.no_recall_until_us = 0;
            match outcome.refusal {
                // It tells what it spends: it has its lease, and needs no units.
                None if outcome.units == 0 => holder.stop_wanting(),
                // Units are free and yet it got none: its lease's total cannot grow any
                // more, and asking again would change nothing.
                Some(
                    refusal @ Refusal {
                        code: Code::Limit, ..
                    },
                ) if outcome.units == 0
                    && matches!(ledger.available(&grant.key, now_us), Availability::Open { free, .. } if free > 0) =>
                {
                    holder.stop_wanting();
                    let retry_after_us = Some(LOOK_AGAIN_US);
                    conclusion.refuse(
                        grant.session,
                        &grant.key,
                        Refusal {
                            retry_after_us,
                            ..refusal
                        },
                    );
                }
                // Not enough was free after all: looked at below.
                None
                | Some(Refusal {
                    code: Code::Limit, ..
                }) => {}
                Some(refusal) => {
                    holder.stop_wanting();
                    conclusion.refuse(grant.session, &grant.key, refusal);
                }
            }
        }
        // Keys that the bound on grants left out stay listed for the next entry.
        let left_out = self.listed.split_off(self.looked.min(self.listed.len()));
        self.looked = 0;
        for key in mem::replace(&mut self.listed, left_out) {
            if let Some(book) = self.books.get_mut(&key) {
                book.listed = false;
                book.returning = 0;
            }
            self.conclude_key(ledger, now_us, &key, &mut conclusion);
        }
        self.sweep(now_us);
        conclusion
    }

    fn conclude_key(
        &mut self,
        ledger: &Ledger,
        now_us: u64,
        key: &Key,
        conclusion: &mut Conclusion,
    ) {
        let Some(book) = self.books.get_mut(key) else {
            return;
        };
        for holder in book.holders.values_mut() {
            if holder
                .recalled_until_us
                .is_some_and(|until| until <= now_us)
            {
                holder.recalled_until_us = None;
            }
        }
        let mut again = false;
        for (session, holder) in &mut book.holders {
            if let Some(code) = holder.impossible.take() {
                let refusal = Refusal {
                    code,
                    retry_after_us: None,
                };
                conclusion.refuse(*session, key, refusal);
            }
        }
        book.wanted = book.is_wanted();
        if book.wanted {
            match ledger.available(key, now_us) {
                Availability::NoBudget => refuse_all(book, key, Code::NoBudget, None, conclusion),
                Availability::TooManyAccounts => refuse_all(
                    book,
                    key,
                    Code::TooManyAccounts,
                    Some(LOOK_AGAIN_US),
                    conclusion,
                ),
                Availability::Open {
                    cooling_us: Some(cooling_us),
                    ..
                } => refuse_all(book, key, Code::Cooldown, Some(cooling_us), conclusion),
                Availability::Open { policy, .. } if policy.kind.tells() => again = true,
                Availability::Open {
                    policy,
                    free,
                    outstanding,
                    next_free_us,
                    ..
                } => {
                    let fairness = Fairness::judge(book, &policy, free, now_us);
                    let reserves = lane_reserves(&policy);
                    let scarce = Scarce {
                        key,
                        policy: &policy,
                        fairness: &fairness,
                        supply: Supply {
                            lanes: &reserves,
                            free,
                            outstanding,
                            reserve: policy.reserve,
                            idle_us: fairness.idle_us(&policy),
                            now_us,
                        },
                        next_free_us,
                        now_us,
                    };
                    again = answer_waiting(book, ledger, &self.attached, &scarce, conclusion);
                    let wake = scarce.wake_us(book);
                    if book.wake_us != wake {
                        if let Some(old) = book.wake_us {
                            self.wakes.remove(&(old, key.clone()));
                        }
                        book.wake_us = wake;
                        if let Some(wake) = wake {
                            self.wakes.insert((wake, key.clone()));
                        }
                    }
                }
            }
        }
        let holders = &mut self.holders;
        book.retain(|_, holder| {
            let kept = holder.want > 0 || holder.unspent > 0 || holder.recalled_until_us.is_some();
            if !kept {
                *holders = holders.saturating_sub(1);
            }
            kept
        });
        if book.holders.is_empty() {
            self.drop_book(key);
        } else if again {
            self.list(key);
        }
    }

    fn drop_book(&mut self, key: &Key) {
        if let Some(book) = self.books.remove(key)
            && let Some(wake) = book.wake_us
        {
            self.wakes.remove(&(wake, key.clone()));
        }
    }

    fn list(&mut self, key: &Key) {
        if let Some(book) = self.books.get_mut(key)
            && !book.listed
        {
            book.listed = true;
            self.listed.push(key.clone());
        }
    }

    /// Forgets whom nobody has heard of for long.
    fn sweep(&mut self, now_us: u64) {
        for _ in 0..SWEEP_MAX {
            match self.sweep.front() {
                Some((due, _)) if *due <= now_us => {}
                _ => break,
            }
            let Some((_, key)) = self.sweep.pop_front() else {
                break;
            };
            let Some(book) = self.books.get_mut(&key) else {
                self.swept.remove(&key);
                continue;
            };
            let attached = &self.attached;
            let holders = &mut self.holders;
            book.retain(|session, holder| {
                let attached = attached.get(&session) == Some(&holder.attachment);
                let kept = attached
                    && (holder.want > 0 || holder.heard_us.saturating_add(NOTES_US) > now_us);
                if !kept {
                    *holders = holders.saturating_sub(1);
                }
                kept
            });
            if book.holders.is_empty() && !book.listed {
                self.drop_book(&key);
                self.swept.remove(&key);
            } else {
                self.sweep.push_back((now_us.saturating_add(NOTES_US), key));
            }
        }
    }
}

/// A holder that tells what it spends wants a lease to tell it by, and no units.
fn leases_to_tell_by<'a>(book: &'a Book, key: &'a Key) -> impl Iterator<Item = Grant> + 'a {
    let wanting = book.holders.iter().filter(|(_, holder)| holder.want > 0);
    wanting.map(|(session, _)| Grant {
        session: *session,
        key: key.clone(),
        units: 1,
    })
}

#[cfg(test)]
mod tests;
