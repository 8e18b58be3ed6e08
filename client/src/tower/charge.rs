//! What a request pays, and from which key. Knows neither the client nor the server.

use std::{borrow::Cow, fmt, sync::Arc};

use http::request::Parts;
use leasehold_key::{Key, KeyError};

use super::identity::{Found, Identify, hashed, segment};
use crate::http::Reason;

type Cost = dyn Fn(&Parts) -> u64 + Send + Sync;

/// One of the budgets that a request pays from: its key, and how many units.
#[derive(Clone)]
pub struct Charge {
    base: Key,
    by: Vec<Arc<dyn Identify>>,
    cost: Option<Arc<Cost>>,
    otherwise: Option<Box<Charge>>,
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("base", &self.base)
            .field("by", &self.by.len())
            .field("otherwise", &self.otherwise)
            .finish_non_exhaustive()
    }
}

/// What a charge comes to for one request.
pub(super) enum Due {
    /// So many units of this key.
    Of(Key, u64),
    /// The request does not say whose key.
    Nobody,
    /// It must be refused.
    Refused(Reason),
}

impl Charge {
    /// A charge of one unit of this key, or of the keys below it that
    /// [`by`](Self::by) leads to.
    ///
    /// # Errors
    /// When the text is not a key.
    pub fn to(key: &str) -> Result<Self, KeyError> {
        Ok(Self {
            base: Key::parse(key)?,
            by: Vec::new(),
            cost: None,
            otherwise: None,
        })
    }

    /// Appends a segment to the key: who the request is from.
    #[must_use]
    pub fn by(mut self, who: impl Identify) -> Self {
        self.by.push(Arc::new(who));
        self
    }

    /// How many units the request costs. What no quota allows is refused for good, so
    /// `u64::MAX` refuses the request; 0 costs nothing and is always admitted.
    #[must_use]
    pub fn cost(mut self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// What requests pay instead that lack one of the identities: the quota of callers
    /// who are not known. Its key should begin otherwise, so that nobody's name is one of
    /// its segments.
    ///
    /// ```
    /// # use std::net::SocketAddr;
    /// # use leasehold_client::tower::{Address, Charge, extension};
    /// # struct Caller { user: String }
    /// let charge = Charge::to("user")?
    ///     .by(extension(|caller: &Caller| caller.user.clone()))
    ///     .or(Charge::to("anonymous")?.by(Address::peer(|peer: &SocketAddr| Some(*peer))));
    /// # let _ = charge;
    /// # Ok::<(), leasehold_client::KeyError>(())
    /// ```
    #[must_use]
    pub fn or(mut self, otherwise: Self) -> Self {
        self.otherwise = Some(Box::new(match self.otherwise.take() {
            Some(first) => first.or(otherwise),
            None => otherwise,
        }));
        self
    }

    pub(super) fn due(&self, request: &Parts) -> Due {
        let mut identities = Vec::with_capacity(self.by.len());
        for who in &self.by {
            match who.identify(request) {
                Found::Identity(identity) if !identity.is_empty() => identities.push(identity),
                Found::Identity(_) | Found::Missing => {
                    let otherwise = self.otherwise.as_ref();
                    return otherwise.map_or(Due::Nobody, |charge| charge.due(request));
                }
                Found::Unclear => return Due::Refused(Reason::BadIdentity),
            }
        }
        match self.key(&identities) {
            Ok(key) => Due::Of(key, self.cost.as_ref().map_or(1, |cost| cost(request))),
            Err(error) => {
                tracing::error!(base = %self.base, %error, "the layer's charge leads to no key");
                Due::Refused(Reason::Misconfigured)
            }
        }
    }

    fn key(&self, identities: &[String]) -> Result<Key, KeyError> {
        if identities.is_empty() {
            return Ok(self.base.clone());
        }
        let segments: Vec<Cow<'_, str>> = identities.iter().map(|who| segment(who)).collect();
        match self.base.with_segments(&segments) {
            // Each is short enough, and all together are not.
            Err(KeyError::TooLong { .. }) => self
                .base
                .with_segments(identities.iter().map(|who| hashed(who))),
            made => made,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use http::{HeaderName, Request};

    use super::*;
    use crate::tower::header;

    fn by(name: &'static str) -> impl Identify {
        header(HeaderName::from_static(name))
    }

    fn due(charge: &Charge, headers: &[(&str, &str)]) -> String {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match charge.due(&request.body(()).unwrap().into_parts().0) {
            Due::Of(key, units) => format!("{units} of {}", key.as_str()),
            Due::Nobody => "nobody".to_owned(),
            Due::Refused(reason) => format!("{reason:?}"),
        }
    }

    #[test]
    fn a_key_is_its_base_and_a_segment_for_each_identity() {
        let charge = Charge::to("shop/api")
            .unwrap()
            .by(by("tenant"))
            .by(by("user"));
        let ada = [("tenant", "acme"), ("user", "ada/../eve")];
        assert_eq!(due(&charge, &ada), "1 of shop/api/acme/ada%2F..%2Feve");
        let charge = charge.cost(|request| request.headers.len() as u64 * 10);
        assert_eq!(due(&charge, &ada[..1]), "nobody");
        assert_eq!(due(&charge, &ada), "20 of shop/api/acme/ada%2F..%2Feve");
        assert!(Charge::to("").is_err() && Charge::to("a/*").is_err());
        assert_eq!(due(&Charge::to("global").unwrap(), &[]), "1 of global");
    }

    #[test]
    fn who_is_not_known_pays_otherwise_if_there_is_such_a_charge() {
        let charge = Charge::to("user").unwrap().by(by("user"));
        assert_eq!(due(&charge, &[("user", "")]), "nobody");
        let charge = charge
            .or(Charge::to("device").unwrap().by(by("device")))
            .or(Charge::to("anonymous").unwrap());
        assert_eq!(due(&charge, &[("user", "ada")]), "1 of user/ada");
        assert_eq!(due(&charge, &[("device", "d-1")]), "1 of device/d-1");
        assert_eq!(due(&charge, &[]), "1 of anonymous");
        let twice = [("user", "ada"), ("user", "eve")];
        assert_eq!(due(&charge, &twice), "BadIdentity");
    }

    #[test]
    fn identities_that_are_too_long_together_are_hashed() {
        let names = ["a", "b", "c", "d"];
        let charge = names
            .iter()
            .fold(Charge::to("k").unwrap(), |charge, name| charge.by(by(name)));
        let (long, longer) = ("é".repeat(60), "é".repeat(61));
        let keys = [&long, &longer].map(|last| {
            let headers = [("a", "x"), ("b", &long), ("c", &long), ("d", last)];
            due(&charge, &headers)
        });
        assert!(keys[0].starts_with("1 of k/sha256:"), "{keys:?}");
        assert_ne!(keys[0], keys[1]);
        let many = (0..16).fold(Charge::to("k").unwrap(), |charge, _| charge.by(by("a")));
        assert_eq!(due(&many, &[("a", "x")]), "Misconfigured");
    }
}
