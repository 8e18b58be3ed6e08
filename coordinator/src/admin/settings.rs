//! `/v1/settings`: what is the same on every node of the cluster.

use axum::{
    extract::{OriginalUri, State},
    http::HeaderMap,
    response::Response,
};
use leasehold_ledger::{
    KINDS_SINCE,
    edit::{Expect, RuleChange},
    outcome::CommandRefusal,
    settings::Settings,
};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{
    Admin,
    edit::{Circumstances, ConditionHeaders, PutAnswer, Tagged, Trial},
    json::{self, Body, Whole, micros},
    path,
    policies::check_name,
    problem::{Kind, Problem},
};

/// Settings of the whole cluster.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SettingsBody {
    /// How long a session lives without a renewal.
    session_ttl_ms: u64,
    /// How often gateways sync.
    sync_interval_ms: u64,
    /// How much any monotonic clock may be off, in parts per million.
    max_drift_ppm: u32,
    /// The policy of keys that no budget matches; null: they are refused.
    default_policy: Option<String>,
    /// Sessions alive at once per identity.
    sessions_per_identity_max: u32,
    /// Keys that one session may hold leases of.
    keys_per_session_max: u32,
    /// Accounts alive at once per budget.
    accounts_per_pattern_max: u64,
    /// How long an expired session can still be settled.
    tombstone_ttl_ms: u64,
    /// How long a spend that was admitted under an `Idempotency-Key` is known.
    idempotency_ttl_ms: u64,
    /// How many of those are known at once.
    idempotency_keys_max: u64,
    /// The region that the leader should be in; null: any.
    preferred_leader_region: Option<String>,
}

impl From<&Settings> for SettingsBody {
    fn from(settings: &Settings) -> Self {
        Self {
            session_ttl_ms: settings.session_ttl_us / 1_000,
            sync_interval_ms: settings.sync_interval_us / 1_000,
            max_drift_ppm: settings.max_drift_ppm,
            default_policy: settings.default_policy.clone(),
            sessions_per_identity_max: settings.sessions_per_identity_max,
            keys_per_session_max: settings.keys_per_session_max,
            accounts_per_pattern_max: settings.accounts_per_pattern_max,
            tombstone_ttl_ms: settings.tombstone_ttl_us / 1_000,
            idempotency_ttl_ms: settings.idempotency_ttl_us / 1_000,
            idempotency_keys_max: settings.idempotency_keys_max,
            preferred_leader_region: settings.preferred_leader_region.clone(),
        }
    }
}

/// Settings to change; what is absent stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"session_ttl_ms": 10000, "default_policy": null}))]
pub(super) struct SettingsEdit {
    #[serde(default)]
    session_ttl_ms: Option<Whole>,
    #[serde(default)]
    sync_interval_ms: Option<Whole>,
    #[serde(default)]
    max_drift_ppm: Option<Whole>,
    /// null: keys that no budget matches are refused.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    default_policy: Option<Option<String>>,
    #[serde(default)]
    sessions_per_identity_max: Option<Whole>,
    #[serde(default)]
    keys_per_session_max: Option<Whole>,
    #[serde(default)]
    accounts_per_pattern_max: Option<Whole>,
    #[serde(default)]
    tombstone_ttl_ms: Option<Whole>,
    /// Counts for spends that are admitted from now on.
    #[serde(default)]
    idempotency_ttl_ms: Option<Whole>,
    #[serde(default)]
    idempotency_keys_max: Option<Whole>,
    /// null: the leader may be anywhere.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>)]
    preferred_leader_region: Option<Option<String>>,
}

/// Reads a body as far as nobody has to be asked.
pub(super) fn reads(bytes: &[u8]) -> bool {
    json::parse::<SettingsEdit>(bytes)
        .and_then(|edit| edit.apply(Settings::default()))
        .is_ok()
}

/// Tells `null` from absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

impl SettingsEdit {
    fn apply(self, mut settings: Settings) -> Result<Settings, Problem> {
        // What does not fit is out of range in any case; `validate` says so.
        let narrow = |value: Whole| u32::try_from(value.0).unwrap_or(u32::MAX);
        if let Some(ms) = self.session_ttl_ms {
            settings.session_ttl_us = micros("session_ttl_ms", ms)?;
        }
        if let Some(ms) = self.sync_interval_ms {
            settings.sync_interval_us = micros("sync_interval_ms", ms)?;
        }
        if let Some(ppm) = self.max_drift_ppm {
            settings.max_drift_ppm = narrow(ppm);
        }
        if let Some(policy) = self.default_policy {
            if let Some(name) = &policy {
                check_name(name).map_err(|problem| problem.at("default_policy"))?;
            }
            settings.default_policy = policy;
        }
        if let Some(n) = self.sessions_per_identity_max {
            settings.sessions_per_identity_max = narrow(n);
        }
        if let Some(n) = self.keys_per_session_max {
            settings.keys_per_session_max = narrow(n);
        }
        if let Some(n) = self.accounts_per_pattern_max {
            settings.accounts_per_pattern_max = n.0;
        }
        if let Some(ms) = self.tombstone_ttl_ms {
            settings.tombstone_ttl_us = micros("tombstone_ttl_ms", ms)?;
        }
        if let Some(ms) = self.idempotency_ttl_ms {
            settings.idempotency_ttl_us = micros("idempotency_ttl_ms", ms)?;
        }
        if let Some(n) = self.idempotency_keys_max {
            settings.idempotency_keys_max = n.0;
        }
        if let Some(region) = self.preferred_leader_region {
            settings.preferred_leader_region = region;
        }
        settings.validate().map_err(Problem::from_validation)?;
        Ok(settings)
    }
}

/// The cluster's settings.
#[utoipa::path(get, path = "/v1/settings", tag = "cluster", operation_id = "get_settings",
    responses((status = 200, description = "The settings in force", body = SettingsBody)))]
pub(super) async fn get(State(admin): State<Admin>) -> Result<Tagged<SettingsBody>, Problem> {
    let read = admin.node.read(|ledger, _| {
        let body = SettingsBody::from(ledger.settings());
        Tagged(ledger.settings_tag(), body)
    });
    Ok(read.await?)
}

/// Changes settings. `session_ttl_ms` and `max_drift_ppm` count for sessions that
/// open from now on.
#[utoipa::path(put, path = "/v1/settings", tag = "cluster", operation_id = "put_settings", params(Trial, ConditionHeaders),
    request_body = SettingsEdit, responses((status = 200, description = "The settings in force", body = PutAnswer<SettingsBody>)))]
pub(super) async fn put(
    State(admin): State<Admin>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    Body(edit): Body<SettingsEdit>,
) -> Result<Response, Problem> {
    let dry_run = path::query::<Trial>(&uri)?.is_dry_run()?;
    let Circumstances { expect, by } = Circumstances::of(&headers)?;
    // Two edits of different fields must not undo each other.
    let _alone = admin.editing.lock().await;
    let (present, tag, knows_edits) = admin
        .node
        .read(|ledger, _| {
            let knows_edits = ledger.format_version() >= KINDS_SINCE;
            (
                ledger.settings().clone(),
                ledger.settings_tag(),
                knows_edits,
            )
        })
        .await?;
    if !expect.holds(Some(tag)) {
        return Err(CommandRefusal::PreconditionFailed { present: Some(tag) }.into());
    }
    let settings = edit.apply(present)?;
    let body = SettingsBody::from(&settings);
    // Of what was read, whoever wrote in the meantime: another leader may have.
    let expect = if knows_edits {
        Expect::OneOf(vec![tag])
    } else {
        Expect::Anything
    };
    let circumstances = Circumstances { expect, by };
    let outcome = admin
        .change(RuleChange::PutSettings(settings), circumstances, dry_run)
        .await
        .map_err(|problem| problem.at_if(Kind::NoSuchPolicy, "default_policy"))?;
    Ok(outcome.of_put(|_, _| body))
}
