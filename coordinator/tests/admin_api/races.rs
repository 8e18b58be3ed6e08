//! Operators who act at the same moment.

use leasehold_coordinator::config::ServeFlags;
use tempfile::tempdir;

use crate::client::{ask, serve_in};

#[tokio::test]
async fn edits_of_different_settings_at_once_are_all_kept() {
    let folder = tempdir().unwrap();
    let running = serve_in(&folder, ServeFlags::default()).await;
    let addr = running.client_addr();
    for round in 1..=10 {
        let fields = [
            ("session_ttl_ms", 20_000 + round),
            ("max_drift_ppm", 2_000 + round),
            ("keys_per_session_max", 500 + round),
            ("tombstone_ttl_ms", 9_000 + round),
        ];
        let edits = fields.map(|(field, value)| async move {
            let body = format!("{{\"{field}\":{value}}}");
            ask(addr, "PUT", "/v1/settings", &[], &body).await
        });
        for reply in futures::future::join_all(edits).await {
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
        let settings = ask(addr, "GET", "/v1/settings", &[], "").await.json();
        for (field, value) in fields {
            assert_eq!(settings[field], value, "{field}: acknowledged and lost");
        }
    }
    running.shutdown().await;
}
