//! Who comes in. Knows nothing of what is asked inside: neither budgets nor routes nor
//! roles.
//!
//! Whoever serves requests finds a [`Caller`] among a request's extensions, put there by
//! the connection on which the request came.

use std::net::SocketAddr;

/// The other end of a connection, as far as the connection itself shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Where it calls from; none on a Unix socket.
    pub addr: Option<SocketAddr>,
    /// The certificate that it showed, if it showed one: it is valid, and its key is in
    /// the caller's hands.
    pub certificate: Option<Certificate>,
}

/// What a caller's certificate says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whom it names: its first DNS name, otherwise its common name.
    pub name: String,
    /// Signed by the authority of the coordinators, not by the one of their clients.
    pub is_node: bool,
}
