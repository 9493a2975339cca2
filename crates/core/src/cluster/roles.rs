//! The decision which node is the primary. Roles are taken away fast and given slowly: a node gets the role only by its own recent answer,
//! and only if no other node contradicts it.

use std::sync::Arc;

use crate::cluster::answer::Answer;
use crate::cluster::node::{
    Doubt, LAG_UNKNOWN, Member, Node, NodeState, Refusal, Refused, TIMELINE_UNKNOWN, Unsure,
};
use crate::cluster::source::Standing;
use crate::cluster::view::Switch;
use crate::cluster::{Cluster, Remark, Term};
use crate::driver::Level;

/// The number of consecutive checks that must show a second primary before it counts more than the first one, if both answer.
const CHECKS_MIN: u32 = 3;
/// The first version that reports `in_hot_standby`.
const VERSION_MIN: u32 = 140_000;

/// The maximum number of rounds in which all nodes are compared until nothing changes.
const ROUNDS_MAX: usize = 8;

/// The role of a node, from its last answer and from those of the other nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Verdict {
    Standby,
    Primary,
    Unsure(Doubt),
    Refused(Refusal),
}

/// Whether the node reports to be the primary, but is not believed because of the source.
fn is_doubted(verdict: &Option<Verdict>) -> bool {
    matches!(verdict, Some(Verdict::Unsure(Doubt::Source | Doubt::SourceSilent | Doubt::TwoPrimaries)))
}

impl Cluster {
    /// Decides the roles of all nodes, and what depends on them. A second call at the same time changes nothing.
    pub(super) fn decide(&mut self, now_us: u64) {
        self.decided_us = now_us;
        self.assign(now_us);
        if self.begin_term() {
            // The primary says which database this is: only now is it known of the others whether they are copies of it.
            self.assign(now_us);
        }
        self.note_newest(now_us);
        self.plan(now_us);
        self.held_since_us = match self.serving() {
            Some(_) => None,
            None => self.held_since_us.or(Some(now_us)),
        };
        let is_bare = !self.standbys().any(|(node, _)| node.share(&self.limits, now_us) > 0);
        self.bare_since_us = is_bare.then(|| self.bare_since_us.unwrap_or(now_us));
        for at in 0..self.nodes.len() {
            self.remark(at);
        }
        self.remark_source(now_us);
    }

    /// Updates the highest timeline that the nodes show, with a message for the log if it has changed.
    fn note_newest(&mut self, now_us: u64) {
        let shown = (0..self.nodes.len()).filter(|&at| self.shows_timeline(at, now_us));
        let newest = shown.filter_map(|at| self.timeline_of(at)).max().unwrap_or(0).max(self.timeline);
        let known = self.newest;
        if known > 0 && newest != known {
            let text = match newest > known {
                true => format!("timeline {newest} has begun, what is open on older ones ends"),
                false => format!("no node shows timeline {known} any more, timeline {newest} counts again"),
            };
            let text = format!("cluster {}: {text}", self.name);
            self.remarks.push(Remark { level: Level::Log, text });
        }
        self.newest = newest;
    }

    /// Whether the timeline of a node counts as one of this cluster. A source's report contradicts the node only if the source has answered
    /// since the node is on that timeline.
    fn shows_timeline(&self, at: usize, now_us: u64) -> bool {
        let node = &self.nodes[at];
        let is_copy = self.identifier.is_some()
            && self.member_at(at).map(|member| member.answer.run.system_identifier) == self.identifier;
        let counts = match &node.state {
            NodeState::Standby(_) | NodeState::Primary(_) => true,
            NodeState::Unsure(unsure) => match unsure.why {
                Doubt::Detached => false,
                Doubt::Source => self.is_confirmed(at, now_us) && !self.source_heard_since(node),
                Doubt::New | Doubt::Unconfirmed | Doubt::TwoPrimaries | Doubt::SourceSilent => true,
            },
            _ => false,
        };
        is_copy && counts && node.switch != Switch::Detached
    }

    /// Gives each node its state, in rounds until nothing changes: the state of one node may change that of another.
    fn assign(&mut self, now_us: u64) {
        let mut verdicts = self.verdicts(now_us);
        for _ in 0..ROUNDS_MAX {
            self.apply(verdicts.clone(), now_us);
            let next = self.verdicts(now_us);
            if next == verdicts {
                break;
            }
            verdicts = next;
        }
    }

    fn apply(&mut self, verdicts: Vec<Option<Verdict>>, now_us: u64) {
        for (node, verdict) in self.nodes.iter_mut().zip(verdicts) {
            let (Some(verdict), Some(member)) = (verdict, node.state.member().cloned()) else { continue };
            let state = match verdict {
                Verdict::Standby => NodeState::Standby(member),
                Verdict::Primary => NodeState::Primary(member),
                Verdict::Unsure(why) => NodeState::Unsure(Unsure { member, why }),
                Verdict::Refused(why) => NodeState::Refused(Refused { why, member: Some(member) }),
            };
            node.enter(state, now_us);
        }
    }

    /// Counts a new epoch if there is another primary, or the same one in another run. Returns whether it did.
    fn begin_term(&mut self) -> bool {
        let Some(node) = self.primary() else { return false };
        let Some(run) = node.state.member().map(|member| member.answer.run) else { return false };
        let term = Term { node: Arc::clone(&node.name), run };
        if self.last.as_ref() == Some(&term) {
            return false;
        }
        let name = Arc::clone(&node.name);
        self.last = Some(term);
        self.heard = None;
        self.positions.forget();
        self.nodes.iter_mut().for_each(Node::forget_divergence);
        self.epoch += 1;
        self.identifier = Some(run.system_identifier);
        self.timeline = self.timeline.max(run.timeline);
        let text = format!(
            "cluster {}: {name} is the primary (epoch {}, timeline {})",
            self.name, self.epoch, run.timeline
        );
        self.remarks.push(Remark { level: Level::Log, text });
        true
    }

    fn verdicts(&self, now_us: u64) -> Vec<Option<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> =
            self.nodes.iter().map(|node| self.first_look(node)).collect();
        self.hear_source(now_us, &mut verdicts);
        let claims = |at: usize| verdicts[at] == Some(Verdict::Unsure(Doubt::New));
        let claimants: Vec<usize> = (0..self.nodes.len()).filter(|&at| claims(at)).collect();
        let doubted: Vec<usize> = (0..self.nodes.len()).filter(|&at| is_doubted(&verdicts[at])).collect();
        // The highest timeline that any copy of this database has; of a primary that the source does not name it says nothing.
        let counts = |at: &usize| {
            !matches!(verdicts[*at], Some(Verdict::Refused(_)) | None)
                && !doubted.contains(at)
                && self.nodes[*at].switch != Switch::Detached
        };
        let timelines = (0..self.nodes.len()).filter(counts).filter_map(|at| self.timeline_of(at));
        let newest = timelines.max().unwrap_or(0).max(self.timeline);
        if self.identifier.is_none() && self.are_strangers(&claimants) {
            claimants.iter().for_each(|&at| verdicts[at] = Some(Verdict::Unsure(Doubt::TwoPrimaries)));
            return verdicts;
        }
        let (contenders, mut older): (Vec<usize>, Vec<usize>) =
            claimants.iter().partition(|&&at| self.timeline_of(at) == Some(newest));
        older.extend(doubted.iter().filter(|&&at| self.timeline_of(at).is_some_and(|own| own < newest)));
        // Both live, and the newer one has not been seen often enough: nothing new is sent to either.
        let proven = |&at: &usize| match &self.nodes[at].state {
            NodeState::Primary(_) => true,
            _ if self.standing(&self.nodes[at], now_us) == Standing::Agrees => true,
            state => state.member().is_some_and(|member| member.checks >= CHECKS_MIN),
        };
        let contradicts = |&at: &usize| self.contradicts(at, now_us);
        let waits = !contenders.is_empty() && !contenders.iter().any(proven) && older.iter().any(contradicts);
        for &at in &older {
            let is_refused = matches!(self.nodes[at].state, NodeState::Refused(_));
            // Of two that only contradict each other, neither is the old one for certain.
            let of_two = verdicts[at] == Some(Verdict::Unsure(Doubt::TwoPrimaries));
            verdicts[at] = Some(if of_two || waits && contradicts(&at) {
                Verdict::Unsure(Doubt::TwoPrimaries)
            } else if !is_refused && !self.is_confirmed(at, now_us) {
                // It may be dead: whether it lives on is seen by its next answer.
                Verdict::Unsure(Doubt::Unconfirmed)
            } else {
                let timeline = self.timeline_of(at).unwrap_or(0);
                Verdict::Refused(Refusal::OldPrimary { timeline, newer: newest })
            });
        }
        // A newer one has come, and the source was not heard since: its word for the older one may be old.
        let overtaken = |&&at: &&usize| {
            self.timeline_of(at).is_some_and(|own| own > newest)
                && self.is_confirmed(at, now_us)
                && !self.source_heard_since(&self.nodes[at])
        };
        if waits || doubted.iter().any(|at| overtaken(&at)) {
            contenders.iter().for_each(|&at| verdicts[at] = Some(Verdict::Unsure(Doubt::TwoPrimaries)));
            return verdicts;
        }
        self.choose(&contenders, now_us, &mut verdicts);
        verdicts
    }

    /// Removes the claim of each node that the source does not name as the primary.
    fn hear_source(&self, now_us: u64, verdicts: &mut [Option<Verdict>]) {
        let claims = |at: usize| verdicts[at] == Some(Verdict::Unsure(Doubt::New));
        let claimants: Vec<usize> = (0..self.nodes.len()).filter(|&at| claims(at)).collect();
        for &at in &claimants {
            let standing = self.standing(&self.nodes[at], now_us);
            // What the cluster's history has left behind, or the source contradicts, is no rival.
            let is_rival = |&other: &usize| {
                other != at
                    && self.standing(&self.nodes[other], now_us) != Standing::Contradicts
                    && self.contradicts(other, now_us)
                    && self.timeline_of(other).is_some_and(|own| own >= self.timeline)
            };
            // One that was refused, or does not answer, goes by the rules for all.
            let rivals = self.contradicts(at, now_us) && claimants.iter().any(is_rival);
            if let Some(why) = self.doubt_by_source(standing, rivals) {
                verdicts[at] = Some(Verdict::Unsure(why));
            }
        }
    }

    /// Sets whether new work waits: while a switchover is under way or announced, until another node is the primary.
    fn plan(&mut self, now_us: u64) {
        self.go_on_with_switchover(now_us);
        let planned = self.announced(now_us).is_some() || self.switchover.is_some();
        if planned && !self.planned {
            let text = format!("cluster {}: a switchover is under way, new transactions wait", self.name);
            self.remarks.push(Remark { level: Level::Log, text });
        }
        self.planned = planned;
    }

    /// Whether the node has answered recently and is not refused, so that its claim to be the primary counts.
    fn contradicts(&self, at: usize, now_us: u64) -> bool {
        self.is_confirmed(at, now_us) && !matches!(self.nodes[at].state, NodeState::Refused(_))
    }

    /// Returns the verdict by the node's own answer alone; [`Doubt::New`] for a node that reports to be the primary.
    fn first_look(&self, node: &Node) -> Option<Verdict> {
        let answer = &node.state.member()?.answer;
        let theirs = answer.run.system_identifier;
        Some(match self.identifier {
            _ if answer.version < VERSION_MIN => {
                Verdict::Refused(Refusal::TooOld { version: answer.version })
            }
            Some(ours) if ours != theirs => Verdict::Refused(Refusal::Stranger { theirs, ours }),
            _ if answer.in_recovery => node.divergence(answer).map_or(Verdict::Standby, Verdict::Refused),
            _ if node.switch == Switch::Detached => Verdict::Unsure(Doubt::Detached),
            _ => Verdict::Unsure(Doubt::New),
        })
    }

    /// Decides which of the nodes on the newest timeline is the primary. Of several nodes, the one that had the role keeps it.
    fn choose(&self, contenders: &[usize], now_us: u64, verdicts: &mut [Option<Verdict>]) {
        let had =
            self.last.as_ref().and_then(|term| self.nodes.iter().position(|node| node.name == term.node));
        let chosen = match contenders {
            [only] => Some(*only),
            several => had.filter(|at| several.contains(at)),
        };
        for &at in contenders {
            verdicts[at] = Some(match chosen {
                None => Verdict::Unsure(Doubt::TwoPrimaries),
                Some(chosen) if chosen != at => {
                    Verdict::Refused(Refusal::Twin { of: Arc::clone(&self.nodes[chosen].name) })
                }
                Some(_) if self.is_confirmed(at, now_us) || self.keeps_role(at, now_us) => Verdict::Primary,
                Some(_) => Verdict::Unsure(Doubt::Unconfirmed),
            });
        }
    }

    fn member_at(&self, at: usize) -> Option<&Member> {
        self.nodes[at].state.member()
    }

    fn timeline_of(&self, at: usize) -> Option<u32> {
        self.member_at(at).map(|member| member.answer.run.timeline)
    }

    /// Whether the node's last check succeeded, not longer than `primary_max_age_ms` ago.
    fn is_confirmed(&self, at: usize, now_us: u64) -> bool {
        self.member_at(at).is_some_and(|member| member.failing.is_none() && self.is_fresh(member, now_us))
    }

    /// Whether the node keeps the role of the primary: a failed check does not take the role away before the last answer is too old.
    fn keeps_role(&self, at: usize, now_us: u64) -> bool {
        matches!(&self.nodes[at].state, NodeState::Primary(member) if self.is_fresh(member, now_us))
    }

    fn is_fresh(&self, member: &Member, now_us: u64) -> bool {
        now_us.saturating_sub(member.heard_us) <= self.limits.primary_max_age_us
    }

    /// Whether these nodes are not all copies of the same database.
    fn are_strangers(&self, claimants: &[usize]) -> bool {
        let mut identifiers = claimants
            .iter()
            .filter_map(|&at| self.member_at(at).map(|member| member.answer.run.system_identifier));
        let first = identifiers.next();
        identifiers.any(|other| Some(other) != first)
    }

    /// Returns the problem of a node that SHOW NODES reports; `None` if there is none.
    pub(crate) fn trouble(&self, node: &Node) -> Option<String> {
        node.trouble().or_else(|| self.hides_timeline(node).then(|| TIMELINE_UNKNOWN.to_owned()))
    }

    /// Whether a standby has replayed what the primary wrote on its own timeline, but still reports the previous timeline.
    fn hides_timeline(&self, node: &Node) -> bool {
        let NodeState::Standby(member) = &node.state else { return false };
        let Some(primary) = self.primary().and_then(|node| node.state.member()) else { return false };
        let (own, theirs) = (&member.answer, &primary.answer);
        own.run.timeline < theirs.run.timeline
            && theirs.replayed.is_some_and(|fork| own.position > Some(fork))
    }

    /// Writes a message for the log if the node's state is not the one that the log reported last.
    fn remark(&mut self, at: usize) {
        let hides_timeline = self.hides_timeline(&self.nodes[at]);
        let node = &mut self.nodes[at];
        let (level, why) = match &node.state {
            NodeState::Refused(refused) => (Level::Error, Some(refused.why.to_string())),
            NodeState::Unsure(unsure) => (Level::Warning, Some(unsure.why.to_string())),
            NodeState::Down(_) | NodeState::Starting(_) => (Level::Warning, None),
            NodeState::Standby(Member { answer: Answer { hindrance: Some(hindrance), .. }, .. }) => {
                (Level::Warning, Some(hindrance.text().to_owned()))
            }
            // Only once: the error may have another text each time.
            NodeState::Standby(_) if node.lag_error.is_some() => {
                (Level::Warning, Some(LAG_UNKNOWN.to_owned()))
            }
            NodeState::Standby(_) if hides_timeline => (Level::Log, Some(TIMELINE_UNKNOWN.to_owned())),
            _ => (Level::Log, None),
        };
        let told = (node.state.word(), why);
        if node.told.as_ref() == Some(&told) {
            return;
        }
        let error = node.last_error.clone().filter(|_| level == Level::Warning);
        let why = told.1.clone().or(error).map(|why| format!(": {why}")).unwrap_or_default();
        let lag_error = node.lag_error.as_ref().filter(|_| told.1.as_deref() == Some(LAG_UNKNOWN));
        let lag_error = lag_error.map(|text| format!(": {text}")).unwrap_or_default();
        let text = format!("cluster {}: node {} is {}{why}{lag_error}", self.name, node.name, told.0);
        node.told = Some(told);
        self.remarks.push(Remark { level, text });
    }
}
