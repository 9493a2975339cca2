//! Bulk: a connection whose peer sends without pause is read in large portions.
//!
//! PostgreSQL and libpq flush every 8 KiB. Each flush would wake the worker for a read and a write of 8 KiB,
//! and most of the cost of a COPY are these wake-ups. So a connection that has brought [`FLOW_BYTES`] without
//! a pause gets a low-water mark (`SO_RCVLOWAT`): the kernel reports it when a whole portion has arrived. The
//! end of the data seldom fills a portion. So a connection that brings nothing for [`FILL_US_MAX`] is read as
//! it is, and leaves bulk mode. That delay is the price, paid at most once in [`FLOW_BYTES`].

use pgweir_core::driver::ConnId;

use crate::connection::conn::ReadSide;
use crate::connection::table::State;
use crate::sys;
use crate::worker::io::Io;

/// The number of bytes that make a flow, if each read has at least [`FLOW_READ_BYTES`] and none comes later
/// than [`FLOW_GAP_US`]. (Tests reach it sooner, however slow the machine.)
const FLOW_BYTES: u32 = if cfg!(test) { 256 * 1024 } else { 16 * 1024 * 1024 };
/// The minimum that a sender flushes while it sends without pause (`PQ_SEND_BUFFER_SIZE` in PostgreSQL's
/// `pqcomm.c`).
const FLOW_READ_BYTES: usize = 8 * 1024;
/// The longest pause in a flow, in microseconds.
const FLOW_GAP_US: u32 = if cfg!(test) { 1_000_000 } else { 1_000 };
/// The size of the portions in which a bulk connection is read.
const PORTION_BYTES: u32 = 64 * 1024;
/// The time that a portion may take to fill, in microseconds.
const FILL_US_MAX: u32 = 1_500;

/// The amount that a connection has brought without a pause.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Flow {
    bytes: u32,
    /// The lower half of the time of the last read, microseconds.
    last_us: u32,
    /// `true` while the connection has a low-water mark and is on the worker's list.
    bulk: bool,
}

impl Flow {
    /// Notes a read. Returns `true` if the connection has become a flow with it.
    #[inline]
    pub(crate) fn note(&mut self, count: usize, now_us: u64) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "only differences count, and they wrap")]
        let now_us = now_us as u32;
        let paused = now_us.wrapping_sub(self.last_us) > FLOW_GAP_US;
        self.last_us = now_us;
        if paused || count < FLOW_READ_BYTES {
            self.bytes = 0;
        }
        self.bytes = self.bytes.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        !self.bulk && self.bytes >= FLOW_BYTES
    }

    /// Returns the time since the last read, in microseconds.
    fn age_us(&self, now_us: u64) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "only differences count, and they wrap")]
        let now_us = now_us as u32;
        now_us.wrapping_sub(self.last_us)
    }
}

impl Io {
    /// Puts a connection that is a flow into bulk mode.
    pub(crate) fn begin_bulk(&mut self, id: ConnId) {
        let Some(State::Open(conn)) = self.table.state(id) else { return };
        // On a unix socket the mark has no effect.
        let marked = conn.socket.domain().is_ok_and(|domain| domain != socket2::Domain::UNIX)
            && sys::set_receive_mark(&conn.socket, PORTION_BYTES).is_ok();
        if marked {
            conn.read.flow.bulk = true;
            self.bulk.push_back((self.now_us + u64::from(FILL_US_MAX), id));
        } else {
            conn.read.flow.bytes = 0;
        }
    }

    /// Ends bulk mode for connections that have paused. Without the mark, the kernel reports the bytes that
    /// are there.
    pub(crate) fn end_bulk(&mut self) {
        for _ in 0..self.bulk.len() {
            let Some(&(due_us, id)) = self.bulk.front() else { return };
            if due_us > self.now_us {
                return;
            }
            self.bulk.pop_front();
            let Some(conn) = self.table.any(id) else { continue };
            let age_us = conn.read.flow.age_us(self.now_us);
            if age_us < FILL_US_MAX {
                self.bulk.push_back((self.now_us + u64::from(FILL_US_MAX - age_us), id));
            } else {
                unmark(&mut conn.read, &conn.socket);
            }
        }
    }
}

/// Ends bulk mode: the connection is read like all others.
pub(crate) fn unmark(read: &mut ReadSide, socket: &socket2::Socket) {
    if std::mem::take(&mut read.flow).bulk {
        // The call cannot fail for a socket that accepted a value before.
        let _ = sys::set_receive_mark(socket, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: usize = 8192;

    fn reads_until_bulk(flow: &mut Flow, from_us: u64, step_us: u64) -> Option<usize> {
        (1..4096).find(|round| flow.note(READ, from_us + *round as u64 * step_us))
    }

    #[test]
    fn only_what_comes_without_pause_is_a_flow() {
        let enough = FLOW_BYTES as usize / READ;
        // The lower half of the clock passes its end on the way.
        let from_us = u64::from(u32::MAX) - 1000;
        assert_eq!(reads_until_bulk(&mut Flow::default(), from_us, 10), Some(enough));
        assert_eq!(reads_until_bulk(&mut Flow::default(), 0, 10), Some(enough));
        assert_eq!(reads_until_bulk(&mut Flow::default(), 0, u64::from(FLOW_GAP_US) + 1), None);
    }

    #[test]
    fn a_short_read_ends_a_flow() {
        let mut flow = Flow::default();
        for round in 0..10_000 {
            let count = if round % 30 == 29 { READ - 1 } else { READ };
            assert!(!flow.note(count, round), "answers one after the other are no bulk");
        }
    }
}
