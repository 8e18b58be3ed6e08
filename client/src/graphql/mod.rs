//! What a GraphQL query costs, before anybody executes it. Knows no schema, no server and
//! no budgets: a cost is a number of units to spend.
//!
//! # How it is counted
//!
//! - A field with a selection set is an object, and costs 1; a field without one is a
//!   leaf, and costs nothing. [`Costs::weight`] says otherwise for fields of a name.
//! - `first: n` and `last: n` (and what else [`Costs::multiplier`] names) mean that there
//!   are n of it: the field costs n times as much, and so does everything within. 0 of it
//!   are counted as one, since nobody knows what a server makes of it.
//! - A field that is a list without such an argument counts once, unless
//!   [`Costs::list`] says how many items it has.
//!
//! So `query { user { repos(first: 100) { issues(first: 50) { title } } } }` costs one
//! user, 100 repos and 5,000 issues: 5,101.
//!
//! It is the most that the query can make a server do, as far as that can be told from
//! the query: all fragments on all types count, conditions (`@skip`, `@include`) are taken
//! to let everything through, and a field that is selected twice counts twice.
//!
//! # Hostile queries
//!
//! The time it takes grows with the length of the query and with nothing else: a fragment
//! is looked at once, however often it is used. Depth, breadth, tokens and requests in a
//! batch are capped, fragments that contain themselves are refused, and so is a cost that
//! no number can hold. What servers may read in two ways (a fragment, an operation or a
//! variable that is defined twice, a field of the body that is given twice or whose name
//! differs in case only) is refused rather than guessed. A query in the URL is not looked
//! at: let your server take none there.
//!
//! ```
//! use leasehold_client::graphql::Costs;
//!
//! let costs = Costs::default().weight("search", 20).weight("edges", 0);
//! let body = br#"{"query": "query($n: Int = 50) { search { edges(first: $n) { id } } }"}"#;
//! assert_eq!(costs.of_body(body)?, 20);
//! # Ok::<(), leasehold_client::graphql::Refused>(())
//! ```

mod body;
mod refused;
mod walk;

use std::collections::HashMap;

use serde_json::Value;

use body::Body;
pub use refused::Refused;

/// What fields cost, and how much a query may be.
#[derive(Clone, Debug)]
pub struct Costs {
    weights: HashMap<String, u64>,
    lists: HashMap<String, u64>,
    multipliers: Vec<String>,
    depth_max: u32,
    breadth_max: u64,
    tokens_max: usize,
    batch_max: usize,
    points_max: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            weights: HashMap::new(),
            lists: HashMap::new(),
            multipliers: vec!["first".to_owned(), "last".to_owned()],
            depth_max: 15,
            breadth_max: 200,
            tokens_max: 10_000,
            batch_max: 10,
            points_max: u64::MAX,
        }
    }
}

impl Costs {
    /// What a field of this name costs, wherever it is, instead of 1 if it is an object
    /// and 0 if it is a leaf. 0 suits the wrappers of connections (`edges`, `node`).
    #[must_use]
    pub fn weight(mut self, field: impl Into<String>, points: u64) -> Self {
        self.weights.insert(field.into(), points);
        self
    }

    /// How many items a field of this name has if no argument says it.
    #[must_use]
    pub fn list(mut self, field: impl Into<String>, items: u64) -> Self {
        self.lists.insert(field.into(), items);
        self
    }

    /// Another argument that says how many items there are, besides `first` and `last`.
    /// Of several that a field has the greatest counts.
    #[must_use]
    pub fn multiplier(mut self, argument: impl Into<String>) -> Self {
        self.multipliers.push(argument.into());
        self
    }

    /// How many fields may be within each other: 15 unless said otherwise, 100 at most.
    #[must_use]
    pub fn depth_max(mut self, fields: u32) -> Self {
        self.depth_max = fields.min(walk::NESTING_MAX / 2);
        self
    }

    /// How many fields one selection may have, those of its fragments included: 200
    /// unless said otherwise.
    #[must_use]
    pub fn breadth_max(mut self, fields: u64) -> Self {
        self.breadth_max = fields;
        self
    }

    /// How many tokens a query may have, spaces and comments included: 10,000 unless said
    /// otherwise.
    #[must_use]
    pub fn tokens_max(mut self, tokens: usize) -> Self {
        self.tokens_max = tokens;
        self
    }

    /// How many requests one body may have: 10 unless said otherwise.
    #[must_use]
    pub fn batch_max(mut self, requests: usize) -> Self {
        self.batch_max = requests;
        self
    }

    /// The most that a body may cost, whatever the caller's quota is: no bound unless
    /// said otherwise.
    #[must_use]
    pub fn points_max(mut self, points: u64) -> Self {
        self.points_max = points;
        self
    }

    /// The cost of a body of a request over HTTP: a JSON object with `query`,
    /// `operationName` and `variables`, or an array of such.
    ///
    /// # Errors
    /// When it is no such body, or a query is refused. A body without a text of a query
    /// (a hash of one that the server knows) is refused.
    pub fn of_body(&self, body: &[u8]) -> Result<u64, Refused> {
        let body = Body::read(body).ok_or(Refused::NotARequest)?;
        let batch = match body {
            Body::One(request) => vec![request],
            Body::Batch(batch) => batch,
        };
        if batch.len() > self.batch_max {
            let max = self.batch_max;
            return Err(Refused::BatchTooLong { max });
        }
        let mut points: u64 = 0;
        for request in &batch {
            let query = request.query.as_deref().ok_or(Refused::NoQuery)?;
            let name = request.operation_name.as_deref();
            points = points.saturating_add(self.of(query, name, &request.variables)?);
        }
        self.checked(points)
    }

    /// The cost of one operation of a document: of the one with that name, or of the only
    /// one. `variables` is an object, or null.
    ///
    /// # Errors
    /// When the document is no query, it has no such operation, or what it asks for is
    /// beyond a bound.
    pub fn of(
        &self,
        query: &str,
        operation_name: Option<&str>,
        variables: &Value,
    ) -> Result<u64, Refused> {
        self.checked(walk::points(self, query, operation_name, variables)?)
    }

    fn checked(&self, points: u64) -> Result<u64, Refused> {
        // The greatest number stands for everything above it.
        if points == u64::MAX || points > self.points_max {
            let max = self.points_max;
            return Err(Refused::TooExpensive { max });
        }
        Ok(points)
    }
}

#[cfg(test)]
mod tests;
