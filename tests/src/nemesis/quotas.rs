//! The keys of a run that time alone gives nothing back to while it lasts: totals that
//! are topped up, periods, permits. What each promises, what it is offered, and how its
//! promise is judged. Knows no fault.

use leasehold_checkers::{
    AdmissionLog, Correction, History, Judgement, PeriodQuota, PeriodSample, Verdict,
    judge_periods, judge_permits, judge_total, period_books, total_books,
};
use serde_json::{Value, json};

use crate::{Load, Manner};

/// What a key promises.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Quota {
    /// So many units, and what operators give.
    Total(u64),
    /// So many units a day, and what operators give.
    Day(PeriodQuota),
    /// So many permits at one moment.
    Permits(u64),
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuotaPlan {
    pub(crate) name: &'static str,
    pub(crate) quota: Quota,
    manner: Manner,
    /// Requests a second of all gateways together.
    per_second: f64,
}

/// All of them.
pub(crate) static QUOTAS: [QuotaPlan; 3] = [
    QuotaPlan {
        name: "nemesis/credit",
        quota: Quota::Total(200),
        manner: Manner::Flood,
        per_second: 60.0,
    },
    QuotaPlan {
        name: "nemesis/day",
        quota: Quota::Day(PeriodQuota {
            limit: 400,
            carry_over: 40,
        }),
        manner: Manner::Honest,
        per_second: 30.0,
    },
    QuotaPlan {
        name: "nemesis/permits",
        quota: Quota::Permits(6),
        manner: Manner::Permits,
        per_second: 80.0,
    },
];

impl QuotaPlan {
    /// What each of so many gateways is offered.
    pub(crate) fn load(&self, gateways: u64) -> Load {
        #[expect(clippy::cast_precision_loss, reason = "a handful of gateways")]
        let per_second = self.per_second / gateways as f64;
        Load {
            key: self.name.to_owned(),
            per_second,
            manner: self.manner,
        }
    }

    /// A budget's body, with the promise as its own policy.
    pub(crate) fn budget(&self) -> Value {
        let policy = match self.quota {
            Quota::Total(limit) => json!({ "kind": "total", "limit": limit }),
            Quota::Day(quota) => json!({
                "kind": "period", "limit": quota.limit, "carry_over": quota.carry_over,
                "period": "day", "time_zone": "Asia/Kathmandu",
            }),
            Quota::Permits(limit) => json!({ "kind": "concurrency", "limit": limit }),
        };
        json!({ "policy": policy })
    }

    /// Units that operators give it at once; none: it is not corrected.
    pub(crate) fn top_up(&self) -> Option<i64> {
        match self.quota {
            Quota::Total(_) => Some(15),
            Quota::Day(_) => Some(10),
            Quota::Permits(_) => None,
        }
    }

    /// How its promise was kept, and its books.
    pub(crate) fn judge(&self, log: &AdmissionLog, history: &History) -> (Judgement, Verdict) {
        let admissions = log.of(self.name);
        let of_key = |key: &str| key == self.name;
        let corrections: Vec<Correction> = (history.corrections.iter())
            .filter(|made| of_key(&made.key))
            .cloned()
            .collect();
        match self.quota {
            Quota::Total(limit) => {
                let samples: Vec<_> = (history.accounts.iter())
                    .filter(|sample| of_key(&sample.key))
                    .cloned()
                    .collect();
                (
                    judge_total(limit, admissions, &corrections),
                    total_books(limit, admissions, &corrections, &samples),
                )
            }
            Quota::Day(quota) => {
                let samples: Vec<_> = (history.periods.iter())
                    .filter(|sample| of_key(&sample.key))
                    .cloned()
                    .collect();
                (
                    judge_periods(quota, admissions, &samples, &corrections),
                    period_books(quota, admissions, &samples, &corrections),
                )
            }
            Quota::Permits(limit) => {
                let looks: Vec<_> = (history.permits.iter())
                    .filter(|look| of_key(&look.key))
                    .cloned()
                    .collect();
                (judge_permits(limit, &looks), Verdict::default())
            }
        }
    }
}

/// The books of a period; none: it has none yet.
pub(crate) fn period_sample(account: &Value, call_ns: u64, return_ns: u64) -> Option<PeriodSample> {
    let period = &account["period"];
    Some(PeriodSample {
        key: account["key"].as_str()?.to_owned(),
        call_ns,
        return_ns,
        number: period["number"].as_u64()?,
        carried: period["carried"].as_u64()?,
        counted: account["counted"].as_u64()?,
        outstanding: account["outstanding"].as_u64()?,
    })
}
