//! The source of a cluster: what Patroni, etcd or a name server says of it. The control plane asks it; here is what counts of its
//! word, and for how long.
//!
//! A source never makes a node the primary. It has a say in whether a node that says so is believed.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pgweir_settings::{ClusterOptions, Config, Discovery, NodeOptions, SourceLost};

use crate::cluster::node::{Doubt, Node};
use crate::cluster::{Cluster, Remark};
use crate::driver::Level;

/// What the control plane found out about a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceReport {
    /// The cluster's name.
    pub cluster: Arc<str>,
    /// How it was asked.
    pub discovery: Discovery,
    /// Its word, or why it could not be asked.
    pub said: Result<SourceWord, String>,
}

/// The word of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceWord {
    /// The address that answered.
    pub by: Arc<str>,
    /// The nodes; at most [`MEMBERS_MAX`].
    pub members: Vec<SourceMember>,
    /// A switchover that is to begin at once.
    pub announced: Option<Announced>,
}

/// Maximum number of nodes that are taken from a source.
pub const MEMBERS_MAX: usize = 64;

/// A node in the list of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceMember {
    /// Its name.
    pub name: Arc<str>,
    /// Where its server is.
    pub host: Arc<str>,
    /// The server's port.
    pub port: u16,
    /// What it is.
    pub role: SourceRole,
}

/// What a source says of the role of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceRole {
    /// It is the primary.
    Primary,
    /// It is not.
    Other,
    /// The part of the source that would know did not answer.
    Silent,
    /// Such a source knows no roles.
    Untold,
}

/// The switchover that a source announces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Announced {
    /// The node that is to become the primary, if that is decided.
    pub to: Option<Arc<str>>,
}

/// What the word of the source means for one node that says it is the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// There is no source, or it knows no roles: the nodes decide.
    NoSay,
    /// The source says so, too.
    Agrees,
    /// The source says that it is not.
    Contradicts,
    /// The source is silent.
    Silent,
}

/// What is known of a source.
#[derive(Debug)]
pub(crate) struct Source {
    discovery: Discovery,
    lost: SourceLost,
    /// Its last word, and when that came (monotonic, µs).
    word: Option<(SourceWord, u64)>,
    /// Why it could not be asked since.
    error: Option<String>,
    /// Since when a switchover is announced (monotonic, µs), and the epoch of then.
    announced: Option<(u64, u64)>,
    /// The log was told that it is silent.
    told_silent: bool,
}

impl Source {
    /// The source that the configuration names; `None`: there is none, as with `discovery=sql`.
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

    /// Follows the configuration.
    pub(super) fn follow(&mut self, options: &ClusterOptions) {
        self.lost = options.source_lost;
    }

    pub(crate) fn discovery(&self) -> Discovery {
        self.discovery
    }

    /// The address that answered last.
    pub(crate) fn by(&self) -> Option<&str> {
        self.word.as_ref().map(|(word, _)| &*word.by)
    }

    /// When it answered last (monotonic, µs).
    pub(crate) fn heard_us(&self) -> Option<u64> {
        self.word.as_ref().map(|(_, heard_us)| *heard_us)
    }

    /// Why it could not be asked since it answered last.
    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The word, if it is not older than this.
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
    /// Takes what the control plane found out. Returns the list of nodes, if that is another one than before.
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

    /// The nodes that the source has named last, with the options of their lines.
    pub(crate) fn discovered(&self, config: &Config) -> Vec<(Arc<str>, NodeOptions)> {
        let members = self.source.as_ref().and_then(|source| source.word.as_ref());
        let members = members.map(|(word, _)| word.members.as_slice()).unwrap_or_default();
        members.iter().map(|member| (Arc::clone(&member.name), options_of(config, member))).collect()
    }

    /// What the source's word means for this node.
    pub(super) fn standing(&self, node: &Node, now_us: u64) -> Standing {
        match &self.source {
            None => Standing::NoSay,
            Some(source) => source.standing(&node.name, now_us, self.limits.primary_max_age_us),
        }
    }

    /// Why a node that says it is the primary is not believed, as far as the source has a say. `rivals`: another node that
    /// answers says so, too.
    pub(super) fn doubt_by_source(&self, standing: Standing, rivals: bool) -> Option<Doubt> {
        let holds = self.source.as_ref().is_some_and(|source| source.lost == SourceLost::Hold);
        match standing {
            Standing::NoSay | Standing::Agrees => None,
            Standing::Contradicts => Some(Doubt::Source),
            Standing::Silent if holds => Some(Doubt::SourceSilent),
            Standing::Silent => rivals.then_some(Doubt::TwoPrimaries),
        }
    }

    /// The source has been heard since this node says what it says, and so long after that nothing of its word was older.
    pub(super) fn source_heard_since(&self, node: &Node) -> bool {
        let heard_us = self.source.as_ref().and_then(Source::heard_us);
        let since_us = node.state.member().map(|member| member.same_since_us);
        let is_later =
            |(heard_us, since_us): (u64, u64)| heard_us >= since_us.saturating_add(self.limits.timeout_us);
        heard_us.zip(since_us).is_some_and(is_later)
    }

    /// The source announces a switchover: nothing new begins, for as long as open transactions may last.
    pub(super) fn announced(&self, now_us: u64) -> Option<&Announced> {
        let source = self.source.as_ref()?;
        let (since_us, epoch) = source.announced?;
        let lasts = now_us.saturating_sub(since_us) <= self.limits.drain_us && epoch == self.epoch;
        let word = source.fresh(now_us, self.limits.primary_max_age_us)?;
        word.announced.as_ref().filter(|_| lasts)
    }

    /// When something changes although the source says nothing (monotonic, µs).
    pub(super) fn source_expires_us(&self, now_us: u64) -> Option<u64> {
        let source = self.source.as_ref()?;
        let silent_us = source.heard_us().map(|heard_us| heard_us + self.limits.primary_max_age_us + 1);
        let announced_us = source.announced.map(|(since_us, _)| since_us + self.limits.drain_us + 1);
        silent_us.into_iter().chain(announced_us).filter(|us| *us > now_us).min()
    }

    /// The log is told once that the source is silent.
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

/// What the configuration says of a discovered node: the options of the line with its name, but for the address.
fn options_of(config: &Config, member: &SourceMember) -> NodeOptions {
    let line = config.nodes.get(&*member.name).cloned().unwrap_or_default();
    NodeOptions { host: member.host.to_string(), port: member.port, ..line }
}
