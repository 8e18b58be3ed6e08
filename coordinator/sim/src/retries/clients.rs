//! Clients with jobs that they try until they are admitted. Knows no limiter.

use std::{cmp::Reverse, collections::BinaryHeap};

use rand::Rng as _;
use rand_distr::{Distribution as _, Exp};

use crate::{
    Answer, Request, SECOND, Source, Verdict,
    traffic::{Randomness, randomness},
};

const JOBS: u64 = 600;
const WAITS: u64 = 601;
const ROUTES: u64 = 602;

/// How long a client waits after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Always as long, in microseconds, whatever it is told.
    Flat(u64),
    /// `random(0, 1) × min(20 s, 1 s × 2^attempt)`, as AWS's clients do after a
    /// throttling error, whatever it is told.
    FullJitter,
    /// As long as it is told, in whole seconds, rounded up; one second if it is
    /// told nothing.
    RetryAfter {
        /// Up to as long again, evenly distributed: never earlier than it is told.
        jitter: bool,
    },
}

/// Where a client's attempts go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempts {
    /// Each to any gateway.
    Anywhere,
    /// A client's always to the same.
    Sticky,
}

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habits {
    /// How many clients there are.
    pub clients: usize,
    /// Jobs per second of all clients; each comes independently of the others.
    pub jobs_per_second: f64,
    /// What they do when they are refused.
    pub retry: Retry,
    /// Where they go.
    pub attempts: Attempts,
}

impl Habits {
    /// Fifty clients with 30 jobs a second, three times a limit of 10.
    #[must_use]
    pub fn fifty(retry: Retry) -> Self {
        Self {
            clients: 50,
            jobs_per_second: 30.0,
            retry,
            attempts: Attempts::Anywhere,
        }
    }
}

const BACKOFF_BASE_US: u64 = SECOND;
const BACKOFF_CAP_US: u64 = 20 * SECOND;

/// One job and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Whose.
    pub client: usize,
    /// When it came.
    pub born_us: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// When it was admitted, if it was.
    pub done_us: Option<u64>,
}

/// The requests of clients that try again. Needs a record of its own: it knows
/// requests by their place in it.
#[derive(Debug)]
pub struct Clients {
    habits: Habits,
    gateways: usize,
    gaps: Option<Exp<f64>>,
    arriving: Randomness,
    waits: Randomness,
    routes: Randomness,
    /// When the next job comes, exactly.
    next_job_us: f64,
    jobs: Vec<Job>,
    /// When which job is tried next; those of the same moment in the order in which
    /// they were put off.
    next: BinaryHeap<Reverse<(u64, u64, usize)>>,
    put_off: u64,
    /// Which job a request is for, by the request's number.
    tried: Vec<usize>,
}

impl Clients {
    /// Clients in front of `gateways` gateways.
    #[must_use]
    pub fn new(seed: u64, gateways: usize, habits: Habits) -> Self {
        let mut clients = Self {
            habits,
            gateways: gateways.max(1),
            gaps: Exp::new(habits.jobs_per_second).ok(),
            arriving: randomness(seed, JOBS),
            waits: randomness(seed, WAITS),
            routes: randomness(seed, ROUTES),
            next_job_us: 0.0,
            jobs: Vec::new(),
            next: BinaryHeap::new(),
            put_off: 0,
            tried: Vec::new(),
        };
        clients.next_job();
        clients
    }

    /// All jobs that came so far. The last is still to come.
    #[must_use]
    pub fn jobs(&self) -> &[Job] {
        &self.jobs
    }

    /// Lets the job after the last one come. One is always known ahead.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "moments of a run are positive and below 2^53 microseconds"
    )]
    fn next_job(&mut self) {
        let Some(gaps) = self.gaps else { return };
        self.next_job_us += gaps.sample(&mut self.arriving) * SECOND as f64;
        let born_us = self.next_job_us as u64;
        let client = self.arriving.random_range(0..self.habits.clients.max(1));
        self.jobs.push(Job {
            client,
            born_us,
            attempts: 0,
            done_us: None,
        });
        self.try_at(born_us, self.jobs.len() - 1);
    }

    fn try_at(&mut self, at_us: u64, job: usize) {
        self.next.push(Reverse((at_us, self.put_off, job)));
        self.put_off += 1;
    }

    fn wait_us(&mut self, attempts: u32, retry_after_us: Option<u64>) -> u64 {
        match self.habits.retry {
            Retry::Flat(us) => us,
            Retry::FullJitter => {
                let retries = attempts.saturating_sub(1);
                let doubled = BACKOFF_BASE_US.saturating_mul(2_u64.saturating_pow(retries));
                self.waits.random_range(0..=doubled.min(BACKOFF_CAP_US))
            }
            Retry::RetryAfter { jitter } => {
                let told_us = retry_after_us.unwrap_or(SECOND).max(1);
                let told_us = told_us.div_ceil(SECOND).saturating_mul(SECOND);
                if jitter {
                    told_us + self.waits.random_range(0..=told_us)
                } else {
                    told_us
                }
            }
        }
    }
}

impl Source for Clients {
    fn next_us(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((at_us, _, _))| *at_us)
    }

    fn next_request(&mut self) -> Request {
        let Some(Reverse((at_us, _, index))) = self.next.pop() else {
            // Asked for more than there are: there is nothing better to say.
            return Request {
                id: 0,
                at_us: u64::MAX,
                gateway: 0,
                key: 0,
                units: 1,
                lane: crate::LOWEST_LANE,
            };
        };
        self.tried.push(index);
        let job = &mut self.jobs[index];
        job.attempts += 1;
        let (client, attempts) = (job.client, job.attempts);
        if attempts == 1 {
            self.next_job();
        }
        let gateway = match self.habits.attempts {
            Attempts::Anywhere => self.routes.random_range(0..self.gateways),
            Attempts::Sticky => client % self.gateways,
        };
        Request {
            id: 0,
            at_us,
            gateway,
            key: 0,
            units: 1,
            lane: crate::LOWEST_LANE,
        }
    }

    fn answered(&mut self, request: &Request, answer: &Answer) {
        let place = usize::try_from(request.id).unwrap_or(usize::MAX);
        let Some(&index) = self.tried.get(place) else {
            return;
        };
        let retry_after_us = match answer.verdict {
            Verdict::Admitted => {
                self.jobs[index].done_us = Some(answer.at_us);
                return;
            }
            Verdict::Refused { retry_after_us } => retry_after_us,
            Verdict::Unavailable => None,
        };
        let wait_us = self.wait_us(self.jobs[index].attempts, retry_after_us);
        self.try_at(answer.at_us.saturating_add(wait_us), index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Record, drive};

    /// Refuses everything and says when to come back; notes when each job came.
    struct Closed(u64);

    impl crate::Limiter for Closed {
        fn request(&mut self, request: &Request, answers: &mut Vec<Answer>) {
            answers.push(Answer {
                id: request.id,
                at_us: request.at_us,
                verdict: Verdict::Refused {
                    retry_after_us: Some(self.0),
                },
                waited: false,
            });
        }

        fn next_us(&self) -> Option<u64> {
            None
        }

        fn advance(&mut self, _now_us: u64, _answers: &mut Vec<Answer>) {}

        fn messages(&self) -> crate::Messages {
            crate::Messages::default()
        }
    }

    /// When one client's only job is tried.
    fn tries_us(retry: Retry, retry_after_us: u64) -> Vec<u64> {
        let habits = Habits {
            clients: 1,
            jobs_per_second: 0.001,
            retry,
            attempts: Attempts::Anywhere,
        };
        let mut clients = Clients::new(4, 1, habits);
        let second = clients.jobs()[0].born_us + 100 * SECOND;
        let mut record = Record::new();
        drive(
            &mut Closed(retry_after_us),
            &mut clients,
            second,
            &mut record,
        );
        let outcomes = record.outcomes().iter();
        let first = clients.jobs()[0].born_us;
        let tries: Vec<u64> = outcomes
            .map(|outcome| outcome.request.at_us)
            .take_while(|at_us| *at_us < clients.jobs()[1].born_us)
            .map(|at_us| at_us - first)
            .collect();
        assert!(tries.len() > 5, "{tries:?}");
        tries
    }

    #[test]
    fn a_flat_retry_listens_to_nobody() {
        let tries = tries_us(Retry::Flat(300), 5 * SECOND);
        assert_eq!(tries[..4], [0, 300, 600, 900]);
    }

    #[test]
    fn who_obeys_waits_for_whole_seconds_rounded_up() {
        let obeying = Retry::RetryAfter { jitter: false };
        assert_eq!(tries_us(obeying, 1)[..3], [0, SECOND, 2 * SECOND]);
        assert_eq!(tries_us(obeying, SECOND)[..2], [0, SECOND]);
        assert_eq!(tries_us(obeying, SECOND + 1)[..2], [0, 2 * SECOND]);
    }

    #[test]
    fn jitter_never_comes_back_earlier_than_told() {
        let tries = tries_us(Retry::RetryAfter { jitter: true }, 1_500_000);
        let waits: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            waits
                .iter()
                .all(|us| (2 * SECOND..=4 * SECOND).contains(us))
        );
        assert!(waits.iter().any(|us| *us > 3 * SECOND));
    }

    #[test]
    fn full_jitter_grows_to_its_cap() {
        let tries = tries_us(Retry::FullJitter, 0);
        let waits: Vec<u64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut most = BACKOFF_BASE_US;
        for wait in waits {
            assert!(wait <= most);
            most = (2 * most).min(BACKOFF_CAP_US);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_jobs_whatever_becomes_of_them() {
        let jobs = |limit| {
            let mut clients = Clients::new(9, 8, Habits::fifty(Retry::FullJitter));
            let mut record = Record::new();
            let mut limiter =
                super::super::OneNode::new(super::super::Algorithm::SlidingLog, limit, SECOND);
            drive(&mut limiter, &mut clients, 20 * SECOND, &mut record);
            let jobs = clients.jobs().iter();
            jobs.map(|job| (job.client, job.born_us))
                .collect::<Vec<_>>()
        };
        assert_eq!(jobs(5), jobs(50));
    }
}
