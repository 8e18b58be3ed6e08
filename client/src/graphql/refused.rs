//! Why a query has no cost. The texts say nothing that its caller does not know.

use thiserror::Error;

/// A query that must not be executed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// The body is no request of GraphQL over HTTP.
    #[error(
        "the body is not a GraphQL request: a JSON object with query, operationName, variables"
    )]
    NotARequest,
    /// The request has no text of a query.
    #[error("the request has no query")]
    NoQuery,
    /// Too many requests in one body.
    #[error("the body has more than {max} requests")]
    BatchTooLong {
        /// The most.
        max: usize,
    },
    /// The text is no query.
    #[error("the query cannot be read: {0}")]
    Syntax(String),
    /// Too many tokens.
    #[error("the query has more than {max} tokens")]
    TooLong {
        /// The most.
        max: usize,
    },
    /// It has definitions of types.
    #[error("the query defines more than operations and fragments")]
    NotExecutable,
    /// There is no such operation.
    #[error("the query has no operation of that name, or none at all")]
    NoOperation,
    /// There are several, and none is named.
    #[error("the query has several operations: operationName must name one")]
    SeveralOperations,
    /// Something is defined twice.
    #[error("{0} is defined twice")]
    Twice(String),
    /// A fragment is used that is not there.
    #[error("there is no fragment {0}")]
    NoFragment(String),
    /// A fragment contains itself.
    #[error("fragment {0} contains itself")]
    Cycle(String),
    /// A variable is used that the operation does not define.
    #[error("there is no variable ${0}")]
    NoVariable(String),
    /// What says how many items there are is not such a number.
    #[error("{argument} of {field} is not a whole number of 0 or more")]
    BadCount {
        /// The field.
        field: String,
        /// Its argument.
        argument: String,
    },
    /// Too many fields are within each other.
    #[error("the query is deeper than {max} fields")]
    TooDeep {
        /// The most.
        max: u32,
    },
    /// Too many fields are beside each other.
    #[error("a selection of the query has more than {max} fields")]
    TooBroad {
        /// The most.
        max: u64,
    },
    /// It costs too much.
    #[error("the query costs more than {max}")]
    TooExpensive {
        /// The most.
        max: u64,
    },
}
