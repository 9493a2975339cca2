//! A planned switchover: its steps, and the condition that ends each of them. This module decides when new work waits and when that ends;
//! the workers count open transactions, and the control plane asks Patroni or runs `promote_command`.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use pgweir_settings::Discovery;

use crate::cluster::node::{Node, NodeState};
use crate::cluster::source::Source;
use crate::cluster::view::Switch;
use crate::cluster::{Cluster, Remark, Term};
use crate::driver::Level;

/// The time after which Patroni's answer counts as lost (µs). The control plane gives up a little earlier.
const PATRONI_US: u64 = 65_000_000;

/// The time after the limit of `promote_command` at which its result counts as lost (µs): the control plane ends the program at the limit.
const PROMOTE_MARGIN_US: u64 = 5_000_000;

/// A switchover that is under way.
#[derive(Debug)]
pub(crate) struct Switchover {
    /// The switchover's number in its cluster. An answer to an earlier switchover comes too late and is ignored.
    pub(crate) number: u64,
    pub(crate) to: Arc<str>,
    from: Term,
    force: bool,
    pub(crate) step: Step,
    began_us: u64,
}

/// The step of a switchover, and the time at which the step is given up (monotonic, µs).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// New transactions wait, open ones may end.
    Drains { until_us: u64 },
    /// Transactions that are still open are interrupted (FORCE).
    Cuts { until_us: u64 },
    /// Patroni was asked to switch over.
    Patroni { until_us: u64 },
    /// `promote_command` runs, or has succeeded.
    Command { until_us: u64 },
    /// An operator or another program stops the primary and promotes the target.
    Promotion { until_us: u64 },
}

impl Step {
    fn until_us(self) -> u64 {
        let (Step::Drains { until_us }
        | Step::Cuts { until_us }
        | Step::Patroni { until_us }
        | Step::Command { until_us }
        | Step::Promotion { until_us }) = self;
        until_us
    }
}

/// The result of a switchover; the error text names the step that failed and what to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) number: u64,
    pub(crate) result: Result<(), String>,
}

/// The instruction to the workers about open transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drain {
    /// The number of the switchover.
    pub(crate) number: u64,
    /// Open transactions are interrupted; `false`: they may end.
    pub(crate) cuts: bool,
}

/// The action that follows once no transaction is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    /// The control plane must ask Patroni to make `to` the primary instead of `from`.
    AskPatroni { from: Arc<str>, to: Arc<str> },
    /// The control plane must run `promote_command`, which makes `to` the primary instead of `from`.
    RunCommand { from: Arc<str>, to: Arc<str> },
    /// There is nothing to do: an operator or another program promotes the target.
    Wait,
}

impl Cluster {
    /// Begins a switchover, if the target is fit for it. Returns its number.
    ///
    /// # Errors
    /// The reason why the switchover cannot begin.
    pub(crate) fn begin_switchover(&mut self, to: &str, force: bool, now_us: u64) -> Result<u64, String> {
        self.check_target(to, force)?;
        let Some(from) = self.last.clone() else {
            return Err(format!("cluster {} has no primary", self.name));
        };
        self.switchovers += 1;
        let until_us = now_us.saturating_add(self.limits.drain_us);
        let text = format!("cluster {}: switchover from {} to {to} begins", self.name, from.node);
        self.remarks.push(Remark { level: Level::Log, text });
        self.switchover = Some(Switchover {
            number: self.switchovers,
            to: to.into(),
            from,
            force,
            step: Step::Drains { until_us },
            began_us: now_us,
        });
        self.decide(now_us);
        Ok(self.switchovers)
    }

    /// Checks that the target is a standby that streams and is near enough, and that there is a primary. With `promote_command` and
    /// `force` a cluster that has lost its primary gets a new one.
    fn check_target(&self, to: &str, force: bool) -> Result<(), String> {
        let name = &self.name;
        if let Some(switchover) = &self.switchover {
            return Err(format!("a switchover of cluster {name} to {} is under way", switchover.to));
        }
        let Some(target) = self.node_named(to) else {
            return Err(format!("cluster {name} has no node {to}"));
        };
        let is_lost = self.primary().is_none() && self.last.is_some() && self.limits.promote_us.is_some();
        let primary = self.serving();
        if primary.is_none() && !(is_lost && force) {
            let obstacle = self.view().obstacle;
            let hint = if is_lost {
                format!("; SWITCHOVER {name} TO {to} FORCE promotes {to}")
            } else {
                String::new()
            };
            return Err(format!("cluster {name} has no primary that takes work now: {obstacle}{hint}"));
        }
        if primary.is_some_and(|primary| primary.id == target.id) {
            return Err(format!("node {to} is the primary of cluster {name} already"));
        }
        let member = match &target.state {
            NodeState::Standby(member) if target.switch == Switch::Attached => member,
            NodeState::Standby(_) => {
                return Err(format!("node {to} is {}; ATTACH NODE {name}.{to} first", target.switch.word()));
            }
            state => {
                let why = target.trouble().map(|why| format!(": {why}")).unwrap_or_default();
                return Err(format!("node {to} is {}, and not a standby{why}", state.word()));
            }
        };
        if member.failing.is_some() {
            return Err(format!("node {to} does not answer now"));
        }
        let Some(primary) = primary else { return self.check_newest(target) };
        if member.answer.received.is_none() {
            return Err(format!("node {to} does not stream from the primary"));
        }
        let newest = primary.state.member().and_then(|member| member.answer.position);
        let lag_bytes =
            newest.zip(member.answer.position).map(|(newest, own)| newest.0.saturating_sub(own.0));
        match lag_bytes {
            Some(lag_bytes) if lag_bytes <= self.limits.max_lag_bytes => Ok(()),
            Some(lag_bytes) => Err(format!(
                "node {to} is {lag_bytes} bytes behind, and switchover_max_lag_bytes is {}",
                self.limits.max_lag_bytes
            )),
            None => Err(format!("it is not known how far node {to} is behind")),
        }
    }

    /// Checks that no other standby that answers has more of the lost primary's log than the target.
    fn check_newest(&self, target: &Node) -> Result<(), String> {
        let end = |node: &Node| match &node.state {
            NodeState::Standby(member) if node.switch == Switch::Attached && member.failing.is_none() => {
                member.answer.received.max(member.answer.position)
            }
            _ => None,
        };
        let own = end(target);
        match self.nodes.iter().filter(|node| end(node) > own).max_by_key(|node| end(node)) {
            None => Ok(()),
            Some(newer) => {
                let more_bytes = end(newer).map_or(0, |end| end.0) - own.map_or(0, |own| own.0);
                Err(format!(
                    "node {} has {more_bytes} bytes of the log that node {} has not: promote {} instead",
                    newer.name, target.name, newer.name
                ))
            }
        }
    }

    pub(crate) fn switchover(&self) -> Option<&Switchover> {
        self.switchover.as_ref()
    }

    /// Returns the present instruction to the workers about open transactions; `None` if no drain is under way.
    pub(super) fn drain(&self) -> Option<Drain> {
        let switchover = self.switchover.as_ref()?;
        match switchover.step {
            Step::Drains { .. } => Some(Drain { number: switchover.number, cuts: false }),
            Step::Cuts { .. } => Some(Drain { number: switchover.number, cuts: true }),
            Step::Patroni { .. } | Step::Command { .. } | Step::Promotion { .. } => None,
        }
    }

    /// Begins the next step, as no transaction is open any more. Returns the action that the caller must start; `None` if the switchover is
    /// past that step.
    pub(crate) fn switchover_drained(&mut self, number: u64, now_us: u64) -> Option<Act> {
        let discovery = self.source.as_ref().map_or(Discovery::Sql, Source::discovery);
        let wait_us = self.limits.primary_wait_us.max(self.limits.down_after_us);
        let run_us = self.limits.promote_us.map(|limit_us| limit_us.saturating_add(PROMOTE_MARGIN_US));
        let switchover = self.switchover.as_mut().filter(|switchover| switchover.number == number)?;
        if !matches!(switchover.step, Step::Drains { .. } | Step::Cuts { .. }) {
            return None;
        }
        let (from, to) = (Arc::clone(&switchover.from.node), Arc::clone(&switchover.to));
        let name = &self.name;
        let (step, act, text) = match discovery {
            Discovery::Patroni | Discovery::Etcd => {
                let until_us = now_us.saturating_add(PATRONI_US).saturating_add(wait_us);
                let text = format!(
                    "cluster {name}: no transaction is open, Patroni is asked to switch over to {to}"
                );
                (Step::Patroni { until_us }, Act::AskPatroni { from, to }, text)
            }
            Discovery::Sql | Discovery::Dns => match run_us {
                Some(run_us) => {
                    let until_us = now_us.saturating_add(run_us).saturating_add(wait_us);
                    let text = format!(
                        "cluster {name}: no transaction is open, promote_command is run to make {to} the primary instead of {from}"
                    );
                    (Step::Command { until_us }, Act::RunCommand { from, to }, text)
                }
                None => {
                    let until_us = now_us.saturating_add(wait_us);
                    let text = format!(
                        "cluster {name}: no transaction is open; stop {from} and promote {to} now, clients wait"
                    );
                    (Step::Promotion { until_us }, Act::Wait, text)
                }
            },
        };
        switchover.step = step;
        self.remarks.push(Remark { level: Level::Log, text });
        self.decide(now_us);
        Some(act)
    }

    /// Takes the result of Patroni's switchover or of `promote_command`. A success is not enough to end the switchover: the target must
    /// report to be the primary.
    pub(crate) fn switchover_answered(&mut self, number: u64, answer: &Result<(), String>, now_us: u64) {
        let until_us = now_us.saturating_add(self.limits.primary_wait_us.max(self.limits.down_after_us));
        let Some(switchover) = self.switchover.as_mut().filter(|switchover| switchover.number == number)
        else {
            return;
        };
        let (next, failed) = match switchover.step {
            Step::Patroni { .. } => (Step::Patroni { until_us }, "Patroni did not switch over"),
            Step::Command { .. } => (Step::Command { until_us }, "promote_command did not switch over"),
            Step::Drains { .. } | Step::Cuts { .. } | Step::Promotion { .. } => return,
        };
        match answer {
            Ok(()) => switchover.step = next,
            Err(why) => {
                let (name, to) = (Arc::clone(&self.name), Arc::clone(&switchover.to));
                self.end_switchover(Err(format!(
                    "step 3 failed, {failed} to {to}: {why}; clients go on with the primary that there is; SWITCHOVER {name} TO {to} \
                     tries again"
                )));
            }
        }
        self.decide(now_us);
    }

    /// Ends the switchover on behalf of an operator. A switchover that Patroni or `promote_command` has already begun goes on.
    pub(crate) fn cancel_switchover(&mut self, now_us: u64) -> Result<(), String> {
        if self.switchover.is_none() {
            return Err(format!("no switchover of cluster {} is under way", self.name));
        }
        self.end_switchover(Err("an operator has canceled the switchover; clients go on".to_owned()));
        self.decide(now_us);
        Ok(())
    }

    /// Checks whether the present step has ended. Called whenever the roles are decided.
    pub(super) fn go_on_with_switchover(&mut self, now_us: u64) {
        let Some(switchover) = &mut self.switchover else { return };
        let (name, to, from) =
            (Arc::clone(&self.name), Arc::clone(&switchover.to), Arc::clone(&switchover.from.node));
        let has_role = self.nodes.iter().find(|node| matches!(node.state, NodeState::Primary(_)));
        let is_other = self.last.as_ref() != Some(&switchover.from);
        if let Some(primary) = has_role.filter(|_| is_other) {
            let took_ms = now_us.saturating_sub(switchover.began_us) / 1000;
            let by = Arc::clone(&primary.name);
            if by == to {
                let text =
                    format!("cluster {name}: switchover to {to} is done, clients waited up to {took_ms} ms");
                self.remarks.push(Remark { level: Level::Log, text });
                return self.end_switchover(Ok(()));
            }
            return self.end_switchover(Err(format!(
                "step 4 failed, {by} has become the primary and not {to}; clients go on with it; SWITCHOVER {name} TO {to} tries again"
            )));
        }
        if now_us <= switchover.step.until_us() {
            return;
        }
        match switchover.step {
            Step::Drains { .. } if switchover.force => {
                switchover.step = Step::Cuts { until_us: now_us.saturating_add(self.limits.drain_us.max(1_000_000)) };
            }
            Step::Drains { .. } | Step::Cuts { .. } => self.end_switchover(Err(format!(
                "step 2 failed, transactions were still open on {from} (switchover_drain_ms); nothing was changed and clients go on; \
                 SWITCHOVER {name} TO {to} tries again, SWITCHOVER {name} TO {to} FORCE ends them"
            ))),
            Step::Patroni { .. } => self.end_switchover(Err(format!(
                "step 4 failed, {to} does not say that it is the primary; look at patronictl list; clients go on with the primary that \
                 there is"
            ))),
            Step::Command { .. } => self.end_switchover(Err(format!(
                "step 4 failed, promote_command has ended and {to} does not say that it is the primary; look at SHOW NODES; clients go on \
                 with the primary that there is"
            ))),
            Step::Promotion { .. } => self.end_switchover(Err(format!(
                "step 3 failed, {to} was not promoted in time (primary_wait); clients go on with the primary that there is; \
                 SWITCHOVER {name} TO {to} tries again"
            ))),
        }
    }

    fn end_switchover(&mut self, result: Result<(), String>) {
        let Some(switchover) = self.switchover.take() else { return };
        if let Err(why) = &result {
            let text = format!("cluster {}: switchover to {}: {why}", self.name, switchover.to);
            self.remarks.push(Remark { level: Level::Warning, text });
        }
        self.ended = Some(Ended { number: switchover.number, result });
    }

    /// Returns the result of a switchover that has ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Option<Ended> {
        self.ended.take()
    }

    /// Returns the time at which the present step is given up (monotonic, µs).
    pub(super) fn switchover_expires_us(&self) -> Option<u64> {
        Some(self.switchover.as_ref()?.step.until_us().saturating_add(1))
    }
}
