//! `/healthz` and `/readyz`, for programs that decide where clients go: load balancers, Kubernetes, keepalived. No password is needed.
//!
//! An answer must be cheap, because several programs may ask several times a second: no pool is looked at.

use hyper::StatusCode;
use pgweir_core::console::command::Topic;
use pgweir_core::snapshot::{Snapshot, SnapshotRequest};

use super::super::WebState;
use super::super::model::Activity;
use super::super::reply::{Refusal, Reply, reply};
use super::super::worker_rpc::Late;
use super::query::Query;
use super::tables::ShowRow;

const TEXT: &str = "text/plain; charset=utf-8";

/// Answers `/healthz`: the process lives and all workers answer.
pub(in super::super) async fn health(web: &WebState) -> Reply {
    match web.activity().await {
        Ok(_) => ready(),
        Err(Late) => not_ready("not answering\n"),
    }
}

/// Answers `/readyz`: new clients should be sent to this process.
///
/// A pooler that is paused, or whose cluster has no primary, is ready: it holds clients until they can be served. All poolers lose the
/// primary at the same moment. If they said that they are not ready, a load balancer would disconnect the clients of all of them.
/// `?cluster=main&role=primary` and `role=standby` ask for a node as well.
pub(in super::super) async fn readiness(web: &WebState, query: &str) -> Result<Reply, Refusal> {
    let wanted = Wanted::of(&Query::parse(query)?)?;
    if let Some(wanted) = &wanted
        && !web.config().clusters.contains_key(&wanted.cluster)
    {
        return Err(Refusal::NotFound("There is no such cluster."));
    }
    let Ok(activity) = web.activity().await else { return Ok(not_ready("not answering\n")) };
    Ok(match activity {
        Activity::Active | Activity::Paused if web.is_draining.get() => not_ready("draining\n"),
        Activity::Active | Activity::Paused => match wanted {
            Some(wanted) => wanted.answer(web).await,
            None => ready(),
        },
        Activity::Suspended => not_ready("suspended\n"),
        Activity::Stopping => not_ready("shutting down\n"),
    })
}

fn ready() -> Reply {
    reply(StatusCode::OK, TEXT, "ok\n")
}

fn not_ready(why: &'static str) -> Reply {
    reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, why)
}

/// The node that must be available as well.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    cluster: String,
    role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Primary,
    Standby,
}

impl Wanted {
    /// Reads the query; `None` if it asks for no node. An unknown name is an error: a misspelled `cluster`
    /// would otherwise always be ready.
    fn of(query: &Query) -> Result<Option<Wanted>, Refusal> {
        if let Some(name) = query.names().find(|name| !["cluster", "role"].contains(name)) {
            return Err(Refusal::Bad(format!("\"{name}\" is unknown; use cluster and role")));
        }
        match (query.get("cluster"), query.word("role", &["primary", "standby"])?) {
            (None, None) => Ok(None),
            (Some(cluster), Some(role)) => {
                let role = if role == "primary" { Role::Primary } else { Role::Standby };
                Ok(Some(Wanted { cluster: cluster.to_owned(), role }))
            }
            _ => Err(Refusal::Bad("\"cluster\" and \"role\" are given together".to_owned())),
        }
    }

    async fn answer(&self, web: &WebState) -> Reply {
        let topic = match self.role {
            Role::Primary => Topic::Clusters,
            Role::Standby => Topic::Nodes,
        };
        let Ok(rows) = web.show(topic).await else { return not_ready("not answering\n") };
        let mut of_cluster = rows.iter().filter(|row| row.get("cluster") == Some(&self.cluster));
        match self.role {
            Role::Primary if of_cluster.any(has_primary) => ready(),
            Role::Primary => not_ready("no primary\n"),
            Role::Standby if of_cluster.any(takes_reads) => ready(),
            Role::Standby => not_ready("no standby\n"),
        }
    }
}

/// Returns whether this row of SHOW CLUSTERS has a primary that clients are sent to.
fn has_primary(row: &ShowRow) -> bool {
    row.get("state") == Some("available")
}

/// Returns whether this row of SHOW NODES is a standby that gets reads.
fn takes_reads(row: &ShowRow) -> bool {
    row.get("state") == Some("standby")
        && row.get("switch") == Some("attached")
        && row.number("share").is_some_and(|share| share > 0)
}

impl WebState {
    /// Returns the state of the process. Every worker is asked for its own state; no pool is read.
    async fn activity(&self) -> Result<Activity, Late> {
        let mut workers = Vec::new();
        for worker in self.worker_rpc.workers() {
            let look = SnapshotRequest::Pools { skip: 0, limit: 0 };
            match self.worker_rpc.look(worker, look).await? {
                Snapshot::Pools { worker: Some(seen), .. } => workers.push(*seen),
                _ => return Err(Late),
            }
        }
        Ok(Activity::of(&workers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str) -> Result<Option<Wanted>, Refusal> {
        Query::parse(text).and_then(|query| Wanted::of(&query))
    }

    #[test]
    fn a_node_is_asked_for_by_cluster_and_role() {
        let main = |role| Ok(Some(Wanted { cluster: "main".to_owned(), role }));
        assert_eq!(wanted(""), Ok(None));
        assert_eq!(wanted("cluster=main&role=primary"), main(Role::Primary));
        assert_eq!(wanted("role=standby&cluster=ma%69n"), main(Role::Standby));
        for bad in
            ["cluster=main", "role=primary", "cluster=main&role=replica", "clustr=main&role=primary", "x"]
        {
            assert!(matches!(wanted(bad), Err(Refusal::Bad(_))), "{bad}");
        }
    }

    #[test]
    fn a_standby_that_is_not_sent_reads_does_not_count() {
        let node = |cells: [&str; 3]| {
            let cells = cells.map(|cell| Some(cell.to_owned())).to_vec();
            takes_reads(&ShowRow::of(&["state", "switch", "share"], cells))
        };
        assert!(node(["standby", "attached", "100"]));
        assert!(!node(["standby", "attached", "0"]), "it is too far behind");
        assert!(!node(["standby", "draining", "1000"]));
        assert!(!node(["unknown", "attached", "1000"]));
        assert!(!node(["primary", "attached", ""]));
    }
}
