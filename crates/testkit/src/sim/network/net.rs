//! The virtual network: byte pipes with delay, bounded windows, segments of any size, and ends that come as EOF or reset.

use std::collections::VecDeque;

use crate::sim::rng::Rng;

/// The direction of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dir {
    /// Bytes from a peer (client or server) to the pooler.
    ToPooler,
    /// Bytes from the pooler to a peer.
    ToPeer,
}

/// The way in which a sender ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// An orderly end, after all bytes that were sent.
    Fin,
    /// Abruptly; what was sent before may be lost.
    Reset,
}

/// The behaviour of a run's network.
#[derive(Clone, Debug)]
pub struct NetBehaviour {
    /// Longest delay of a segment, in microseconds.
    pub delay_us_max: u64,
    /// Bytes a pipe takes before the sender must wait (both kernels' buffers).
    pub window_bytes: usize,
    /// The percentage of reads that return only a few bytes.
    pub tiny_reads_percent: u64,
    /// The percentage of writes that are cut into two segments.
    pub cut_writes_percent: u64,
}

#[derive(Debug)]
enum Segment {
    Bytes(Vec<u8>),
    End(End),
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Pipe {
    window_bytes: usize,
    flying: VecDeque<(u64, Segment)>,
    last_arrival_us: u64,
    arrived: Vec<u8>,
    read_up_to: usize,
    /// Bytes taken from the sender and not yet read.
    held: usize,
    /// Bytes that were taken, and that were read, since its beginning.
    taken_bytes: u64,
    read_bytes: u64,
    sender_waits: bool,
    sender_done: bool,
    ended: Option<End>,
    /// The receiver is gone: bytes vanish.
    deaf: bool,
}

/// The times at which the segments of one write arrive.
pub type Arrivals = [Option<u64>; 2];

impl Pipe {
    /// An empty pipe.
    #[must_use]
    pub fn new(behaviour: &NetBehaviour) -> Self {
        Pipe {
            window_bytes: behaviour.window_bytes,
            flying: VecDeque::new(),
            last_arrival_us: 0,
            arrived: Vec::new(),
            read_up_to: 0,
            held: 0,
            taken_bytes: 0,
            read_bytes: 0,
            sender_waits: false,
            sender_done: false,
            ended: None,
            deaf: false,
        }
    }

    /// The sender writes; returns the number of bytes that were taken, and when they arrive.
    pub fn write(
        &mut self,
        now_us: u64,
        behaviour: &NetBehaviour,
        rng: &mut Rng,
        bytes: &[u8],
    ) -> (usize, Arrivals) {
        if self.sender_done || self.deaf {
            return (bytes.len(), [None, None]);
        }
        let taken = bytes.len().min(self.window_bytes.saturating_sub(self.held));
        if taken < bytes.len() {
            self.sender_waits = true;
        }
        if taken == 0 {
            return (0, [None, None]);
        }
        self.held += taken;
        self.taken_bytes += taken as u64;
        let mut arrivals = [None, None];
        let mut rest = &bytes[..taken];
        if taken > 1 && rng.percent(behaviour.cut_writes_percent) {
            let (head, tail) = rest.split_at(1 + rng.index(taken - 1));
            arrivals[0] = Some(self.fly(now_us, behaviour, rng, Segment::Bytes(head.to_vec())));
            rest = tail;
        }
        arrivals[1] = Some(self.fly(now_us, behaviour, rng, Segment::Bytes(rest.to_vec())));
        (taken, arrivals)
    }

    /// The sender ends; returns when the receiver sees it.
    pub fn close(&mut self, now_us: u64, behaviour: &NetBehaviour, rng: &mut Rng, end: End) -> Option<u64> {
        if self.sender_done {
            return None;
        }
        self.sender_done = true;
        if end == End::Reset && rng.percent(50) {
            self.flying.clear();
        }
        Some(self.fly(now_us, behaviour, rng, Segment::End(end)))
    }

    fn fly(&mut self, now_us: u64, behaviour: &NetBehaviour, rng: &mut Rng, segment: Segment) -> u64 {
        let at_us = (now_us + 1 + rng.skewed(behaviour.delay_us_max)).max(self.last_arrival_us);
        self.last_arrival_us = at_us;
        self.flying.push_back((at_us, segment));
        at_us
    }

    /// Lets arrive what is due.
    pub fn arrive(&mut self, now_us: u64, rng: &mut Rng) {
        while self.flying.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            match self.flying.pop_front() {
                Some((_, Segment::Bytes(bytes))) if !self.deaf => self.arrived.extend_from_slice(&bytes),
                Some((_, Segment::End(end))) => {
                    self.ended = Some(end);
                    if end == End::Reset && rng.percent(50) {
                        self.drop_arrived();
                    }
                }
                Some((_, Segment::Bytes(_))) | None => {}
            }
        }
    }

    fn drop_arrived(&mut self) {
        self.arrived.clear();
        self.read_up_to = 0;
    }

    /// The receiver reads up to `bytes_max`; `true` if the sender waits for room.
    pub fn read(&mut self, bytes_max: usize, into: &mut Vec<u8>) -> bool {
        let unread = &self.arrived[self.read_up_to..];
        let taken = unread.len().min(bytes_max);
        into.extend_from_slice(&unread[..taken]);
        self.read_up_to += taken;
        self.held = self.held.saturating_sub(taken);
        self.read_bytes += taken as u64;
        if self.read_up_to == self.arrived.len() {
            self.drop_arrived();
        }
        taken > 0 && std::mem::take(&mut self.sender_waits)
    }

    /// Bytes that were taken from the sender since the beginning.
    #[must_use]
    pub fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Returns the number of these bytes that the receiver has read.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Bytes that can be read now.
    #[must_use]
    pub fn readable(&self) -> usize {
        self.arrived.len() - self.read_up_to
    }

    /// The end, once everything before it was read.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.ended.filter(|&end| self.readable() == 0 || end == End::Reset)
    }

    /// Returns whether no bytes are on their way and none are unread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.readable() == 0
    }

    /// Returns the bytes that were written and not read: those that have arrived, then those on their way.
    pub fn unread(&self) -> impl Iterator<Item = &[u8]> {
        let flying = self.flying.iter().filter_map(|(_, segment)| match segment {
            Segment::Bytes(bytes) => Some(bytes.as_slice()),
            Segment::End(_) => None,
        });
        std::iter::once(&self.arrived[self.read_up_to..]).chain(flying)
    }

    /// The receiver is gone. `true` if the sender waits for room (it will not wait any longer).
    pub fn go_deaf(&mut self) -> bool {
        self.deaf = true;
        self.drop_arrived();
        self.held = 0;
        std::mem::take(&mut self.sender_waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviour() -> NetBehaviour {
        NetBehaviour { delay_us_max: 100, window_bytes: 10, tiny_reads_percent: 0, cut_writes_percent: 50 }
    }

    #[test]
    fn bytes_arrive_once_in_order_and_within_the_window() {
        for seed in 0..200 {
            let (mut rng, behaviour) = (Rng::new(seed), behaviour());
            let mut pipe = Pipe::new(&behaviour);
            let sent: Vec<u8> = (0..100).collect();
            let (mut at, mut got, mut now_us) = (0, Vec::new(), 0);
            while got.len() < sent.len() {
                at += pipe.write(now_us, &behaviour, &mut rng, &sent[at..]).0;
                assert!(at - got.len() <= 10, "window");
                now_us += 30;
                pipe.arrive(now_us, &mut rng);
                pipe.read(rng.index(5), &mut got);
            }
            assert_eq!(got, sent);
        }
    }

    #[test]
    fn an_end_in_order_comes_after_the_bytes() {
        let (mut rng, behaviour) = (Rng::new(3), behaviour());
        let mut pipe = Pipe::new(&behaviour);
        pipe.write(0, &behaviour, &mut rng, b"abc");
        pipe.close(0, &behaviour, &mut rng, End::Fin);
        pipe.arrive(1000, &mut rng);
        assert_eq!(pipe.end(), None);
        pipe.read(3, &mut Vec::new());
        assert_eq!(pipe.end(), Some(End::Fin));
    }

    #[test]
    fn a_full_pipe_tells_when_there_is_room() {
        let (mut rng, behaviour) = (Rng::new(3), behaviour());
        let mut pipe = Pipe::new(&behaviour);
        assert_eq!(pipe.write(0, &behaviour, &mut rng, &[0; 30]).0, 10);
        assert_eq!(pipe.write(0, &behaviour, &mut rng, &[0; 1]).0, 0);
        pipe.arrive(1000, &mut rng);
        assert!(pipe.read(1, &mut Vec::new()));
        assert!(!pipe.read(1, &mut Vec::new()), "told once");
    }
}
