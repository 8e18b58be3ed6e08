//! What all requests share. Knows no socket and no protocol.

use std::sync::Arc;

use http::{HeaderValue, header};
use leasehold_client::http::{Answer, Answers, Reason};
use leasehold_doors::{Kept, ListenerTls, Places};
use tokio::{sync::watch, time::Instant};

use crate::{
    config::Rules,
    decide::{Ask, Decider, Decision},
    metrics::{self, Metrics},
    repeats::Repeats,
    said::Said,
};

/// What is in force, and how it came to be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) rules: Arc<Rules>,
    /// Why the file that is there now was not taken; none: it was.
    pub(crate) problem: Option<String>,
    /// What it says that only a restart brings about.
    pub(crate) needs_restart: Vec<&'static str>,
    /// When it was taken.
    pub(crate) since: Option<Instant>,
}

/// One running agent.
pub(crate) struct Agent {
    pub(crate) decider: Decider,
    pub(crate) answers: Answers,
    pub(crate) repeats: Repeats<Decision>,
    /// Those of gateways.
    pub(crate) connections: Arc<Places>,
    /// Those at work.
    pub(crate) requests: Places,
    /// TLS of the address that gateways connect to.
    pub(crate) tls: Option<Kept<ListenerTls>>,
    pub(crate) metrics: Metrics,
    pub(crate) said: Said,
    pub(crate) standing: watch::Receiver<Standing>,
}

impl Agent {
    pub(crate) fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// The rules of this moment: a request keeps them until it is answered.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.standing.borrow().rules)
    }

    /// What a request is told that there is no room for.
    pub(crate) fn overloaded(&self) -> Answer {
        let mut answer = self.answers.refusal(Reason::ReducedCapacity, None);
        let soon = HeaderValue::from_static("1");
        answer.headers.insert(header::RETRY_AFTER, soon);
        answer
    }

    /// Charges a request, or says what it was told before under its id. `scope` is the
    /// rule that the request came by.
    pub(crate) async fn decide(
        &self,
        scope: &str,
        request_id: Option<&str>,
        ask: &Ask<'_>,
    ) -> Arc<Decision> {
        let Some(id) = request_id else {
            return Arc::new(self.decider.decide(ask).await);
        };
        let name = name_of(scope, id, ask);
        let (decision, is_repeat) = self.repeats.once(&name, self.decider.decide(ask)).await;
        if is_repeat {
            metrics::repeated();
        }
        decision
    }
}

/// The longest request id that is one.
const REQUEST_ID_BYTES_MAX: usize = 256;

/// A request's id, if it is one: each check without it is charged.
pub(crate) fn request_id<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<&'a str> {
    let first = values.next()?;
    let is_one = values.next().is_none() && (1..=REQUEST_ID_BYTES_MAX).contains(&first.len());
    let text = std::str::from_utf8(first).ok()?;
    Some(text).filter(|_| is_one)
}

/// What is the same request: everything that it is charged for, and its id. No header
/// and no key has a line feed, so that no two requests share a name.
fn name_of(scope: &str, id: &str, ask: &Ask<'_>) -> String {
    let mut name = [scope, ask.lane.unwrap_or_default(), id].join("\n");
    for charge in &ask.charges {
        name.push_str(&format!("\n{} {}", charge.units, charge.key));
    }
    name
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use leasehold_client::Key;

    use super::*;
    use crate::{config::Unless, decide::Charge};

    fn name(scope: &str, id: &str, lane: Option<&str>, charges: &[(&str, u64)]) -> String {
        let charge = |(key, units): &(&str, u64)| Charge {
            key: Key::parse(key).unwrap(),
            units: *units,
            only_counted: false,
        };
        let ask = Ask {
            charges: charges.iter().map(charge).collect(),
            lane,
            no_budget: Unless::Deny,
        };
        name_of(scope, id, &ask)
    }

    #[test]
    fn an_id_is_another_requests_with_another_key_cost_lane_or_rule() {
        let names = [
            name("", "id", None, &[("a", 1)]),
            name("", "id", None, &[("b", 1)]),
            name("", "id", None, &[("a", 2)]),
            name("", "id", None, &[("a", 1), ("b", 1)]),
            name("", "id", Some("high"), &[("a", 1)]),
            name("login", "id", None, &[("a", 1)]),
            name("", "id 1 a", None, &[]),
        ];
        for (place, one) in names.iter().enumerate() {
            assert!(!names[..place].contains(one), "{one:?}");
        }
        assert_eq!(names[0], name("", "id", None, &[("a", 1)]));
    }

    #[test]
    fn an_id_that_is_absent_doubled_or_too_long_is_none() {
        let of = |values: &[&'static [u8]]| request_id(values.iter().copied());
        assert_eq!(of(&[b"a-1"]), Some("a-1"));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[b""]), None);
        assert_eq!(of(&[b"a", b"a"]), None);
        assert_eq!(of(&[b"\xff"]), None);
        assert_eq!(of(&[&[b'x'; 257]]), None);
    }
}
