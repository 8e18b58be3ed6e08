//! `[limits]`: what those who connect may take of one node. Knows nothing of how they are
//! kept to it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, invalid};

/// What those who connect may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections of each listener.
    pub connections_max: usize,
    /// And of one address.
    pub connections_per_address_max: usize,
    /// The most requests in flight.
    pub requests_max: usize,
    /// And of one identity, where identities are told apart.
    pub per_identity: PerIdentity,
    /// The most bytes of a request's head.
    pub header_bytes_max: usize,
    /// The most bytes of a path with its query.
    pub url_bytes_max: usize,
    /// From a connection's beginning to the end of its handshake.
    pub handshake: Duration,
    /// From the beginning of a request's head to its end.
    pub header: Duration,
    /// How long a request's body may take to come.
    pub body: Duration,
    /// How long a connection is kept on which nothing is asked.
    pub idle: Duration,
}

/// What one identity may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerIdentity {
    /// The most connections, of all listeners.
    pub connections_max: usize,
    /// The most sessions' streams.
    pub streams_max: usize,
    /// The most requests in flight.
    pub requests_max: usize,
    /// The most accounts that are there because it asked for units of them, as far as the
    /// leader remembers.
    pub accounts_max: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) connections_max: u64,
    pub(super) connections_per_address_max: u64,
    pub(super) requests_max: u64,
    pub(super) connections_per_identity_max: u64,
    pub(super) streams_per_identity_max: u64,
    pub(super) requests_per_identity_max: u64,
    pub(super) accounts_per_identity_max: u64,
    pub(super) header_bytes_max: u64,
    pub(super) url_bytes_max: u64,
    pub(super) handshake_ms: u64,
    pub(super) header_ms: u64,
    pub(super) body_ms: u64,
    pub(super) idle_ms: u64,
}

impl Default for RawLimits {
    fn default() -> Self {
        Self {
            connections_max: 32_768,
            connections_per_address_max: 4_096,
            requests_max: 4_096,
            connections_per_identity_max: 16_384,
            streams_per_identity_max: 16_384,
            requests_per_identity_max: 1_024,
            accounts_per_identity_max: 500_000,
            header_bytes_max: 16_384,
            url_bytes_max: 8_192,
            handshake_ms: 10_000,
            header_ms: 10_000,
            body_ms: 30_000,
            idle_ms: 300_000,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let raw = RawLimits::default();
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Self {
            connections_max: size(raw.connections_max),
            connections_per_address_max: size(raw.connections_per_address_max),
            requests_max: size(raw.requests_max),
            per_identity: PerIdentity {
                connections_max: size(raw.connections_per_identity_max),
                streams_max: size(raw.streams_per_identity_max),
                requests_max: size(raw.requests_per_identity_max),
                accounts_max: size(raw.accounts_per_identity_max),
            },
            header_bytes_max: size(raw.header_bytes_max),
            url_bytes_max: size(raw.url_bytes_max),
            handshake: Duration::from_millis(raw.handshake_ms),
            header: Duration::from_millis(raw.header_ms),
            body: Duration::from_millis(raw.body_ms),
            idle: Duration::from_millis(raw.idle_ms),
        }
    }
}

impl RawLimits {
    pub(super) fn check(&self) -> Result<Limits, ConfigError> {
        let within = |name: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                return invalid(format!("limits.{name} ({value}) must be {least} to {most}"));
            }
            Ok(usize::try_from(value).unwrap_or(usize::MAX))
        };
        let time = |name: &str, ms: u64, most: u64| {
            within(name, ms, 100, most).map(|_| Duration::from_millis(ms))
        };
        Ok(Limits {
            connections_max: within("connections_max", self.connections_max, 1, 1 << 20)?,
            connections_per_address_max: within(
                "connections_per_address_max",
                self.connections_per_address_max,
                1,
                1 << 20,
            )?,
            requests_max: within("requests_max", self.requests_max, 1, 1 << 20)?,
            per_identity: PerIdentity {
                connections_max: within(
                    "connections_per_identity_max",
                    self.connections_per_identity_max,
                    1,
                    1 << 20,
                )?,
                streams_max: within(
                    "streams_per_identity_max",
                    self.streams_per_identity_max,
                    1,
                    1 << 20,
                )?,
                requests_max: within(
                    "requests_per_identity_max",
                    self.requests_per_identity_max,
                    1,
                    1 << 20,
                )?,
                accounts_max: within(
                    "accounts_per_identity_max",
                    self.accounts_per_identity_max,
                    1,
                    100_000_000,
                )?,
            },
            header_bytes_max: within("header_bytes_max", self.header_bytes_max, 8_192, 1 << 20)?,
            url_bytes_max: within("url_bytes_max", self.url_bytes_max, 1_024, 65_534)?,
            handshake: time("handshake_ms", self.handshake_ms, 600_000)?,
            header: time("header_ms", self.header_ms, 600_000)?,
            body: time("body_ms", self.body_ms, 600_000)?,
            idle: time("idle_ms", self.idle_ms, 86_400_000)?,
        })
    }
}
