//! Who takes part: names only. Knows nothing of addresses or processes.

use std::fmt;

/// A process with an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Host {
    /// A coordinator, by its node id.
    Node(u64),
    /// A gateway's place, which outlives the processes that take it.
    Gateway(u64),
}

/// Nodes have the first places of a network, gateways the others.
const FIRST_GATEWAY: u64 = 150;

impl Host {
    /// The last part of its addresses; none when there are too many hosts.
    pub(crate) fn octet(self) -> Option<u8> {
        let octet = match self {
            Self::Node(id) if id < FIRST_GATEWAY => id,
            Self::Node(_) => return None,
            Self::Gateway(place) => FIRST_GATEWAY + place,
        };
        u8::try_from(octet).ok().filter(|octet| *octet < 254)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id) => write!(f, "node-{id}"),
            Self::Gateway(place) => write!(f, "gateway-{place}"),
        }
    }
}
