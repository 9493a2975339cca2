//! Commands about clusters and their nodes. The worker that watches the cluster carries them out.

use pgweir_settings::Discovery;

use crate::cluster::view::Switch;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::worker::Worker;
use crate::worker::console::command::{Command, Outcome};

impl Worker {
    /// Whether there are such a cluster and such a node.
    pub(crate) fn check_cluster_command(&self, env: &Env, command: &Command) -> Result<(), String> {
        let (name, node) = match command {
            Command::SwitchNode { cluster, node, .. } => (cluster, Some(node)),
            Command::Recheck(cluster) => (cluster, None),
            Command::Switchover { cluster, to, .. } => (cluster, to.as_ref()),
            _ => return Ok(()),
        };
        let Some(cluster) = env.rules.config.clusters.get(name) else {
            return Err(format!("no such cluster: {name}"));
        };
        // Of discovered nodes the worker that watches them knows.
        let is_unknown =
            |node: &&String| cluster.discovery == Discovery::Sql && !cluster.nodes.contains(node);
        match node.filter(is_unknown) {
            Some(node) => Err(format!("cluster {name} has no node {node}")),
            None => Ok(()),
        }
    }

    /// Carries out ATTACH, DRAIN or DETACH NODE.
    pub(crate) fn switch_node<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        to: Switch,
        name: &str,
        node: &str,
    ) -> Outcome {
        let Some(watched) = self.clusters.watched.get_mut(name) else { return Outcome::Done };
        let cluster = &mut watched.cluster;
        let Some(id) = cluster.node_named(node).map(|node| node.id) else {
            return Outcome::Failed(format!("cluster {name} has no node {node}"));
        };
        let is_primary = cluster.primary().is_some_and(|primary| primary.id == id);
        if to == Switch::Detached && is_primary {
            let text = format!("node {node} is the primary of cluster {name}; DRAIN NODE holds its clients");
            return Outcome::Failed(text);
        }
        cluster.switch(id, to, cx.env.now.mono_us);
        cx.env.shared.switch_node(name, node, to);
        self.tell_views(cx);
        self.hurry_checks(cx.env, name, true);
        Outcome::Done
    }

    /// Carries out RECHECK: everything known of the nodes is forgotten, and all nodes are asked.
    pub(crate) fn recheck<D: Driver>(&mut self, cx: &mut Cx<'_, D>, name: &str) -> Outcome {
        if let Some(watched) = self.clusters.watched.get_mut(name) {
            watched.cluster.forget(cx.env.now.mono_us);
            self.tell_views(cx);
            self.hurry_checks(cx.env, name, true);
        }
        Outcome::Done
    }
}
