//! `/healthz` and `/readyz`, for programs that decide where clients go: load balancers, Kubernetes, keepalived. No password is needed.
//!
//! An answer must be cheap, because several programs may ask several times a second: no pool is looked at.

use std::net::IpAddr;

use hyper::StatusCode;
use pgweir_core::console::command::Topic;
use pgweir_core::snapshot::{Snapshot, SnapshotRequest};
use pgweir_settings::{Config, VipAddress};

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
/// `?cluster=main&role=primary` and `role=standby` ask for a node as well, `?vip=10.0.0.9` for the virtual address.
pub(in super::super) async fn readiness(web: &WebState, query: &str) -> Result<Reply, Refusal> {
    let wanted = Wanted::of(&Query::parse(query)?)?;
    if let Some(why) = wanted.as_ref().and_then(|wanted| wanted.unknown_to(&web.config())) {
        return Err(Refusal::NotFound(why));
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

/// The thing that must be available as well.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// A node of a cluster.
    Node { cluster: String, role: Role },
    /// The virtual address.
    Vip(IpAddr),
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
        if let Some(name) = query.names().find(|name| !["cluster", "role", "vip"].contains(name)) {
            return Err(Refusal::Bad(format!("\"{name}\" is unknown; use cluster and role, or vip")));
        }
        if query.names().any(|name| name == "vip") {
            let is_alone = query.names().count() == 1;
            let address = query.get("vip").and_then(|text| text.parse().ok()).filter(|_| is_alone);
            let fault = || Refusal::Bad("\"vip\" is an address, and is given alone".to_owned());
            return address.map(|address| Some(Wanted::Vip(address))).ok_or_else(fault);
        }
        match (query.get("cluster"), query.word("role", &["primary", "standby"])?) {
            (None, None) => Ok(None),
            (Some(cluster), Some(role)) => {
                let role = if role == "primary" { Role::Primary } else { Role::Standby };
                Ok(Some(Wanted::Node { cluster: cluster.to_owned(), role }))
            }
            _ => Err(Refusal::Bad("\"cluster\" and \"role\" are given together".to_owned())),
        }
    }

    /// Returns the reason why the configuration does not know the thing that is asked for.
    fn unknown_to(&self, config: &Config) -> Option<&'static str> {
        match self {
            Wanted::Node { cluster, .. } => {
                (!config.clusters.contains_key(cluster)).then_some("There is no such cluster.")
            }
            Wanted::Vip(address) => {
                let vip = VipAddress::parse(&config.main.vip);
                let is_it = vip.is_ok_and(|vip| vip.ip == *address);
                (!is_it).then_some("This is not the setting vip.")
            }
        }
    }

    async fn answer(&self, web: &WebState) -> Reply {
        let topic = match self {
            Wanted::Node { role: Role::Primary, .. } => Topic::Clusters,
            Wanted::Node { role: Role::Standby, .. } => Topic::Nodes,
            Wanted::Vip(_) => Topic::Vip,
        };
        let Ok(rows) = web.show(topic).await else { return not_ready("not answering\n") };
        match self {
            Wanted::Node { cluster, role: Role::Primary } if of_cluster(&rows, cluster).any(has_primary) => {
                ready()
            }
            Wanted::Node { role: Role::Primary, .. } => not_ready("no primary\n"),
            Wanted::Node { cluster, role: Role::Standby } if of_cluster(&rows, cluster).any(takes_reads) => {
                ready()
            }
            Wanted::Node { role: Role::Standby, .. } => not_ready("no standby\n"),
            Wanted::Vip(_) if rows.iter().any(|row| row.get("state") == Some("holds")) => ready(),
            Wanted::Vip(_) => not_ready("no address\n"),
        }
    }
}

/// Returns the rows of a cluster.
fn of_cluster<'a>(rows: &'a [ShowRow], name: &'a str) -> impl Iterator<Item = &'a ShowRow> {
    rows.iter().filter(move |row| row.get("cluster") == Some(name))
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
        let main = |role| Ok(Some(Wanted::Node { cluster: "main".to_owned(), role }));
        assert_eq!(wanted(""), Ok(None));
        assert_eq!(wanted("cluster=main&role=primary"), main(Role::Primary));
        assert_eq!(wanted("role=standby&cluster=ma%69n"), main(Role::Standby));
        assert_eq!(wanted("vip=10.0.0.9"), Ok(Some(Wanted::Vip([10, 0, 0, 9].into()))));
        for bad in ["vip=", "vip=10.0.0.9/24", "vip=10.0.0.9&role=primary"] {
            assert!(matches!(wanted(bad), Err(Refusal::Bad(_))), "{bad}");
        }
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
