//! What counts of one account, naively: a window is the list of all spends with their
//! dates, a bucket an exact fraction, a period what was charged since it began. Knows
//! nothing of holders, nor of the ledger but its types.

use leasehold_ledger::policy::{Kind, UNITS_MAX};

pub(crate) const DRIFT_PPM: u32 = 1_000;
pub(crate) const SCALE: u128 = 1_000_000;

/// What counts, naively.
#[derive(Clone, Debug)]
pub(crate) enum Counted {
    /// Every unit that may still count, with its date. Of an estimate too.
    Window {
        window_us: u64,
        spends: Vec<(u64, u64)>,
    },
    /// Parts of `per` that have not flowed back; a unit is `per` parts. Of a paced
    /// budget too.
    Bucket {
        flow: u128,
        per: u128,
        parts: u128,
        settled_us: u64,
    },
    /// What is charged to the present period, what it has beyond the limit, and when
    /// it is said to end; none: no period has begun.
    Period {
        charged: u64,
        carried: u64,
        ends_us: Option<u64>,
    },
    /// What was spent ever, and what corrections added.
    Total { spent: u64, added: i64 },
    /// Permits in use are outstanding; nothing else counts. Nor is anything counted of
    /// what is unlimited.
    Nothing,
}

pub(crate) fn hold(window_us: u64) -> u64 {
    let scaled = u128::from(window_us) * (SCALE + u128::from(DRIFT_PPM));
    u64::try_from(scaled.div_ceil(SCALE)).unwrap() + 1
}

fn rate(refill: u64, period_us: u64) -> (u128, u128) {
    (
        u128::from(refill) * SCALE,
        u128::from(period_us) * (SCALE + u128::from(DRIFT_PPM)),
    )
}

/// Whether units can be spent for good.
pub(crate) const fn can_be_spent(kind: &Kind) -> bool {
    !matches!(kind, Kind::Concurrency { .. })
}

/// Whether the promise of a kind is about any interval: then what was spent under
/// another kind matters to it.
pub(crate) const fn looks_back(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::SlidingWindow { .. }
            | Kind::TokenBucket { .. }
            | Kind::Paced { .. }
            | Kind::Estimate { .. }
    )
}

/// Whether an edit makes something matter that was forgotten under the old rule.
pub(crate) fn forgets(old: &Kind, new: &Kind) -> bool {
    let bucket = |kind: &Kind| matches!(kind, Kind::TokenBucket { .. } | Kind::Paced { .. });
    match (old, new) {
        (
            Kind::SlidingWindow { window_us: old, .. },
            Kind::SlidingWindow { window_us: new, .. },
        )
        | (Kind::Estimate { window_us: old, .. }, Kind::Estimate { window_us: new, .. }) => {
            new > old
        }
        (old, new) if bucket(old) && bucket(new) => false,
        (_, new) => looks_back(new),
    }
}

impl Counted {
    /// Nothing counts; `ends_us` is when the present period of the kind's calendar is
    /// said to end.
    pub(crate) fn new(kind: &Kind, now_us: u64, ends_us: Option<u64>) -> Self {
        match *kind {
            Kind::SlidingWindow { window_us, .. } | Kind::Estimate { window_us, .. } => {
                Self::Window {
                    window_us,
                    spends: Vec::new(),
                }
            }
            Kind::TokenBucket {
                refill,
                refill_period_us,
                ..
            }
            | Kind::Paced {
                refill,
                refill_period_us,
                ..
            } => {
                let (flow, per) = rate(refill, refill_period_us);
                Self::Bucket {
                    flow,
                    per,
                    parts: 0,
                    settled_us: now_us,
                }
            }
            Kind::Period { .. } => Self::Period {
                charged: 0,
                carried: 0,
                ends_us,
            },
            Kind::Total { .. } => Self::Total { spent: 0, added: 0 },
            Kind::Concurrency { .. } | Kind::Unlimited => Self::Nothing,
        }
    }

    pub(crate) fn limit(&self, kind: &Kind) -> u64 {
        match self {
            Self::Period { ends_us: None, .. } => 0,
            Self::Period { carried, .. } => kind.limit() + carried,
            Self::Total { added, .. } => {
                let limit = i64::try_from(kind.limit()).unwrap() + added;
                u64::try_from(limit).unwrap_or(0).min(UNITS_MAX)
            }
            _ => kind.limit(),
        }
    }

    pub(crate) fn settle(&mut self, now_us: u64) {
        match self {
            Self::Window { window_us, spends } => {
                spends.retain(|(date_us, _)| date_us + hold(*window_us) > now_us);
            }
            Self::Bucket {
                flow,
                parts,
                settled_us,
                ..
            } => {
                *parts = parts.saturating_sub(u128::from(now_us - *settled_us) * *flow);
                *settled_us = now_us;
            }
            _ => {}
        }
    }

    pub(crate) fn units(&self) -> u64 {
        match self {
            Self::Window { spends, .. } => spends.iter().map(|(_, units)| units).sum(),
            Self::Bucket { per, parts, .. } => u64::try_from(parts.div_ceil(*per)).unwrap(),
            Self::Period { charged, .. } => *charged,
            Self::Total { spent, .. } => *spent,
            Self::Nothing => 0,
        }
    }

    pub(crate) fn charge(&mut self, units: u64, date_us: u64) {
        match self {
            Self::Window { spends, .. } => spends.push((date_us, units)),
            Self::Bucket { per, parts, .. } => *parts += u128::from(units) * *per,
            Self::Period { charged, .. } => *charged += units,
            Self::Total { spent, .. } => *spent += units,
            Self::Nothing => {}
        }
    }

    /// Whether units that were presumed spent can be refunded once more is known.
    pub(crate) const fn refunds(kind: &Kind) -> bool {
        matches!(
            kind,
            Kind::SlidingWindow { .. } | Kind::Period { .. } | Kind::Total { .. }
        )
    }

    /// Takes back what was charged with a date, as far as it still counts. Gives how
    /// many units.
    pub(crate) fn refund(&mut self, units: u64, date_us: u64, now_us: u64) -> u64 {
        match self {
            Self::Window { window_us, spends } => {
                if date_us + hold(*window_us) <= now_us {
                    return 0;
                }
                // Of that date first; where a correction took them, what counts longer.
                spends.sort_unstable();
                let mut left = units;
                for (at_us, of) in spends.iter_mut() {
                    if *at_us >= date_us {
                        let taken = left.min(*of);
                        *of -= taken;
                        left -= taken;
                    }
                }
                spends.retain(|(_, units)| *units > 0);
                units - left
            }
            Self::Period { charged: spent, .. } | Self::Total { spent, .. } => {
                let taken = units.min(*spent);
                *spent -= taken;
                taken
            }
            Self::Bucket { .. } | Self::Nothing => 0,
        }
    }

    /// What an operator does by hand; none: the kind has nothing of the sort, or it is
    /// out of range.
    pub(crate) fn adjust(&mut self, kind: &Kind, units: i64, now_us: u64) -> Option<i64> {
        let size = units.unsigned_abs();
        let frees = units > 0;
        let counts = matches!(self, Self::Nothing | Self::Total { .. });
        if !frees && !counts {
            let counted = size.min(UNITS_MAX.saturating_sub(self.units()));
            self.charge(counted, now_us);
            return i64::try_from(counted).ok().map(|counted| -counted);
        }
        match self {
            Self::Window { spends, .. } => {
                // Those that would count longest.
                spends.sort_unstable();
                let mut left = size;
                for (_, of) in spends.iter_mut().rev() {
                    let taken = left.min(*of);
                    *of -= taken;
                    left -= taken;
                }
                spends.retain(|(_, units)| *units > 0);
                i64::try_from(size - left).ok()
            }
            Self::Bucket { per, parts, .. } => {
                let taken = size.min(u64::try_from(parts.div_ceil(*per)).unwrap());
                *parts = parts.saturating_sub(u128::from(taken) * *per);
                i64::try_from(taken).ok()
            }
            Self::Period {
                charged, carried, ..
            } => {
                let taken = size.min(*charged);
                *charged -= taken;
                *carried = (*carried + size - taken).min(UNITS_MAX);
                Some(units)
            }
            Self::Total { added, .. } => {
                let sum = i128::from(*added) + i128::from(units);
                let most = i128::from(UNITS_MAX);
                let limit = i128::from(kind.limit()) + sum;
                if sum.abs() > most || limit > most {
                    return None;
                }
                *added = i64::try_from(sum).unwrap();
                Some(units)
            }
            Self::Nothing => None,
        }
    }

    /// What support's button does: nothing counts any more.
    pub(crate) fn reset(&mut self, kind: &Kind) -> Option<i64> {
        if matches!(kind, Kind::Total { .. } | Kind::Concurrency { .. }) {
            return None;
        }
        let counted = i64::try_from(self.units()).unwrap();
        match self {
            Self::Window { spends, .. } => spends.clear(),
            Self::Bucket { parts, .. } => *parts = 0,
            Self::Period { charged, .. } => *charged = 0,
            Self::Total { .. } | Self::Nothing => {}
        }
        Some(counted)
    }

    /// A period begins while so much is outstanding.
    pub(crate) fn roll(&mut self, kind: &Kind, outstanding: u64, until_us: u64) {
        let Kind::Period {
            limit, carry_over, ..
        } = kind
        else {
            return;
        };
        let present = self.limit(kind);
        if let Self::Period {
            charged,
            carried,
            ends_us,
        } = self
        {
            // What was charged before any period was known is charged to the first.
            if ends_us.is_some() {
                let unused = present.saturating_sub(*charged + outstanding);
                let beyond = outstanding.saturating_sub(*limit);
                *carried = unused.max(beyond).min(*carry_over);
                *charged = 0;
            }
            *ends_us = Some(until_us);
        }
    }

    /// When `units` of what counts no longer count.
    pub(crate) fn drained_when(&self, units: u64) -> Option<u64> {
        if units > self.units() {
            return None;
        }
        match self {
            Self::Window { window_us, spends } => {
                let mut times: Vec<(u64, u64)> = spends
                    .iter()
                    .map(|(date_us, units)| (date_us + hold(*window_us), *units))
                    .collect();
                times.sort_unstable();
                let mut sum = 0;
                times.into_iter().find_map(|(when_us, of)| {
                    sum += of;
                    (sum >= units).then_some(when_us)
                })
            }
            Self::Bucket {
                flow,
                per,
                parts,
                settled_us,
            } => {
                let stays = u128::from(self.units() - units) * *per;
                let flows_us = (parts - stays).div_ceil(*flow);
                Some(settled_us.saturating_add(u64::try_from(flows_us).unwrap_or(u64::MAX)))
            }
            Self::Period { ends_us, .. } => Some(ends_us.unwrap_or(0)),
            Self::Total { .. } | Self::Nothing => None,
        }
    }

    /// Follows an edit within a kind, or becomes another. Gives whether grants open
    /// new generations.
    pub(crate) fn edit(&mut self, old: &Kind, new: &Kind, now: Edit) -> bool {
        let Edit {
            now_us,
            ends_us,
            outstanding,
        } = now;
        let remainder = new
            .limit()
            .saturating_sub(self.units())
            .saturating_sub(outstanding);
        match (&mut *self, old, new) {
            (
                Self::Window { window_us, .. },
                Kind::SlidingWindow { .. },
                Kind::SlidingWindow {
                    window_us: new_us, ..
                },
            )
            | (
                Self::Window { window_us, .. },
                Kind::Estimate { .. },
                Kind::Estimate {
                    window_us: new_us, ..
                },
            ) => {
                let opens = *window_us != *new_us;
                *window_us = *new_us;
                self.settle(now_us);
                if forgets(old, new) {
                    self.charge(remainder, now_us);
                }
                opens
            }
            (
                Self::Bucket {
                    flow, per, parts, ..
                },
                _,
                Kind::TokenBucket {
                    refill,
                    refill_period_us,
                    ..
                }
                | Kind::Paced {
                    refill,
                    refill_period_us,
                    ..
                },
            ) => {
                let (new_flow, new_per) = rate(*refill, *refill_period_us);
                let whole = parts.div_ceil(*per);
                let progress = whole * *per - *parts;
                *parts = whole * new_per - progress * new_per / *per;
                *flow = new_flow;
                *per = new_per;
                false
            }
            (Self::Period { ends_us: until, .. }, _, Kind::Period { calendar, .. }) => {
                *until = ends_us;
                old.calendar() != Some(calendar)
            }
            (Self::Total { .. }, _, Kind::Total { .. })
            | (Self::Nothing, Kind::Concurrency { .. }, Kind::Concurrency { .. })
            | (Self::Nothing, Kind::Unlimited, Kind::Unlimited) => false,
            _ => {
                let units = self.units();
                *self = Self::new(new, now_us, ends_us);
                let least = new.limit().saturating_sub(outstanding);
                let charged = if looks_back(new) {
                    units.max(least)
                } else {
                    units
                };
                self.charge(charged, now_us);
                true
            }
        }
    }
}

/// What an edit has to know.
#[derive(Clone, Copy)]
pub(crate) struct Edit {
    pub(crate) now_us: u64,
    /// When the present period of the new kind's calendar is said to end.
    pub(crate) ends_us: Option<u64>,
    pub(crate) outstanding: u64,
}
