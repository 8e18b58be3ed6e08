//! The replicated log: agreement on the order of entries, and the ledger that
//! applies them. Knows nothing of sessions' streams, of the allotter or of HTTP.
//! Only this module names openraft.

mod addresses;
mod answers;
mod api;
mod boot;
mod compaction;
mod hello;
mod leadership;
mod log;
mod machine;
mod membership;
mod network;
mod offline;
mod own_cluster;
mod peers;
mod preference;
mod propose;
mod replica;
mod roll_call;
mod rollback;
mod types;
mod wire;

pub use api::{
    ChangeError, ClusterStatus, Dismissal, InitialMember, Leadership, Member, MemberStatus,
    PeerTls, ProposeError, ReplicaConfig, Role, StartError, WallClock,
};
pub use offline::{Remains, begin_from, must_be_empty, read_stopped};
pub use replica::Replica;

#[cfg(test)]
mod tests;
