//! The layer, and what it does about a request before anybody serves it. Knows no server.

use std::{fmt, sync::Arc};

use http::request::Parts;
use tower_layer::Layer;

use super::{
    charge::{Charge, Due},
    service::QuotaService,
};
use crate::{
    Budget, BudgetError, Client,
    http::{Answer, Answers, Reason},
};

type Exempt = dyn Fn(&Parts) -> bool + Send + Sync;
type InLane = dyn Fn(&Parts) -> Option<String> + Send + Sync;
type Hook = dyn Fn(&Parts, &mut Answer) + Send + Sync;

/// What becomes of a request that lacks the identity of a charge, where
/// [`Charge::or`] does not say what it pays instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// It is refused: 403, in gRPC `UNAUTHENTICATED`.
    #[default]
    Refuse,
    /// It does not pay that charge, and **nothing at all** if there is no other: whoever
    /// leaves their name out has no limit.
    Pass,
}

/// A `tower` layer that spends units for each request, refuses those that get none, and
/// adds the header fields of [`Answers`] to the responses of the others.
///
/// Cheap to clone. Without a [`charge`](Self::charge) it does nothing.
#[derive(Clone, Debug)]
pub struct QuotaLayer {
    rules: Arc<Rules>,
}

#[derive(Clone)]
pub(super) struct Rules {
    client: Client,
    charges: Vec<Charge>,
    exempt: Vec<Arc<Exempt>>,
    lane: Option<Arc<InLane>>,
    missing: Missing,
    answers: Answers,
    hook: Option<Arc<Hook>>,
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("charges", &self.charges)
            .field("missing", &self.missing)
            .field("answers", &self.answers)
            .finish_non_exhaustive()
    }
}

impl QuotaLayer {
    /// A layer that charges nothing yet.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self {
            rules: Arc::new(Rules {
                client: client.clone(),
                charges: Vec::new(),
                exempt: Vec::new(),
                lane: None,
                missing: Missing::default(),
                answers: Answers::default(),
                hook: None,
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Rules)) -> Self {
        change(Arc::make_mut(&mut self.rules));
        self
    }

    /// Has requests pay this too: all of their charges or none.
    #[must_use]
    pub fn charge(self, charge: Charge) -> Self {
        self.with(|rules| rules.charges.push(charge))
    }

    /// Lets requests pass that this is true of, uncharged and unmarked.
    #[must_use]
    pub fn exempt(self, is_exempt: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.exempt.push(Arc::new(is_exempt)))
    }

    /// The lane of each request, by name; none, or a name that a policy does not have,
    /// is its lowest.
    #[must_use]
    pub fn lane<L: Into<String>>(
        self,
        lane: impl Fn(&Parts) -> Option<L> + Send + Sync + 'static,
    ) -> Self {
        self.with(|rules| rules.lane = Some(Arc::new(move |request| lane(request).map(Into::into))))
    }

    /// What becomes of requests that lack an identity.
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        self.with(|rules| rules.missing = missing)
    }

    /// How answers are rendered.
    #[must_use]
    pub fn answers(self, answers: Answers) -> Self {
        self.with(|rules| rules.answers = answers)
    }

    /// Changes answers before they are sent: status, header fields and body of a refusal,
    /// the header fields of the others. A refusal over gRPC is made of
    /// [`Answer::reason`], `retry_after` and `headers`.
    #[must_use]
    pub fn on_answer(self, hook: impl Fn(&Parts, &mut Answer) + Send + Sync + 'static) -> Self {
        self.with(|rules| rules.hook = Some(Arc::new(hook)))
    }
}

impl<S> Layer<S> for QuotaLayer {
    type Service = QuotaService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        QuotaService::new(inner, Arc::clone(&self.rules))
    }
}

/// Why a request is refused without asking any budget.
enum Unasked {
    For(Reason),
    /// The client has as many keys as it may.
    NoRoom(BudgetError),
}

impl Rules {
    /// What the request is told; none: nothing, it is let through as it is.
    pub(super) async fn judge(&self, request: &Parts) -> Option<Answer> {
        if self.exempt.iter().any(|is_exempt| is_exempt(request)) {
            return None;
        }
        let mut answer = match self.parts(request) {
            Ok(parts) if parts.is_empty() => return None,
            Ok(parts) => self.spend(request, parts).await,
            Err(Unasked::For(reason)) => self.answers.refusal(reason, None),
            Err(Unasked::NoRoom(error)) => self.answers.no_room(&error),
        };
        if let Some(hook) = &self.hook {
            hook(request, &mut answer);
        }
        Some(answer)
    }

    /// What the request has to pay.
    fn parts(&self, request: &Parts) -> Result<Vec<(Budget, u64)>, Unasked> {
        let mut parts = Vec::with_capacity(self.charges.len());
        for charge in &self.charges {
            let (key, units) = match charge.due(request) {
                Due::Of(key, units) => (key, units),
                Due::Nobody if self.missing == Missing::Pass => continue,
                Due::Nobody => return Err(Unasked::For(Reason::NoIdentity)),
                Due::Refused(reason) => return Err(Unasked::For(reason)),
            };
            let budget = self.client.budget_of(key).map_err(Unasked::NoRoom)?;
            parts.push((budget, units));
        }
        Ok(parts)
    }

    async fn spend(&self, request: &Parts, parts: Vec<(Budget, u64)>) -> Answer {
        let parts: Vec<(&Budget, u64)> = parts
            .iter()
            .map(|(budget, units)| (budget, *units))
            .collect();
        let listed = parts.iter().copied();
        let lane = self.lane.as_ref().and_then(|lane| lane(request));
        let told = match lane {
            Some(lane) => self.client.spend_all_in(&lane, listed).await,
            None => self.client.spend_all(listed).await,
        };
        self.answers.answer(&told, &parts)
    }
}
