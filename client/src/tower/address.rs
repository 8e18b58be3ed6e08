//! The address that a request comes from, for callers of whom nothing else is known.
//! Knows no server: where the peer's address is kept is told.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use http::{HeaderName, request::Parts};
use ipnet::{IpNet, Ipv6Net};

use super::identity::{Found, Identify};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// What one customer of an access provider usually has.
const V6_PREFIX: u8 = 64;

type Peer = dyn Fn(&Parts) -> Option<SocketAddr> + Send + Sync;

/// The address that a request comes from. Of IPv6 a whole prefix is one caller, 64 bits
/// unless said otherwise, since who has one address there has all of it.
///
/// An address is not an identity: many share one, and one may have many. Use it where
/// nobody is authenticated, beside [`Charge::or`](super::Charge::or).
///
/// ```
/// use std::net::SocketAddr;
/// use leasehold_client::tower::Address;
///
/// // axum: `Address::peer(|info: &ConnectInfo<SocketAddr>| Some(info.0))`
/// // tonic: `Address::peer(TcpConnectInfo::remote_addr)`
/// let address = Address::peer(|peer: &SocketAddr| Some(*peer))
///     .behind(["10.0.0.0/8".parse()?, "2001:db8:5::/48".parse()?]);
/// # let _ = address;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Address {
    peer: Arc<Peer>,
    trusted: Vec<IpNet>,
    v6_prefix: u8,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("trusted", &self.trusted)
            .field("v6_prefix", &self.v6_prefix)
            .finish_non_exhaustive()
    }
}

impl Address {
    /// The address of the peer, from the extension of the request in which the server
    /// keeps it. Without that extension the identity is missing.
    pub fn peer<T: Send + Sync + 'static>(
        peer: impl Fn(&T) -> Option<SocketAddr> + Send + Sync + 'static,
    ) -> Self {
        Self {
            peer: Arc::new(move |request| peer(request.extensions.get::<T>()?)),
            trusted: Vec::new(),
            v6_prefix: V6_PREFIX,
        }
    }

    /// The proxies in front of this server, which append the address that they were
    /// called from to `X-Forwarded-For`. The header counts only if the peer is one of
    /// them, and is read from the right: each trusted proxy vouches for the entry to its
    /// left, and the first address that is none of them is the caller. What is further
    /// left is what the caller says of itself, and is not looked at.
    ///
    /// An entry that is no address, where one is vouched for, is unclear. A trusted proxy
    /// that sends no header is taken for the caller.
    #[must_use]
    pub fn behind(mut self, trusted: impl IntoIterator<Item = IpNet>) -> Self {
        self.trusted.extend(trusted);
        self
    }

    /// How many bits of an IPv6 address are one caller; more than 128 are 128.
    #[must_use]
    pub fn v6_prefix(mut self, bits: u8) -> Self {
        self.v6_prefix = bits.min(128);
        self
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted
            .iter()
            .any(|network| network.contains(&address))
    }

    /// The caller's address; an error where a trusted proxy states none.
    fn caller(&self, peer: IpAddr, request: &Parts) -> Result<IpAddr, NoAddress> {
        let mut caller = peer.to_canonical();
        if !self.trusts(caller) {
            return Ok(caller);
        }
        let fields = request.headers.get_all(FORWARDED_FOR);
        let fields: Vec<&[u8]> = fields.iter().map(|field| field.as_bytes()).collect();
        let entries = fields
            .iter()
            .rev()
            .flat_map(|field| field.rsplit(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|entry| !entry.is_empty());
        for entry in entries {
            caller = address_in(entry).ok_or(NoAddress)?;
            if !self.trusts(caller) {
                break;
            }
        }
        Ok(caller)
    }
}

/// An entry of the header that is no address.
struct NoAddress;

impl Identify for Address {
    fn identify(&self, request: &Parts) -> Found {
        let Some(peer) = (self.peer)(request) else {
            return Found::Missing;
        };
        match self.caller(peer.ip(), request) {
            Ok(IpAddr::V4(address)) => Found::Identity(address.to_string()),
            Ok(IpAddr::V6(address)) => {
                let network = Ipv6Net::new(address, self.v6_prefix);
                network.map_or(Found::Unclear, |network| {
                    Found::Identity(network.trunc().to_string())
                })
            }
            Err(NoAddress) => Found::Unclear,
        }
    }
}

/// `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:4711`.
fn address_in(entry: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(entry).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    };
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    address
        .or_else(with_port)
        .map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use http::Request;
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone)]
    struct From(&'static str);

    fn address() -> Address {
        Address::peer(|peer: &From| peer.0.parse().ok().map(|ip| SocketAddr::new(ip, 4711)))
    }

    fn behind_proxies() -> Address {
        let trusted = ["10.0.0.0/8", "2001:db8:5::/48"];
        address().behind(trusted.map(|network| network.parse().unwrap()))
    }

    fn found(address: &Address, peer: &'static str, forwarded_for: &[&str]) -> String {
        let mut request = Request::builder();
        for field in forwarded_for {
            request = request.header("X-Forwarded-For", *field);
        }
        let mut request = request.body(()).unwrap().into_parts().0;
        request.extensions.insert(From(peer));
        match address.identify(&request) {
            Found::Identity(identity) => identity,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn an_address_is_a_caller_and_of_ipv6_a_prefix() {
        let address = address();
        assert_eq!(found(&address, "192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(
            found(&address, "2001:db8:1:2:3:4:5:6", &[]),
            "2001:db8:1:2::/64"
        );
        let wider = address.clone().v6_prefix(56);
        assert_eq!(
            found(&wider, "2001:db8:1:2ff::1", &[]),
            "2001:db8:1:200::/56"
        );
        let exact = address.clone().v6_prefix(200);
        assert_eq!(found(&exact, "2001:db8::1", &[]), "2001:db8::1/128");
        // As prefixes of IPv6 all addresses of IPv4 would be one caller.
        assert_eq!(found(&address, "::ffff:192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(found(&address, "no address", &[]), "Missing");
        let request = Request::new(()).into_parts().0;
        assert_eq!(address.identify(&request), Found::Missing);
    }

    #[test]
    fn the_header_counts_only_from_a_trusted_proxy() {
        let spoofed = ["203.0.113.7"];
        assert_eq!(found(&address(), "192.0.2.1", &spoofed), "192.0.2.1");
        assert_eq!(found(&behind_proxies(), "192.0.2.1", &spoofed), "192.0.2.1");
        assert_eq!(
            found(&behind_proxies(), "10.0.0.1", &spoofed),
            "203.0.113.7"
        );
        assert_eq!(
            found(&behind_proxies(), "::ffff:10.0.0.1", &spoofed),
            "203.0.113.7"
        );
        assert_eq!(found(&behind_proxies(), "10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn the_first_from_the_right_that_is_no_proxy_is_the_caller() {
        let caller = |fields: &[&str]| found(&behind_proxies(), "10.0.0.1", fields);
        assert_eq!(caller(&["1.1.1.1, 203.0.113.7, 10.9.9.9"]), "203.0.113.7");
        assert_eq!(caller(&["1.1.1.1, 203.0.113.7", "10.9.9.9"]), "203.0.113.7");
        assert_eq!(
            caller(&["1.1.1.1,[2001:db8:7::1]:80 , 2001:db8:5::9"]),
            "2001:db8:7::/64"
        );
        assert_eq!(caller(&["10.2.2.2, 10.1.1.1,"]), "10.2.2.2");
        assert_eq!(caller(&["203.0.113.7:1234"]), "203.0.113.7");
        assert_eq!(caller(&["::ffff:203.0.113.7"]), "203.0.113.7");
        // A caller who claims to be a proxy is not believed: the one before vouches for it.
        assert_eq!(caller(&["10.0.0.66, 203.0.113.7"]), "203.0.113.7");
        assert_eq!(caller(&["junk, 203.0.113.7"]), "203.0.113.7");
        for unclear in ["unknown", "203.0.113.7, _hidden", "[203.0.113.7]", "\u{e9}"] {
            assert_eq!(caller(&[unclear]), "Unclear", "{unclear}");
        }
    }

    proptest! {
        #[test]
        fn what_callers_put_in_front_changes_nothing(spoofed in "[ -~]{0,80}") {
            let fields = [spoofed.as_str(), "203.0.113.7, 10.1.1.1"];
            prop_assert_eq!(found(&behind_proxies(), "10.0.0.1", &fields), "203.0.113.7");
            let one = format!("{spoofed},203.0.113.7");
            prop_assert_eq!(found(&behind_proxies(), "10.0.0.1", &[&one]), "203.0.113.7");
            prop_assert_eq!(found(&behind_proxies(), "192.0.2.1", &[&one]), "192.0.2.1");
        }
    }
}
