//! Reading: bytes of ready connections are read into the worker's one buffer and passed to the machine,
//! within a budget per connection.

use std::io;

use pgweir_core::driver::{Closed, ConnId};

use crate::connection::conn::Origin;
use crate::connection::table::State;
use crate::sys;
use crate::worker::tick::Worker;
use pgweir_core::Engine;

/// The size of the worker's one read buffer, and so the most that the machine gets at a time.
pub(crate) const READ_BUFFER_BYTES: usize = 128 * 1024;
/// The maximum number of bytes that one connection may bring in per turn, so that the others have their turn.
const READ_BUDGET_BYTES: usize = 256 * 1024;

/// The result of reading once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// The number of bytes that came; there may be more.
    More(usize),
    /// No more bytes for now.
    Dry,
}

impl<E: Engine> Worker<E> {
    /// Reads every connection on the ready list. Connections that are listed in the meantime are read in the
    /// next turn.
    pub(crate) fn read_ready(&mut self) {
        let mut list = std::mem::replace(&mut self.io.ready, std::mem::take(&mut self.spare_list));
        for id in list.drain(..) {
            if let Some(conn) = self.io.table.any(id) {
                conn.read.listed = false;
                self.read_one(id);
            }
        }
        self.spare_list = list;
    }

    fn read_one(&mut self, id: ConnId) {
        let mut budget = READ_BUDGET_BYTES;
        while budget > 0 {
            match self.read_step(id) {
                Step::More(count) => budget = budget.saturating_sub(count),
                Step::Dry => return,
            }
        }
        self.io.list_ready(id);
    }

    fn read_step(&mut self, id: ConnId) -> Step {
        match self.io.table.state(id) {
            Some(State::Open(conn)) if conn.read.paused => Step::Dry,
            Some(State::Open(conn)) if conn.tls.is_some() => self.read_sealed(id),
            Some(State::Open(_)) => self.read_plain(id),
            Some(State::Lingering(_)) => {
                self.io.read_lingering(id, &mut self.buffer).map_or(Step::Dry, Step::More)
            }
            Some(State::Dialing(_) | State::Free) | None => Step::Dry,
        }
    }

    fn read_plain(&mut self, id: ConnId) -> Step {
        let count = match self.fill_buffer(id, 0) {
            Ok(count) => count,
            Err(step) => return step,
        };
        self.engine.received(&mut self.io, id, &self.buffer[..count]);
        Step::More(count)
    }

    /// Reads into the buffer, after the `kept` bytes at its front. Returns `Err` if nothing came; an end has
    /// been reported then.
    fn fill_buffer(&mut self, id: ConnId, kept: usize) -> Result<usize, Step> {
        let Some(conn) = self.io.table.open(id) else { return Err(Step::Dry) };
        if !conn.read.readable {
            return Err(Step::Dry);
        }
        let room = &mut self.buffer[kept..];
        match sys::recv(&conn.socket, room) {
            Ok(0) => {
                self.end(id, Closed::Eof);
                Err(Step::Dry)
            }
            Ok(count) => {
                // A short read has emptied the socket, and the kernel reports later bytes again. But an end
                // that was reported already would be missed.
                conn.read.readable = count == room.len() || conn.read.ended;
                let flows = conn.read.flow.note(count, self.io.now_us);
                if conn.origin == Origin::Accepted && conn.read.window != self.io.window {
                    conn.read.window = self.io.window;
                    self.io.window_clients += 1;
                }
                if flows {
                    self.io.begin_bulk(id);
                }
                Ok(count)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                conn.read.readable = false;
                // A write failed earlier. Everything that the peer sent before has been read, so the end is
                // due.
                if let Some(number) = conn.write.failed {
                    let error = io::Error::from_raw_os_error(number);
                    self.end(id, Closed::Broken(sys::text(&error)));
                }
                Err(Step::Dry)
            }
            Err(e) => {
                self.end(id, Closed::Broken(sys::text(&e)));
                Err(Step::Dry)
            }
        }
    }

    /// Reads TLS records, and passes their contents to the machine in one piece.
    fn read_sealed(&mut self, id: ConnId) -> Step {
        let Some(tls) = self.io.table.open(id).and_then(|conn| conn.tls.as_mut()) else { return Step::Dry };
        if tls.has_undelivered() {
            let bytes = tls.take_undelivered();
            self.engine.received(&mut self.io, id, &bytes);
            self.io.pool.give(bytes);
            return Step::More(0);
        }
        if let Some(why) = tls.ended() {
            self.end(id, why);
            return Step::Dry;
        }
        let kicked = std::mem::take(&mut tls.kicked);
        let kept = tls.unread(&mut self.buffer);
        // A session that has just begun works on bytes that came before it, without a read.
        let count = if kicked {
            0
        } else {
            match self.fill_buffer(id, kept) {
                Ok(count) => count,
                Err(step) => return step,
            }
        };
        self.unseal(id, kept + count);
        Step::More(count)
    }

    fn unseal(&mut self, id: ConnId, filled: usize) {
        let Some(conn) = self.io.table.open(id) else { return };
        let Some(tls) = conn.tls.as_mut() else { return };
        let established = tls.feed(&mut self.buffer[..filled], &mut self.plain, &mut self.io.pool);
        let wants_flush = !tls.wire.is_empty() || established.is_some();
        if established.is_some() && !self.plain.is_empty() {
            // The machine is told of the handshake first, and may then pause, close or hand over the
            // connection.
            tls.keep_undelivered(&self.plain, &mut self.io.pool);
            self.plain.clear();
        }
        if wants_flush {
            self.io.list_dirty(id);
        }
        if let Some(info) = established {
            self.engine.tls_established(&mut self.io, id, info);
        } else if !self.plain.is_empty() {
            self.engine.received(&mut self.io, id, &self.plain);
            self.plain.clear();
        }
    }

    /// Reports the end of a connection. Queued bytes are still sent if the peer can take them.
    pub(crate) fn end(&mut self, id: ConnId, why: Closed) {
        let Some(conn) = self.io.table.open(id) else { return self.io.discard(id) };
        if let Closed::Tls(_) = why {
            // Only the alert still means something to the peer.
            conn.out.clear(&mut self.io.pool);
        }
        match (&why, conn.backlog() > 0) {
            (Closed::Eof, true) => self.io.linger_with(id, true),
            (Closed::Tls(_), true) => self.io.linger_with(id, false),
            _ => self.io.discard(id),
        }
        self.engine.closed(&mut self.io, id, why);
    }
}
