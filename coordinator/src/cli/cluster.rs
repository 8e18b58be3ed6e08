//! `leasehold cluster`.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Answer, CliError, Remote,
    http::{delete, get, post},
    table::table,
    text::{field, items},
};

#[derive(Debug, Subcommand)]
pub(super) enum ClusterCommand {
    /// Members, leader, and how far every node is
    Status,
    /// Add a running, empty node
    Add {
        /// An id that was never used in this cluster
        node_id: u64,
        /// The node's host:port for the other coordinators (its --peer-listen)
        peer: String,
    },
    /// Remove a member; its id is never used again
    Remove {
        /// Its id
        node_id: u64,
    },
    /// Put a running, empty node in the place of a member, which may be dead
    Replace {
        /// The member that leaves; its id is never used again
        old_id: u64,
        /// An id that was never used in this cluster
        node_id: u64,
        /// The new node's host:port for the other coordinators (its --peer-listen)
        peer: String,
    },
    /// Hand leadership to another voter
    #[command(visible_alias = "lead")]
    Transfer {
        /// Its id
        node_id: u64,
    },
}

impl ClusterCommand {
    pub(super) async fn run(self, remote: &Remote) -> Result<Answer, CliError> {
        match self {
            Self::Status => {
                let value = get(remote, "/v1/cluster").await?;
                Ok(Answer {
                    text: status(&value),
                    value,
                })
            }
            Self::Add { node_id, peer } => {
                let body = json!({ "node_id": node_id, "peer": peer });
                let value = post(remote, "/v1/cluster/members", &body).await?.body;
                Ok(Answer {
                    text: status(&value),
                    value,
                })
            }
            Self::Remove { node_id } => {
                let value = delete(remote, &format!("/v1/cluster/members/{node_id}")).await?;
                Ok(Answer {
                    text: format!("node {node_id} is removed; never use its id again"),
                    value,
                })
            }
            Self::Replace {
                old_id,
                node_id,
                peer,
            } => {
                let body = json!({ "node_id": node_id, "peer": peer, "replaces": old_id });
                let value = post(remote, "/v1/cluster/members", &body).await?.body;
                Ok(Answer {
                    text: format!(
                        "node {node_id} is in the place of node {old_id}, whose id must never be used again\n{}",
                        status(&value)
                    ),
                    value,
                })
            }
            Self::Transfer { node_id } => {
                let value = post(remote, "/v1/cluster/leader", &json!({ "node_id": node_id }))
                    .await?
                    .body;
                Ok(Answer {
                    text: format!("leadership is on its way to node {node_id}"),
                    value,
                })
            }
        }
    }
}

fn status(cluster: &Value) -> String {
    let log = cluster.get("log").unwrap_or(&Value::Null);
    let leader = match cluster.get("leader") {
        Some(Value::Null) | None => "no leader is known".to_owned(),
        Some(id) => format!("node {id} leads"),
    };
    let clock = match cluster.get("majority_wall_time") {
        Some(Value::String(time)) => format!("by the majority's wall clocks it is {time}"),
        _ => "no majority says what time it is, and no period ends".to_owned(),
    };
    let head = format!(
        "cluster {}; {leader} in term {}; answered by node {}, whose log has {} committed and {} applied\n{clock}",
        field(cluster, "cluster_id"),
        field(cluster, "term"),
        field(cluster, "answered_by"),
        field(log, "committed"),
        field(log, "applied"),
    );
    let rows: Vec<Vec<String>> = items(cluster, "members")
        .iter()
        .map(|member| {
            let digest = member.get("digest").unwrap_or(&Value::Null);
            vec![
                field(member, "node_id"),
                if member.get("leader") == Some(&Value::Bool(true)) {
                    "leader".to_owned()
                } else {
                    field(member, "role")
                },
                field(member, "region"),
                field(member, "client_url"),
                field(member, "peer"),
                field(member, "matched"),
                field(member, "lag"),
                field(member, "format_version"),
                if digest.is_null() {
                    "-".to_owned()
                } else {
                    format!("{} @{}", field(digest, "value"), field(digest, "index"))
                },
                match digest.get("agrees") {
                    Some(Value::Bool(true)) => "yes",
                    Some(Value::Bool(false)) => "NO",
                    _ => "-",
                }
                .to_owned(),
            ]
        })
        .collect();
    let columns = [
        "NODE", "ROLE", "REGION", "CLIENTS", "PEERS", "MATCHED", "LAG", "FORMAT", "DIGEST",
        "AGREES",
    ];
    format!("{head}\n\n{}", table(&columns, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_says_what_time_it_is_and_which_format_each_member_reads() {
        let member = |node_id: u64, format_version: Option<u32>| {
            json!({"node_id": node_id, "role": "voter", "leader": node_id == 1, "region": "eu",
                "client_url": "http://c", "peer": "p:1", "matched": 7, "lag": 0, "digest": null,
                "format_version": format_version})
        };
        let mut cluster = json!({"cluster_id": "c1", "answered_by": 1, "leader": 1, "term": 3,
            "log": {"committed": 7, "applied": 7},
            "majority_wall_time": "2026-03-29T12:00:00Z",
            "members": [member(1, Some(6)), member(2, None)]});
        insta::assert_snapshot!(status(&cluster), @r"
        cluster c1; node 1 leads in term 3; answered by node 1, whose log has 7 committed and 7 applied
        by the majority's wall clocks it is 2026-03-29T12:00:00Z

        NODE  ROLE    REGION  CLIENTS   PEERS  MATCHED  LAG  FORMAT  DIGEST  AGREES
           1  leader  eu      http://c  p:1          7    0       6  -       -
           2  voter   eu      http://c  p:1          7    0       -  -       -
        ");
        cluster["majority_wall_time"] = Value::Null;
        let text = status(&cluster);
        assert!(
            text.contains("no majority says what time it is, and no period ends"),
            "{text}"
        );
    }
}
