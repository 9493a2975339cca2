//! Clients that are in no pool: the loop that takes their bytes through their states, and their end.

use crate::context::{Activity, Cx};
use crate::driver::{CloseMode, Closed, Driver, Level};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::console::command::Command;
use crate::worker::console::session::ConsoleSession;
use crate::worker::unpooled::{Asked, Unpooled, UnpooledState};

/// The reason of an end that is not logged.
pub(crate) const UNSAID: &str = "";

impl Worker {
    /// Stops reading from a client.
    pub(crate) fn pause_unpooled<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        if let Some(client) = self.unpooled.get_mut(id)
            && !client.reads_paused
        {
            client.reads_paused = true;
            cx.driver.pause_reads(client.conn);
        }
    }

    /// Reads from a client again, if no reason for the pause is left. A SUSPEND does not stop reads from consoles, because one of them must
    /// send RESUME.
    pub(crate) fn unpause_unpooled<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        let is_suspended = cx.env.activity == Activity::Suspended && client.console().is_none();
        if !client.reads_paused || is_suspended {
            return;
        }
        if client.inbox.len() > cx.env.limits.inbox_bytes && client.is_stalled()
            || cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes
        {
            return;
        }
        client.reads_paused = false;
        cx.driver.resume_reads(client.conn);
    }

    /// Ends a client with a FATAL error. Returns [`Step::Gone`], so that the caller may end with it.
    pub(crate) fn refuse_unpooled<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        fault: &Fault,
    ) -> Step {
        cx.env.counters.errors.note(fault.code().as_bytes());
        let Some(client) = self.unpooled.get(id) else { return Step::Gone };
        let (text, name) = (fault.text(), client.log_name());
        cx.env.scratch.clear();
        fault.encode(&mut cx.env.scratch);
        cx.driver.send(client.conn, &cx.env.scratch);
        self.remove_unpooled(cx, id, &fault.reason(), CloseMode::Flush);
        if cx.env.rules.config.main.log_pooler_errors {
            cx.log(Level::Warning, &format!("{name} pooler error: {text}"));
        }
        Step::Gone
    }

    /// Removes a client that has sent Terminate, or whose connection is closed without an error message.
    pub(crate) fn unpooled_left<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        reason: &str,
    ) -> Step {
        // It waits only for bytes that were queued before.
        let queued = self.unpooled.get(id).is_some_and(|client| cx.driver.backlog(client.conn) > 0);
        let mode = if queued { CloseMode::Flush } else { CloseMode::Now };
        self.remove_unpooled(cx, id, reason, mode);
        Step::Gone
    }

    /// Removes a client whose connection has ended.
    pub(crate) fn unpooled_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, why: &Closed) {
        match why {
            Closed::Eof => {
                // Connections that close before login are usually health checks: not worth a line.
                let quiet = self.unpooled.get(id).is_some_and(Unpooled::has_said_nothing);
                let reason = if quiet { UNSAID } else { "client unexpected eof" };
                self.remove_unpooled(cx, id, reason, CloseMode::Flush);
            }
            Closed::Broken(text) | Closed::DialFailed(text) | Closed::NameNotResolved(text) => {
                self.remove_unpooled(cx, id, text, CloseMode::Now);
            }
            Closed::Tls(text) => {
                let Some(client) = self.unpooled.get(id) else { return };
                let line = format!("{} TLS handshake error: {text}", client.log_name());
                cx.log(Level::Warning, &line);
                self.remove_unpooled(cx, id, "TLS handshake error", CloseMode::Now);
            }
        }
    }

    /// Removes a client, from whatever state.
    pub(crate) fn remove_unpooled<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        reason: &str,
        mode: CloseMode,
    ) {
        let Some(mut client) = self.unpooled.remove(id) else { return };
        let logged = cx.env.rules.config.main.log_disconnections && reason != UNSAID;
        if logged && cx.driver.log_reaches_anybody(Level::Log) {
            let age_s = cx.env.now.mono_us.saturating_sub(client.origin.since.mono_us) / 1_000_000;
            let line = format!("{} closing because: {reason} (age={age_s}s)", client.log_name());
            cx.log(Level::Log, &line);
        }
        cx.env.clear_role(client.conn);
        cx.driver.close(client.conn, mode);
        cx.env.buffers.give_back(std::mem::take(&mut client.inbox));
        match client.state {
            UnpooledState::AwaitingAnswer(waiting) => {
                if let Asked::Secret { pool, .. } = waiting.asked {
                    self.forget_lookup(cx, cx.env.worker, id, pool);
                }
            }
            UnpooledState::Console(console) => self.console_left(cx, id, &console),
            UnpooledState::Authenticating(_)
            | UnpooledState::Proven(_)
            | UnpooledState::Greeting(_)
            | UnpooledState::Refused(_)
            | UnpooledState::Cancelling(_) => {}
        }
    }

    /// A console client is gone. Its commands go on, except that a SUSPEND is undone: no other client would end it.
    pub(crate) fn console_left<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        console: &ConsoleSession,
    ) {
        cx.env.cancel_keys.remove(&console.cancel_key.head());
        if let Some(ticket) = console.pending {
            self.commands.remove(&ticket);
        }
        if self.suspended_by == Some(id) && cx.env.activity == Activity::Suspended {
            cx.log(Level::Log, "admin disappeared when suspended, doing RESUME");
            self.due.undo.push(Command::Resume(None));
        }
    }
}
