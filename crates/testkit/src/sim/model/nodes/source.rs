//! The source of the model's cluster, as the control plane would report it: mostly honest, and for moments late, stale, wrong, silent, or
//! announcing a switchover that does not come.

use std::sync::Arc;

use pgweir_core::source::{Announced, SourceMember, SourceReport, SourceRole, SourceWord};
use pgweir_settings::Discovery;

use crate::sim::rng::Rng;

/// A mood lasts no longer, so that the pooler hears the truth before a primary's last word is too old.
const MOOD_US_MAX: u64 = 700_000;

/// The kind of the source's answers at present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Honest,
    /// The source reports an old state.
    Stale,
    /// The source names a random node.
    Wrong,
    /// The source names no node as the primary.
    Leaderless,
    /// The part that would know the leader does not answer.
    PartlySilent,
    /// The source does not answer.
    Silent,
    /// The source reports that it could not be asked.
    Fails,
    /// The source gives a list without nodes.
    Empty,
    /// The source announces a switchover.
    Announces,
}

const MOODS: [Mood; 8] = [
    Mood::Stale,
    Mood::Wrong,
    Mood::Leaderless,
    Mood::PartlySilent,
    Mood::Silent,
    Mood::Fails,
    Mood::Empty,
    Mood::Announces,
];

/// See the module's head.
pub struct Source {
    rng: Rng,
    mood: Mood,
    mood_ends_us: u64,
    /// The leader of its last honest report.
    leader: usize,
    /// The time at which the source last gave a wrong report, or none.
    strayed_us: u64,
    interval_us: u64,
}

impl Source {
    /// Creates a source that reports each `interval_us`.
    #[must_use]
    pub fn new(seed: u64, interval_us: u64) -> Source {
        let rng = Rng::new(seed ^ 0x5_0b_5c_e5);
        Source { rng, mood: Mood::Honest, mood_ends_us: 0, leader: 0, strayed_us: 0, interval_us }
    }

    /// Returns the report; `None` if there is none. `calm`: the nodes have no more events, and the source is
    /// honest from now on.
    pub fn says(
        &mut self,
        nodes: usize,
        leader: usize,
        calm: bool,
        now_us: u64,
    ) -> Option<Arc<SourceReport>> {
        if calm {
            self.mood = Mood::Honest;
        } else if now_us >= self.mood_ends_us {
            // The truth stands between two moods.
            let was_honest = self.mood == Mood::Honest;
            self.mood =
                if was_honest && self.rng.percent(30) { *self.rng.pick(&MOODS) } else { Mood::Honest };
            self.mood_ends_us = now_us + self.rng.between(self.interval_us, MOOD_US_MAX);
        }
        if self.mood != Mood::Honest {
            self.strayed_us = now_us;
        }
        let named = match self.mood {
            Mood::Silent => return None,
            Mood::Stale => self.leader,
            Mood::Wrong => self.rng.index(nodes),
            _ => leader,
        };
        if self.mood == Mood::Honest {
            self.leader = leader;
        }
        let member = |number: usize| SourceMember {
            name: format!("n{number}").into(),
            host: format!("node{number}").into(),
            port: 5432,
            role: match self.mood {
                Mood::PartlySilent if number == named => SourceRole::Silent,
                Mood::Leaderless => SourceRole::Other,
                _ if number == named => SourceRole::Primary,
                _ => SourceRole::Other,
            },
        };
        let said = match self.mood {
            Mood::Fails => Err("the model's source fails".to_owned()),
            Mood::Empty => Ok(Vec::new()),
            _ => Ok((0..nodes).map(member).collect()),
        };
        let announced = (self.mood == Mood::Announces).then_some(Announced { to: None });
        let said = said.map(|members| SourceWord { by: "model".into(), members, announced });
        Some(Arc::new(SourceReport { cluster: "main".into(), discovery: Discovery::Patroni, said }))
    }

    /// Returns the time at which the source was last asked and did not report the present state.
    #[must_use]
    pub fn strayed_us(&self) -> u64 {
        self.strayed_us
    }

    /// Returns the time of the next report.
    pub fn next_us(&mut self, now_us: u64) -> u64 {
        now_us + self.rng.between(self.interval_us / 2, self.interval_us)
    }
}
