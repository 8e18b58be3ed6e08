//! Where a URL leads.

use std::net::IpAddr;

/// Whether a URL's host is the machine that asks: a loopback address, or `localhost`,
/// which resolves to nothing else (RFC 6761, 6.3).
#[must_use]
pub fn is_this_machine(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => ip.to_canonical().is_loopback(),
        Ok(ip) => ip.is_loopback(),
        Err(_) => bare.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_this_machine() {
        for here in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "localhost",
            "LocalHost.",
        ] {
            assert!(is_this_machine(here), "{here}");
        }
        for elsewhere in [
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "localhost.example",
            "127.0.0.1.example",
            "notlocalhost",
            "",
        ] {
            assert!(!is_this_machine(elsewhere), "{elsewhere}");
        }
    }
}
