//! Pairs of features that a client uses at the same time, and how often runs met each of them. What is wrong between two features shows only
//! where both are in use: a pair that no run meets is a hole in the tests, or has a reason here.
//!
//! Nothing here looks at the pooler: features are read off the scripts that clients have sent, and off the plan.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::sim::client::script::Wait;
use crate::sim::network::proto::Message;
use crate::sim::plan::{Mode, Plan as RunPlan};

/// A feature of the pooler, as a client uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Feature {
    /// Statements prepared by name through the protocol.
    Named,
    /// PREPARE and EXECUTE.
    SqlPrepared,
    /// A portal that is executed in portions.
    Portal,
    /// COPY in either direction.
    Copy,
    /// LISTEN and NOTIFY.
    Channel,
    /// SET in any form, and startup parameters.
    Setting,
    /// Temporary tables and cursors WITH HOLD.
    SessionObject,
    /// Values drawn from a sequence.
    Sequence,
    /// Session-level advisory locks.
    AdvisoryLock,
    /// Cancel requests.
    Cancel,
    /// Groups that are sent before the one ahead is answered.
    Pipeline,
    /// A BEGIN that the pooler answers by itself.
    DeferredBegin,
    /// Statements that may be queued behind those of other clients.
    Multiplexing,
    /// A route that leads to standbys.
    Standby,
}

use Feature as F;

/// The features, with the words for each in a report.
const FEATURES: [(Feature, &str); 14] = [
    (F::Named, "named statements"),
    (F::SqlPrepared, "PREPARE"),
    (F::Portal, "portals in portions"),
    (F::Copy, "COPY"),
    (F::Channel, "LISTEN"),
    (F::Setting, "SET"),
    (F::SessionObject, "temporary objects"),
    (F::Sequence, "sequences"),
    (F::AdvisoryLock, "advisory locks"),
    (F::Cancel, "cancels"),
    (F::Pipeline, "pipelines"),
    (F::DeferredBegin, "deferred BEGIN"),
    (F::Multiplexing, "multiplexing"),
    (F::Standby, "standbys"),
];

/// Pairs that the simulator's clients do not use together, and the reason.
const UNMET: [(Feature, Feature, &str); 2] = [
    (
        F::DeferredBegin,
        F::Multiplexing,
        "a transaction block has its server for itself, so no statement is queued behind it",
    ),
    (
        F::Cancel,
        F::DeferredBegin,
        "the model cannot tell whether a late request has hit the BEGIN or the statement in the same packet: conversations do this",
    ),
];

/// The kinds of plans in which a pair is expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    /// A single server.
    One,
    /// A cluster: the pairs with standbys.
    Cluster,
}

/// A set of features, one bit for each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Features(u16);

impl Features {
    fn add(&mut self, feature: Feature) {
        self.0 |= 1 << feature as u16;
    }

    fn remove(&mut self, feature: Feature) {
        self.0 &= !(1 << feature as u16);
    }

    fn has(self, feature: Feature) -> bool {
        self.0 & (1 << feature as u16) != 0
    }
}

/// The names of all pairs under which they are counted, in the order of [`FEATURES`].
static NAMES: LazyLock<Vec<(Feature, Feature, &'static str)>> = LazyLock::new(|| {
    let pairs = FEATURES.iter().enumerate().flat_map(|(at, first)| {
        FEATURES[at + 1..].iter().map(move |second| {
            let name = format!("{} x {}", first.1, second.1);
            // One string for each pair, for the life of the process.
            let name: &'static str = Box::leak(name.into_boxed_str());
            (first.0, second.0, name)
        })
    });
    pairs.collect()
});

fn reason(pair: (Feature, Feature)) -> Option<&'static str> {
    UNMET.iter().find(|(first, second, _)| (*first, *second) == pair).map(|(.., reason)| *reason)
}

/// The names of the pairs that two thousand seeds of a plan must meet.
pub fn wanted(plan: Plan) -> impl Iterator<Item = &'static str> {
    NAMES.iter().filter_map(move |&(first, second, name)| {
        let is_of_cluster = first == F::Standby || second == F::Standby;
        (is_of_cluster == (plan == Plan::Cluster) && reason((first, second)).is_none()).then_some(name)
    })
}

/// Returns whether a counter has the name of a pair.
#[must_use]
pub fn is_pair(counter: &str) -> bool {
    NAMES.iter().any(|(.., name)| *name == counter)
}

/// One line for a report: the number of pairs met, and those that were met least.
#[must_use]
pub fn report(counters: &BTreeMap<&'static str, u64>) -> String {
    let times = |name| counters.get(name).copied().unwrap_or(0);
    let mut pairs: Vec<(u64, &str)> = NAMES.iter().map(|&(.., name)| (times(name), name)).collect();
    pairs.sort_unstable();
    let met = pairs.iter().filter(|(times, _)| *times > 0).count();
    let rarest: Vec<String> = pairs.iter().take(12).map(|(times, name)| format!("{times} {name}")).collect();
    format!("{met} of {} pairs of features met; the rarest: {}", pairs.len(), rarest.join(", "))
}

/// The features that one client uses, as far as its script has come.
#[derive(Clone, Default, Debug)]
pub struct InUse {
    /// Features that last until the session ends or gives them up.
    session: Features,
    /// Features of the open transaction block, or of the last group outside of one.
    transaction: Features,
    /// A transaction block is open.
    in_block: bool,
}

impl InUse {
    /// A client sends the messages of a step; with what it then waits for, and the time of a cancel request. Returns the names of the
    /// pairs that are in use with it.
    pub fn send(
        &mut self,
        plan: &RunPlan,
        database: &str,
        messages: &[Message],
        (wait, cancel_after_us): (Wait, Option<u64>),
    ) -> Vec<&'static str> {
        if !self.in_block {
            self.transaction = Features::default();
        }
        if cancel_after_us.is_some() {
            self.transaction.add(F::Cancel);
        }
        let groups = messages.iter().filter(|message| matches!(message.tag, b'S' | b'Q' | b'F')).count();
        if wait == Wait::Nothing || groups > 1 {
            self.transaction.add(F::Pipeline);
        }
        let mut ends_block = false;
        for message in messages {
            ends_block = self.note(plan, message, ends_block);
        }
        let mut all = Features(self.session.0 | self.transaction.0);
        if !self.in_block && plan.mode != Mode::Session && plan.multiplex.0 > 1 {
            all.add(F::Multiplexing);
        }
        if plan.route_of(database).is_some_and(|route| route != "primary") {
            all.add(F::Standby);
        }
        self.in_block &= !ends_block;
        NAMES
            .iter()
            .filter(|(first, second, _)| all.has(*first) && all.has(*second))
            .map(|(.., name)| *name)
            .collect()
    }

    /// Notes one message; returns whether the transaction block is ended with the step.
    fn note(&mut self, plan: &RunPlan, message: &Message, ends_block: bool) -> bool {
        let text = |from: usize| {
            let body = message.body.get(from..).unwrap_or_default();
            String::from_utf8_lossy(body.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
        };
        match message.tag {
            b'Q' => self.note_text(plan, &text(0), ends_block),
            b'P' => {
                let name = text(0);
                if !name.is_empty() {
                    self.session.add(F::Named);
                }
                self.note_text(plan, &text(name.len() + 1), ends_block)
            }
            b'E' => {
                let rows = message.body.iter().rev().take(4).any(|&byte| byte != 0);
                if rows {
                    self.transaction.add(F::Portal);
                }
                ends_block
            }
            b'd' | b'c' | b'f' => {
                self.transaction.add(F::Copy);
                ends_block
            }
            _ => ends_block,
        }
    }

    /// Notes a statement's text. The simulator's statements begin with the words that matter.
    fn note_text(&mut self, plan: &RunPlan, text: &str, ends_block: bool) -> bool {
        let mut ends = ends_block;
        for statement in text.split(';') {
            let words = statement.trim_start().to_ascii_uppercase();
            let begins = |prefix: &str| words.starts_with(prefix);
            if begins("BEGIN") || begins("START TRANSACTION") {
                (self.in_block, ends) = (true, false);
                if plan.defer_begin() != "off" && !begins("BEGIN AS ALWAYS") {
                    self.transaction.add(F::DeferredBegin);
                }
            } else if begins("COMMIT") || begins("END") || begins("ROLLBACK") {
                ends = true;
            } else if begins("DISCARD ALL") {
                self.session = Features::default();
            } else {
                self.note_feature(&words);
            }
        }
        ends
    }

    fn note_feature(&mut self, words: &str) {
        let begins = |prefix: &str| words.starts_with(prefix);
        let ends: &[(&str, Feature)] = &[
            ("DEALLOCATE ALL", F::Named),
            ("DEALLOCATE", F::SqlPrepared),
            ("UNLISTEN", F::Channel),
            ("RESET", F::Setting),
            ("DROP TABLE", F::SessionObject),
            ("CLOSE", F::SessionObject),
        ];
        // What gives a feature up uses it, too: the pair counts for this transaction.
        if let Some((_, feature)) = ends.iter().find(|(prefix, _)| begins(prefix)) {
            self.session.remove(*feature);
            self.transaction.add(*feature);
        } else if begins("PREPARE") || begins("EXECUTE") {
            self.session.add(F::SqlPrepared);
        } else if begins("LISTEN") || begins("NOTIFY") {
            self.session.add(F::Channel);
        } else if begins("SET LOCAL") {
            self.transaction.add(F::Setting);
        } else if begins("SET") {
            self.session.add(F::Setting);
        } else if begins("CREATE TEMP") || begins("DECLARE") {
            self.session.add(F::SessionObject);
        } else if begins("COPY") {
            self.transaction.add(F::Copy);
        } else if words.contains("ADVISORY_UNLOCK") {
            self.session.remove(F::AdvisoryLock);
            self.transaction.add(F::AdvisoryLock);
        } else if words.contains("ADVISORY_LOCK") {
            self.session.add(F::AdvisoryLock);
        } else if words.contains("NEXTVAL")
            || words.contains("CURRVAL")
            || words.contains("LASTVAL")
            || words.contains("A_SEQ")
        {
            self.transaction.add(F::Sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FEATURES, InUse, NAMES, Plan, UNMET, wanted};
    use crate::sim::client::message::query;
    use crate::sim::client::script::Wait;
    use crate::sim::plan::Plan as RunPlan;
    use crate::sim::subject::Subject;

    #[test]
    fn every_pair_has_a_plan_or_a_reason() {
        assert_eq!(NAMES.len(), FEATURES.len() * (FEATURES.len() - 1) / 2);
        let expected = wanted(Plan::One).count() + wanted(Plan::Cluster).count();
        assert_eq!(expected + UNMET.len(), NAMES.len());
    }

    #[test]
    fn what_a_session_holds_meets_what_a_transaction_uses() {
        let mut plan = RunPlan::new(1, &pgweir_core::Machine::profile());
        plan.multiplex.0 = 0;
        let mut uses = InUse::default();
        let mut send = |text: &str| uses.send(&plan, "none", &[query(text)], (Wait::Answers, None));
        assert!(send("LISTEN ch1").is_empty());
        assert_eq!(send("COPY t TO STDOUT"), ["COPY x LISTEN"]);
        assert!(send("SELECT 1").is_empty(), "the COPY is over");
        send("DISCARD ALL");
        assert!(send("COPY t TO STDOUT").is_empty(), "nothing listens");
    }
}
