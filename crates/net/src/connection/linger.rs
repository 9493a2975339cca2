//! Closing in order: the last bytes leave, then our direction is closed, then the peer gets time to read.
//!
//! A socket that is closed while bytes of the peer lie unread in it makes the kernel send a reset, and a reset makes
//! the peer's kernel forget what that has not read yet: the very message that says why. So the socket stays open, and
//! what arrives is thrown away, until the peer closes too or a limit is reached.

use pgweir_core::driver::ConnId;
use std::net::Shutdown;

use crate::connection::conn::{Conn, Lingering, Sent, Tools};
use crate::connection::table::State;
use crate::sys;
use crate::worker::io::Io;

/// How long a closed connection may take to accept its last bytes and to close, microseconds.
pub(crate) const LINGER_US: u64 = 5_000_000;
/// Bytes that are read and thrown away from a closed connection before it is dropped.
const LINGER_DISCARD_MAX_BYTES: usize = 1024 * 1024;

impl Io {
    /// The machine is done with a connection; what is queued still leaves.
    pub(crate) fn linger(&mut self, id: ConnId) {
        self.linger_with(id, false);
    }

    /// As [`Io::linger`], for a peer that has closed its direction already.
    pub(crate) fn linger_with(&mut self, id: ConnId, peer_ended: bool) {
        let Some(state) = self.table.state(id) else { return };
        let State::Open(conn) = std::mem::replace(state, State::Free) else { return };
        if conn.write.failed.is_some() {
            *state = State::Open(conn);
            return self.discard(id);
        }
        let has_bytes = conn.read.readable && !peer_ended;
        *state = State::Lingering(Lingering { conn, shut: false, peer_ended, discarded_bytes: 0 });
        self.lingering.push_back((self.now_us.saturating_add(LINGER_US), id));
        self.list_dirty(id);
        if has_bytes {
            self.list_ready(id);
        }
    }

    /// What the machine had sent is with the kernel: say goodbye.
    pub(crate) fn finish_sending(&mut self, id: ConnId) {
        let Self { table, pool, scratch, .. } = self;
        let Some(State::Lingering(left)) = table.state(id) else { return };
        if left.shut {
            return;
        }
        match say_goodbye(&mut left.conn, &mut Tools { pool, scratch }) {
            Ok(Sent::Blocked) => return self.block(id),
            Ok(Sent::All) => {}
            Err(e) => return self.write_failed(id, &e),
        }
        left.shut = true;
        let failed = left.conn.socket.shutdown(Shutdown::Write).is_err();
        if failed || left.peer_ended {
            self.discard(id);
        }
    }

    /// Reads and throws away; returns the count, or `None` when there is nothing more for now.
    pub(crate) fn read_lingering(&mut self, id: ConnId, buffer: &mut [u8]) -> Option<usize> {
        let Some(State::Lingering(left)) = self.table.state(id) else { return None };
        if left.peer_ended || !left.conn.read.readable {
            return None;
        }
        match sys::recv(&left.conn.socket, buffer) {
            Ok(0) => {
                left.peer_ended = true;
                if left.shut {
                    self.discard(id);
                }
                None
            }
            Ok(count) => {
                left.discarded_bytes += count;
                left.conn.read.readable = count == buffer.len() || left.conn.read.ended;
                if left.discarded_bytes > LINGER_DISCARD_MAX_BYTES {
                    self.discard(id);
                    return None;
                }
                Some(count)
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                left.conn.read.readable = false;
                None
            }
            Err(_) => {
                self.discard(id);
                None
            }
        }
    }
}

/// TLS ends with a message (close_notify).
fn say_goodbye(conn: &mut Conn, tools: &mut Tools<'_>) -> std::io::Result<Sent> {
    if let Some(tls) = conn.tls.as_mut() {
        let count = tls.close_notify(tools.scratch);
        tls.wire.push(&tools.scratch[..count], tools.pool);
        if !tls.wire.is_empty() {
            return conn.flush(tools);
        }
    }
    Ok(Sent::All)
}
