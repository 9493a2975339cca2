//! The pooler's knowledge of timelines: the time from which a primary of an older one is deposed. Its answers
//! to commits count only as far as the pooler had read them by then, and no more commits are sent to it.

use std::collections::BTreeMap;

use super::Nodes;
use crate::sim::context::LinkId;

/// The check of what is sent.
pub(super) const SENT_TO_DEPOSED: &str =
    "nothing that commits is sent to a primary after a newer timeline is known";

/// A moment at which the pooler learned of a timeline.
#[derive(Clone, Debug)]
struct Moment {
    at_us: u64,
    /// The number of bytes of each connection that the pooler had read.
    read_bytes: Vec<u64>,
}

/// The timelines that the pooler knows, with the times.
#[derive(Clone, Default, Debug)]
pub(super) struct Known {
    moments: BTreeMap<u32, Moment>,
}

impl Known {
    /// Returns the number of bytes of a connection that were read before a timeline newer than this was
    /// known; `None` if none is known.
    pub(super) fn read_before(&self, timeline: u32, link: LinkId) -> Option<u64> {
        let newer = self.moments.range(timeline + 1..).map(|(_, moment)| moment);
        newer.map(|moment| moment.read_bytes.get(link.0).copied().unwrap_or(0)).min()
    }

    /// Returns the time at which a timeline newer than this was known.
    fn since_us(&self, timeline: u32) -> Option<u64> {
        self.moments.range(timeline + 1..).map(|(_, moment)| moment.at_us).min()
    }
}

impl Nodes {
    /// Returns the newest timeline that a line of the pooler's log mentions, if it does.
    #[must_use]
    pub fn timeline_in(line: &str) -> Option<u32> {
        let words =
            [" is the primary (epoch", " has begun, what is open on older ones ends", " counts again"];
        let tells = words.iter().any(|words| line.contains(words));
        let (_, rest) = line.rsplit_once("timeline ").filter(|_| tells)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Notes the newest timeline that the pooler knows. `read_bytes`: the number of bytes that it has read of
    /// each connection so far.
    pub fn pooler_learns(&mut self, timeline: u32, now_us: u64, read_bytes: Vec<u64>) {
        self.known.moments.retain(|known, _| *known <= timeline);
        self.known.moments.entry(timeline).or_insert(Moment { at_us: now_us, read_bytes });
    }

    /// Changes are committed at a node by a message that was sent at this time. What is wrong with that, if anything.
    pub(super) fn sent_to_deposed(&self, node: usize, sent_us: u64) -> Option<(&'static str, String)> {
        let since_us = self.known.since_us(self.nodes[node].place.timeline)?;
        let text =
            format!("node{node} commits what was sent {} us after that", sent_us.saturating_sub(since_us));
        (sent_us > since_us).then_some((SENT_TO_DEPOSED, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_timelines() {
        let told = |line| Nodes::timeline_in(line);
        assert_eq!(told("cluster c: node1 is the primary (epoch 12, timeline 13)"), Some(13));
        assert_eq!(told("cluster c: timeline 4 has begun, what is open on older ones ends"), Some(4));
        assert_eq!(told("cluster c: no node shows timeline 4 any more, timeline 3 counts again"), Some(3));
        assert_eq!(told("cluster c: node node1 is refused: it is an old primary, of timeline 3"), None);
    }

    #[test]
    fn the_first_newer_timeline_counts() {
        let mut known = Known::default();
        known.moments.insert(2, Moment { at_us: 10, read_bytes: vec![7, 8] });
        known.moments.insert(3, Moment { at_us: 20, read_bytes: vec![9, 9, 9] });
        assert_eq!(known.read_before(1, LinkId(1)), Some(8));
        assert_eq!(known.read_before(1, LinkId(2)), Some(0), "it was opened later");
        assert_eq!(known.read_before(2, LinkId(2)), Some(9));
        assert_eq!((known.read_before(3, LinkId(0)), known.since_us(1)), (None, Some(10)));
    }
}
