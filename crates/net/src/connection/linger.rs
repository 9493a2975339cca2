//! Closing in order: the last bytes are sent, then our direction is closed, then the peer gets time to read.
//!
//! If a socket is closed while it has unread bytes of the peer, the kernel sends a reset. A reset makes the
//! peer's kernel discard the bytes that the peer has not read yet: the very message that explains the end. So
//! the socket stays open, and arriving bytes are discarded, until the peer closes too or a limit is reached.

use pgweir_core::driver::{Closed, ConnId};
use std::net::Shutdown;

use crate::connection::conn::{Confirms, Conn, Lingering, Sent, Tools};
use crate::connection::table::State;
use crate::sys;
use crate::worker::io::Io;

/// The time that a closed connection may take to accept its last bytes and to close, in microseconds.
pub(crate) const LINGER_US: u64 = 5_000_000;
/// The number of bytes from a closed connection that are discarded before the connection is dropped.
const LINGER_DISCARD_MAX_BYTES: usize = 1024 * 1024;

impl Io {
    /// Closes a connection for the machine. Queued bytes are still sent.
    pub(crate) fn linger(&mut self, id: ConnId) {
        self.linger_with(id, false);
    }

    /// Closes a connection like [`Io::linger`]. `peer_ended`: the peer has closed its direction already.
    pub(crate) fn linger_with(&mut self, id: ConnId, peer_ended: bool) {
        let Some(state) = self.table.state(id) else { return };
        let State::Open(conn) = std::mem::replace(state, State::Free) else { return };
        // There is no way to send the last bytes, so there is nothing to wait for.
        if conn.write.failed.is_some() {
            *state = State::Open(conn);
            return self.discard(id);
        }
        let has_bytes = conn.read.readable && !peer_ended;
        *state = State::Lingering(Lingering {
            conn,
            shut: false,
            peer_ended,
            discarded_bytes: 0,
            confirms: Confirms::No,
        });
        self.lingering.push_back((self.now_us.saturating_add(LINGER_US), id));
        self.list_dirty(id);
        if has_bytes {
            self.list_ready(id);
        }
    }

    /// Closes a connection for the machine, which is told its end. Without `flushes` the queued bytes are not sent.
    pub(crate) fn confirm(&mut self, id: ConnId, flushes: bool) {
        let Some(State::Open(conn)) = self.table.state(id) else { return self.discard(id) };
        if !flushes {
            conn.drop_queued(&mut self.pool);
        }
        let failed = conn.write.failed.take();
        // The end of a connection whose reads were paused is to be read, too.
        conn.read.paused = false;
        conn.read.readable = true;
        self.linger(id);
        if let Some(State::Lingering(left)) = self.table.state(id) {
            left.confirms = Confirms::Awaits;
        }
        if let Some(code) = failed {
            let error = std::io::Error::from_raw_os_error(code);
            self.end_lingering_connection(id, Closed::Broken(sys::text(&error)));
        }
    }

    /// Drops a lingering connection. If the machine waits for the end, it is told `why` first.
    pub(crate) fn end_lingering_connection(&mut self, id: ConnId, why: Closed) {
        match self.table.state(id) {
            Some(State::Lingering(left)) if left.confirms == Confirms::Awaits => {
                left.confirms = Confirms::Ended;
                self.ends.push_back((id, why));
            }
            Some(State::Lingering(left)) if left.confirms == Confirms::Ended => {}
            _ => self.discard(id),
        }
    }

    /// Closes our direction, after the kernel has taken all bytes of the machine.
    pub(crate) fn finish_sending(&mut self, id: ConnId) {
        let Self { table, pool, scratch, .. } = self;
        let Some(State::Lingering(left)) = table.state(id) else { return };
        if left.shut {
            return;
        }
        match send_close_notify(&mut left.conn, &mut Tools { pool, scratch }) {
            Ok(Sent::Blocked) => return self.block(id),
            Ok(Sent::All) => {}
            Err(e) => return self.write_failed(id, &e),
        }
        left.shut = true;
        let failed = left.conn.socket.shutdown(Shutdown::Write);
        if left.peer_ended {
            self.end_lingering_connection(id, Closed::Eof);
        } else if let Err(error) = failed {
            self.end_lingering_connection(id, Closed::Broken(sys::text(&error)));
        }
    }

    /// Reads and discards bytes. Returns their number, or `None` if there are no more for now.
    pub(crate) fn read_lingering(&mut self, id: ConnId, buffer: &mut [u8]) -> Option<usize> {
        let Some(State::Lingering(left)) = self.table.state(id) else { return None };
        if left.peer_ended || !left.conn.read.readable {
            return None;
        }
        match sys::recv(&left.conn.socket, buffer) {
            Ok(0) => {
                left.peer_ended = true;
                // A peer that has ended does not read what is still queued.
                if left.shut || left.confirms != Confirms::No {
                    self.end_lingering_connection(id, Closed::Eof);
                }
                None
            }
            Ok(count) => {
                left.discarded_bytes += count;
                left.conn.read.readable = count == buffer.len() || left.conn.read.ended;
                if left.discarded_bytes > LINGER_DISCARD_MAX_BYTES && left.confirms == Confirms::No {
                    self.discard(id);
                    return None;
                }
                Some(count)
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                left.conn.read.readable = false;
                None
            }
            Err(error) => {
                self.end_lingering_connection(id, Closed::Broken(sys::text(&error)));
                None
            }
        }
    }
}

/// Sends the message that ends a TLS session (close_notify).
fn send_close_notify(conn: &mut Conn, tools: &mut Tools<'_>) -> std::io::Result<Sent> {
    if let Some(tls) = conn.tls.as_mut() {
        let count = tls.close_notify(tools.scratch);
        tls.wire.push(&tools.scratch[..count], tools.pool);
        if !tls.wire.is_empty() {
            return conn.flush(tools);
        }
    }
    Ok(Sent::All)
}
