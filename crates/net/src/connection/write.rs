//! Writing: the flush at the end of a turn, full sockets, and failed writes.

use std::io;

use mio::Interest;
use pgweir_core::driver::{Closed, ConnId, Level};

use crate::connection::conn::{Origin, Sent, Tools};
use crate::connection::table::{State, token};
use crate::sys;
use crate::worker::io::{Io, Report};

impl Io {
    /// Writes the bytes that were queued during the turn: one write per connection, or one call for all of
    /// them if the kernel can.
    pub(crate) fn flush_dirty(&mut self) {
        let mut list = std::mem::take(&mut self.dirty);
        if list.len() > 1 && self.uring_batch.is_ready() {
            self.send_all(&list);
        }
        for (at, id) in list.drain(..).enumerate() {
            let Self { table, pool, scratch, uring_batch, .. } = self;
            let Some(state) = table.state(id) else { continue };
            let conn = match state {
                State::Open(conn) => conn,
                State::Lingering(lingering) => &mut lingering.conn,
                State::Dialing(_) | State::Free => continue,
            };
            conn.write.listed = false;
            if conn.write.blocked {
                continue;
            }
            let flushed = match uring_batch.outcome(at) {
                Some(sent) => conn.note_batch_send(sent, pool),
                None => conn.flush(&mut Tools { pool, scratch }),
            };
            // This is the usual case: everything is sent, and no caller waits for the report.
            let is_all = matches!(flushed, Ok(Sent::All)) && !conn.write.deep && conn.tls.is_none();
            if !(is_all && matches!(state, State::Open(_))) {
                self.after_flush(id, flushed);
            }
        }
        self.uring_batch.end();
        // The larger allocation is kept. Only lingering connections can have been listed in the meantime.
        list.append(&mut self.dirty);
        self.dirty = list;
    }

    /// Sends in one batch what needs no further work.
    fn send_all(&mut self, list: &[ConnId]) {
        let Self { table, uring_batch, .. } = self;
        match uring_batch.send_all(list.iter().map(|&id| table.peek(id)?.batch_send())) {
            Ok(count) => self.batched_sends += count as u64,
            Err(e) => {
                let line =
                    format!("io_uring failed ({}): from now on messages are sent one by one", sys::text(&e));
                self.say(Level::Warning, &line);
            }
        }
    }

    /// Continues to write when the poll reports room.
    pub(crate) fn writable(&mut self, id: ConnId) {
        if self.table.any(id).is_some_and(|conn| conn.write.blocked) {
            self.flush_one(id);
        }
    }

    fn flush_one(&mut self, id: ConnId) {
        let Self { table, pool, scratch, .. } = self;
        let Some(conn) = table.any(id) else { return };
        let flushed = conn.flush(&mut Tools { pool, scratch });
        self.after_flush(id, flushed);
    }

    fn after_flush(&mut self, id: ConnId, flushed: io::Result<Sent>) {
        match flushed {
            Ok(Sent::All) => self.flushed(id),
            Ok(Sent::Blocked) => self.block(id),
            Err(e) => self.write_failed(id, &e),
        }
    }

    /// Watches a full socket for room. This function and its counterpart are the only ones that change the
    /// interest.
    pub(crate) fn block(&mut self, id: ConnId) {
        let Some(conn) = self.table.any(id) else { return };
        if std::mem::replace(&mut conn.write.blocked, true) {
            return;
        }
        conn.write.deep = true;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let watched = sys::reregister(&self.registry, &conn.socket, token(id), interest);
        if let Err(e) = watched {
            self.write_failed(id, &e);
        }
    }

    /// Follows up on a flush that has written everything it could.
    fn flushed(&mut self, id: ConnId) {
        let Some(conn) = self.table.any(id) else { return };
        if std::mem::take(&mut conn.write.blocked) {
            let watched = sys::reregister(&self.registry, &conn.socket, token(id), Interest::READABLE);
            if let Err(e) = watched {
                return self.write_failed(id, &e);
            }
        }
        let Some(state) = self.table.state(id) else { return };
        match state {
            // Plain text may be waiting for the end of a handshake, which is still a backlog.
            State::Open(conn) if conn.backlog() == 0 => {
                if std::mem::take(&mut conn.write.deep) {
                    self.reports.push_back((id, Report::Drained));
                }
            }
            State::Lingering(_) => self.finish_sending(id),
            State::Open(_) | State::Dialing(_) | State::Free => {}
        }
    }

    /// Notes that nothing can be sent to the peer any more. What the peer sent before is still read first,
    /// then the end is reported. Only a paused client, whose bytes are not wanted, is reported at once.
    pub(crate) fn write_failed(&mut self, id: ConnId, error: &io::Error) {
        let Some(state) = self.table.state(id) else { return };
        let State::Open(conn) = state else {
            return self.end_lingering_connection(id, Closed::Broken(sys::text(error)));
        };
        if conn.write.failed.is_some() {
            return;
        }
        conn.write.failed = Some(error.raw_os_error().unwrap_or(0));
        conn.drop_queued(&mut self.pool);
        conn.write.blocked = false;
        let broken = Closed::Broken(sys::text(error));
        let report = match (conn.read.paused, conn.origin) {
            (true, Origin::Accepted) => Report::Closed(broken),
            // The other end of the link may wait for this backlog to be sent, and must not wait forever.
            _ => Report::Drained,
        };
        conn.read.readable = true;
        conn.read.ended = true;
        self.reports.push_back((id, report));
        self.list_ready(id);
    }

    /// Drops the connections whose time to linger is over.
    pub(crate) fn end_lingering(&mut self) {
        while let Some(&(due_us, id)) = self.lingering.front()
            && due_us <= self.now_us
        {
            self.lingering.pop_front();
            if let Some(State::Lingering(left)) = self.table.state(id) {
                let unsent = left.conn.backlog();
                if unsent > 0 {
                    self.say(
                        Level::Debug,
                        &format!("a closed connection did not take its last {unsent} bytes"),
                    );
                }
                let why = Closed::Broken("the peer did not close the connection in time".to_owned());
                self.end_lingering_connection(id, why);
            }
        }
    }
}
