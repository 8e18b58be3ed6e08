//! What became of every request. Knows nothing of designs; judges nothing itself.

use leasehold_checkers::{Admission, Judgement, Promise};

use crate::request::{Answer, Request, Verdict};

/// A request and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The request.
    pub request: Request,
    /// Its answer; none yet: it still waits.
    pub answer: Option<Answer>,
}

/// Everything that happened in one run.
#[derive(Clone, Debug, Default)]
pub struct Record {
    outcomes: Vec<Outcome>,
}

impl Record {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a request, and gives it its number.
    pub fn arrived(&mut self, request: &Request) -> u64 {
        let id = u64::try_from(self.outcomes.len()).unwrap_or(u64::MAX);
        let request = Request { id, ..*request };
        self.outcomes.push(Outcome {
            request,
            answer: None,
        });
        id
    }

    /// Notes an answer; the request that it is for, if there is one without.
    pub fn answered(&mut self, answer: &Answer) -> Option<Request> {
        let outcome = usize::try_from(answer.id)
            .ok()
            .and_then(|id| self.outcomes.get_mut(id))?;
        if outcome.answer.is_some() {
            return None;
        }
        outcome.answer = Some(*answer);
        Some(outcome.request)
    }

    /// All of them, in the order of arrival.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// Those that arrived at `from_us` or later.
    #[must_use]
    pub fn since(&self, from_us: u64) -> &[Outcome] {
        let first = self
            .outcomes
            .partition_point(|outcome| outcome.request.at_us < from_us);
        &self.outcomes[first..]
    }

    /// The admission instants of one key.
    #[must_use]
    pub fn admissions(&self, key: usize) -> Vec<Admission> {
        let admitted = self.outcomes.iter().filter_map(|outcome| {
            let answer = outcome.answer.as_ref()?;
            (outcome.request.key == key && answer.verdict == Verdict::Admitted).then(|| {
                let at_ns = answer.at_us.saturating_mul(1_000);
                Admission {
                    units: outcome.request.units,
                    call_ns: at_ns,
                    return_ns: at_ns,
                }
            })
        });
        admitted.collect()
    }

    /// What the admissions of one key come to.
    #[must_use]
    pub fn judge(&self, key: usize, promise: &Promise) -> Judgement {
        promise.judge(&self.admissions(key))
    }
}

/// Shares of the outcomes that a figure is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Of those admitted.
    pub admitted: u64,
    /// Of those refused, or told that nobody could be asked, or never answered.
    pub refused: u64,
    /// Of those that had to wait for a message.
    pub waited: u64,
    /// Units admitted.
    pub units: u64,
}

impl Tally {
    /// Counts.
    #[must_use]
    pub fn of(outcomes: &[Outcome]) -> Self {
        let mut tally = Self::default();
        for outcome in outcomes {
            tally.requests += 1;
            match outcome.answer {
                Some(answer) => {
                    tally.waited += u64::from(answer.waited);
                    if answer.verdict == Verdict::Admitted {
                        tally.admitted += 1;
                        tally.units = tally.units.saturating_add(outcome.request.units);
                    } else {
                        tally.refused += 1;
                    }
                }
                None => {
                    tally.refused += 1;
                    tally.waited += 1;
                }
            }
        }
        tally
    }

    /// A count as a percentage of the requests.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a percentage for people")]
    pub fn percent(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.requests.max(1) as f64
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.waited += other.waited;
        self.units += other.units;
    }
}
