//! The source of a cluster: Patroni, etcd or a name server, which names the nodes and perhaps their roles. The control plane asks the
//! source; this module decides what its report means, and for how long.
//!
//! A source never makes a node the primary. It only has a say in whether a node that reports to be the primary is believed.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pgweir_settings::{ClusterOptions, Config, Discovery, NodeOptions, SourceLost};

use crate::cluster::node::{Doubt, Node};
use crate::cluster::{Cluster, Remark};
use crate::driver::Level;
use crate::limits::MEMBERS_MAX;

/// The result of one inquiry of the control plane to the source of a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceReport {
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// The way of discovery that was used.
    pub discovery: Discovery,
    /// The source's report, or the reason why there is none.
    pub said: Result<SourceWord, String>,
}

/// The report of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceWord {
    /// The address that answered.
    pub by: Arc<str>,
    /// The nodes; at most [`MEMBERS_MAX`].
    pub members: Vec<SourceMember>,
    /// The switchover that the source announces to begin at once; `None` if there is none.
    pub announced: Option<Announced>,
}

/// A node in the list of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceMember {
    /// The node's name.
    pub name: Arc<str>,
    /// The host name or address of the node's server.
    pub host: Arc<str>,
    /// The server's port.
    pub port: u16,
    /// The node's role.
    pub role: SourceRole,
}

/// The role of a node in the report of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceRole {
    /// The node is the primary.
    Primary,
    /// The node is not the primary.
    Other,
    /// The part of the source that knows the roles did not answer.
    Silent,
    /// The source does not know roles.
    Untold,
}

/// The switchover that a source announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The node that is to become the primary; `None` if that is not decided.
    pub to: Option<Arc<str>>,
}

/// The meaning of the source's report for a node that reports to be the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// There is no source, or it does not know roles: the nodes alone decide.
    NoSay,
    /// The source names the node as the primary, too.
    Agrees,
    /// The source does not name the node as the primary.
    Contradicts,
    /// The source has no recent report about the node's role.
    Silent,
}

/// The source of one cluster, with its last report.
#[derive(Debug)]
pub(crate) struct Source {
    discovery: Discovery,
    lost: SourceLost,
    /// The source's last report, and the time at which it came (monotonic, µs); `None` before the first one.
    word: Option<(SourceWord, u64)>,
    /// The reason why the last inquiry failed; `None` if it succeeded.
    error: Option<String>,
    /// The time since which a switchover is announced (monotonic, µs), and the cluster's epoch at that time; `None` if none is announced.
    announced: Option<(u64, u64)>,
    /// The log has reported that the source does not answer; reset when the source answers.
    told_silent: bool,
}

impl Source {
    /// Returns the source that the configuration names; `None` with `discovery=sql`.
    pub(super) fn of(options: &ClusterOptions) -> Option<Source> {
        (options.discovery != Discovery::Sql).then_some(Source {
            discovery: options.discovery,
            lost: options.source_lost,
            word: None,
            error: None,
            announced: None,
            told_silent: false,
        })
    }

    /// Takes over the setting `source_lost`.
    pub(super) fn follow(&mut self, options: &ClusterOptions) {
        self.lost = options.source_lost;
    }

    pub(crate) fn discovery(&self) -> Discovery {
        self.discovery
    }

    /// Returns the address that answered last.
    pub(crate) fn by(&self) -> Option<&str> {
        self.word.as_ref().map(|(word, _)| &*word.by)
    }

    /// Returns the time at which the source answered last (monotonic, µs); `None` if it never did.
    pub(crate) fn heard_us(&self) -> Option<u64> {
        self.word.as_ref().map(|(_, heard_us)| *heard_us)
    }

    /// Returns the reason why the last inquiry failed; `None` if it succeeded.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Returns the last report, if it is not older than `age_us_max`.
    fn fresh(&self, now_us: u64, age_us_max: u64) -> Option<&SourceWord> {
        let (word, heard_us) = self.word.as_ref()?;
        (now_us.saturating_sub(*heard_us) <= age_us_max).then_some(word)
    }

    fn standing(&self, node: &str, now_us: u64, age_us_max: u64) -> Standing {
        if self.discovery == Discovery::Dns {
            return Standing::NoSay;
        }
        let Some(word) = self.fresh(now_us, age_us_max) else { return Standing::Silent };
        let role = word.members.iter().find(|member| *member.name == *node).map(|member| member.role);
        let others = || word.members.iter().any(|member| member.role == SourceRole::Primary);
        match role {
            Some(SourceRole::Primary) => Standing::Agrees,
            Some(SourceRole::Untold) => Standing::NoSay,
            Some(SourceRole::Other) | None => Standing::Contradicts,
            Some(SourceRole::Silent) if others() => Standing::Contradicts,
            Some(SourceRole::Silent) => Standing::Silent,
        }
    }
}

impl Cluster {
    /// Takes a report of the control plane. Returns the list of nodes if it differs from the present one; the caller must follow that list.
    pub(crate) fn take_source(&mut self, report: &SourceReport, now_us: u64) -> Option<Vec<SourceMember>> {
        let source = self.source.as_mut().filter(|source| source.discovery == report.discovery)?;
        let word = match &report.said {
            Ok(word) => word,
            Err(why) => {
                source.error = Some(why.clone());
                self.decide(now_us);
                return None;
            }
        };
        let mut word = word.clone();
        word.members.truncate(MEMBERS_MAX);
        if word.members.is_empty() {
            // A cluster has a node: the list is not whole.
            source.error = Some(format!("{} names no node", word.by));
            self.decide(now_us);
            return None;
        }
        source.error = None;
        source.told_silent = false;
        source.announced = word.announced.as_ref().map(|_| source.announced.unwrap_or((now_us, self.epoch)));
        let is_known = |member: &SourceMember| {
            self.nodes
                .iter()
                .any(|node| node.name == member.name && node.host == member.host && node.port == member.port)
        };
        let is_new = word.members.len() != self.nodes.len() || !word.members.iter().all(is_known);
        let members = is_new.then(|| word.members.clone());
        source.word = Some((word, now_us));
        if members.is_none() {
            self.decide(now_us);
        }
        members
    }

    /// Returns the nodes of the source's last report, with the options of their lines in the configuration.
    pub(crate) fn discovered(&self, config: &Config) -> Vec<(Arc<str>, NodeOptions)> {
        let members = self.source.as_ref().and_then(|source| source.word.as_ref());
        let members = members.map(|(word, _)| word.members.as_slice()).unwrap_or_default();
        members.iter().map(|member| (Arc::clone(&member.name), options_of(config, member))).collect()
    }

    /// Returns the meaning of the source's report for this node.
    pub(super) fn standing(&self, node: &Node, now_us: u64) -> Standing {
        match &self.source {
            None => Standing::NoSay,
            Some(source) => source.standing(&node.name, now_us, self.limits.primary_max_age_us),
        }
    }

    /// Returns the reason why a node that reports to be the primary is not believed, as far as the source decides that. `rivals` means that
    /// another node that answers its checks reports to be the primary, too.
    pub(super) fn doubt_by_source(&self, standing: Standing, rivals: bool) -> Option<Doubt> {
        let holds = self.source.as_ref().is_some_and(|source| source.lost == SourceLost::Hold);
        match standing {
            Standing::NoSay | Standing::Agrees => None,
            Standing::Contradicts => Some(Doubt::Source),
            Standing::Silent if holds => Some(Doubt::SourceSilent),
            Standing::Silent => rivals.then_some(Doubt::TwoPrimaries),
        }
    }

    /// Whether the source has answered at least `check_timeout_ms` after the node began to report its present role, so that no part of the
    /// source's report can be older.
    pub(super) fn source_heard_since(&self, node: &Node) -> bool {
        let heard_us = self.source.as_ref().and_then(Source::heard_us);
        let since_us = node.state.member().map(|member| member.same_since_us);
        let is_later =
            |(heard_us, since_us): (u64, u64)| heard_us >= since_us.saturating_add(self.limits.timeout_us);
        heard_us.zip(since_us).is_some_and(is_later)
    }

    /// Returns the switchover that the source announces, during which no new work begins; `None` when it has lasted longer than open
    /// transactions may (`switchover_drain_ms`), or another primary was found.
    pub(super) fn announced(&self, now_us: u64) -> Option<&Announced> {
        let source = self.source.as_ref()?;
        let (since_us, epoch) = source.announced?;
        let lasts = now_us.saturating_sub(since_us) <= self.limits.drain_us && epoch == self.epoch;
        let word = source.fresh(now_us, self.limits.primary_max_age_us)?;
        word.announced.as_ref().filter(|_| lasts)
    }

    /// Returns the time at which a decision changes although the source does not answer (monotonic, µs).
    pub(super) fn source_expires_us(&self, now_us: u64) -> Option<u64> {
        let source = self.source.as_ref()?;
        let silent_us = source.heard_us().map(|heard_us| heard_us + self.limits.primary_max_age_us + 1);
        let announced_us = source.announced.map(|(since_us, _)| since_us + self.limits.drain_us + 1);
        silent_us.into_iter().chain(announced_us).filter(|us| *us > now_us).min()
    }

    /// Writes a message for the log, once, if the source does not answer.
    pub(super) fn remark_source(&mut self, now_us: u64) {
        let age_us_max = self.limits.primary_max_age_us;
        let name = Arc::clone(&self.name);
        let Some(source) = &mut self.source else { return };
        let was_heard = source.word.is_some() || source.error.is_some();
        if source.told_silent || !was_heard || source.fresh(now_us, age_us_max).is_some() {
            return;
        }
        source.told_silent = true;
        let why = source.error.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
        let text = format!("cluster {name}: its source ({}) does not answer{why}", source.discovery);
        self.remarks.push(Remark { level: Level::Warning, text });
    }
}

/// Returns the options of a discovered node: those of the line with its name, with the address that the source reports.
fn options_of(config: &Config, member: &SourceMember) -> NodeOptions {
    let line = config.nodes.get(&*member.name).cloned().unwrap_or_default();
    NodeOptions { host: member.host.to_string(), port: member.port, ..line }
}
