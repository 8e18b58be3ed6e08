//! Leasehold under test: gateway processes, and what is measured.
//!
//! Tests judge by what gateways saw (`leasehold-checkers`), not by the books.

mod agent_process;
mod gateway_process;
pub mod nemesis;
pub mod power_cut;
mod request_log;
mod results;
mod tls_cluster;

pub use agent_process::{AgentProcess, HttpAnswer, ask_http};
pub use gateway_process::{GatewayProcess, HIGH_LANE, Load, Manner, Summary};
pub use leasehold_checkers::{Admission, AdmissionLog, AdmissionWriter, Judgement, Promise};
pub use leasehold_coordinator::cli::demo::local_cluster::{Answer, Leader, LocalCluster};
pub use request_log::{NotedRequest, RequestWriter, Told, read_requests};
pub use results::{append_results, results_file};
pub use tls_cluster::{ADMIN, TlsCluster, TlsNode, TlsStream, connect, until_closed};

/// The host's raw monotonic clock, in nanoseconds: the one clock of all
/// admission logs.
#[must_use]
pub fn clock_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicRaw);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
