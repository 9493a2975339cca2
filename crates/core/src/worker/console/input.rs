//! The messages of a console client: commands as text, and all others.

use pgweir_wire::backend;
use pgweir_wire::error::SqlState;
use pgweir_wire::frontend::{Query, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::limits::CONSOLE_QUERY_BYTES_MAX;
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::console::command::Command;
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// Handles bytes that a console client has sent.
    pub(crate) fn console_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        bytes: &[u8],
    ) -> Step {
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Step::Wait,
            Err(error) => return self.refuse_unpooled(cx, id, &Fault::Protocol(error.to_string().into())),
        };
        let Some(client) = self.unpooled.get(id) else { return Step::Gone };
        let UnpooledState::Console(console) = &client.state else { return Step::Wait };
        if header.tag == tag::TERMINATE {
            return self.unpooled_left(cx, id, "client close request");
        }
        if console.pending.is_some() || cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            return Step::Wait;
        }
        if header.total() > CONSOLE_QUERY_BYTES_MAX {
            return self.refuse_unpooled(cx, id, &Fault::TooLarge("console command is too long".into()));
        }
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else { return Step::Wait };
        let now_us = cx.env.now.mono_us;
        self.console_mut(id).into_iter().for_each(|console| console.request_us = now_us);
        if header.tag != tag::QUERY {
            if !self.console_extended(cx, id, header.tag, body) {
                return self.not_a_query(cx, id, header.tag);
            }
            return if self.unpooled.contains_key(id) { Step::Used(header.total()) } else { Step::Gone };
        }
        let text = match Query::parse(body) {
            Ok(query) => String::from_utf8_lossy(query.text).into_owned(),
            Err(error) => return self.refuse_unpooled(cx, id, &Fault::Protocol(error.to_string().into())),
        };
        self.typed(cx, id, &text);
        if self.unpooled.contains_key(id) { Step::Used(header.total()) } else { Step::Gone }
    }

    pub(crate) fn typed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, text: &str) {
        // Drivers send a comment to see whether the server is alive.
        if text.trim_start().starts_with("--") && !text.contains('\n') {
            cx.env.scratch.clear();
            backend::encode_empty_query(&mut cx.env.scratch);
            return self.say_ready(cx, id);
        }
        match Command::parse(text) {
            Ok(command) => self.run_command(cx, id, command),
            Err(none) => {
                let text = self.why_none(id, none);
                self.say_error(cx, id, SqlState::PROTOCOL_VIOLATION, &text);
            }
        }
    }

    pub(crate) fn not_a_query<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, message: u8) -> Step {
        let text = format!("unsupported packet type for admin console: {message}");
        self.say_error(cx, id, SqlState::PROTOCOL_VIOLATION, &text);
        self.refuse_unpooled(cx, id, &Fault::Protocol("bad packet".into()))
    }
}
