//! The messages to a console client: rows, errors, and ReadyForQuery.

use std::collections::VecDeque;

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_error, encode_notice};

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::UnpooledId;
use crate::worker::Worker;
use crate::worker::console::SET_FAILED;
use crate::worker::console::admin::NOT_ADMIN;
use crate::worker::console::session::{ConsoleSession, Progress, Reply};
use crate::worker::console::table;
use crate::worker::console::table::{Columns, Formats, Row};
use crate::worker::unpooled::UnpooledState;

impl Worker {
    pub(crate) fn say_error<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        code: SqlState,
        text: &str,
    ) {
        cx.log(Level::Error, text);
        if let Some(client) = self.unpooled.get(id).filter(|_| cx.env.rules.config.main.log_pooler_errors) {
            let line = format!("{} pooler error: {text}", client.log_name());
            cx.log(Level::Warning, &line);
        }
        cx.env.scratch.clear();
        let mut report = Report::error(code, text);
        report.hint = hint(text);
        encode_error(&mut cx.env.scratch, &report);
        if let Some(console) = self.console_mut(id)
            && matches!(console.reply, Reply::Execute { .. })
        {
            console.extended.skipping = true;
        }
        self.say_ready(cx, id);
    }

    /// Sends the collected answer, followed by ReadyForQuery if it answers a Query.
    pub(crate) fn say_ready<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        let reply = self.console_mut(id).map(|console| std::mem::take(&mut console.reply));
        if !matches!(reply, Some(Reply::Execute { .. })) {
            backend::encode_ready(&mut cx.env.scratch, TxStatus::Idle);
        }
        if let Some(client) = self.unpooled.get(id) {
            cx.driver.send(client.conn, &cx.env.scratch);
        }
    }

    /// The whole answer to a SHOW.
    pub(crate) fn say_rows<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        columns: &table::Columns,
        rows: Vec<Row>,
    ) {
        cx.env.scratch.clear();
        match self.console(id).map(|console| console.reply.clone()) {
            Some(Reply::Execute { portal, formats, max_rows }) => {
                self.say_part(cx.env, id, columns, &portal, &formats, max_rows, rows.into());
            }
            _ => {
                let formats = table::Formats::default();
                table::encode_columns(&mut cx.env.scratch, columns, &formats);
                for row in &rows {
                    table::encode_row(&mut cx.env.scratch, columns, &formats, row);
                }
                backend::encode_command_complete(&mut cx.env.scratch, "SHOW");
            }
        }
        self.say_ready(cx, id);
    }

    pub(crate) fn say_help<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        cx.env.scratch.clear();
        let report = Report::notice(SqlState::SUCCESSFUL_COMPLETION, "Console usage").with_detail(HELP);
        encode_notice(&mut cx.env.scratch, &report);
        backend::encode_command_complete(&mut cx.env.scratch, "SHOW");
        self.say_ready(cx, id);
    }

    pub(crate) fn console_mut(&mut self, id: UnpooledId) -> Option<&mut ConsoleSession> {
        match &mut self.unpooled.get_mut(id)?.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }

    pub(crate) fn console(&self, id: UnpooledId) -> Option<&ConsoleSession> {
        match &self.unpooled.get(id)?.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }

    /// Sends as many rows as the client wants; the other rows wait in the portal.
    #[allow(clippy::too_many_arguments, reason = "the parts of one Execute")]
    pub(crate) fn say_part(
        &mut self,
        env: &mut Env,
        id: UnpooledId,
        columns: &Columns,
        portal: &[u8],
        formats: &Formats,
        max_rows: usize,
        mut rows: VecDeque<Row>,
    ) {
        let wanted = if max_rows == 0 { rows.len() } else { max_rows.min(rows.len()) };
        for row in rows.drain(..wanted) {
            table::encode_row(&mut env.scratch, columns, formats, &row);
        }
        if rows.is_empty() {
            backend::encode_command_complete(&mut env.scratch, "SHOW");
            return;
        }
        if let Some(portal) =
            self.console_mut(id).and_then(|console| console.extended.portals.get_mut(portal))
        {
            portal.progress = Progress::Rest(rows);
        }
        backend::encode_portal_suspended(&mut env.scratch);
    }

    pub(crate) fn send_scratch<D: Driver>(&self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        if let Some(client) = self.unpooled.get(id) {
            cx.driver.send(client.conn, &cx.env.scratch);
        }
    }
}

/// A hint for an error whose text, which is PgBouncer's, does not say what to do.
fn hint(text: &str) -> Option<&'static str> {
    match text {
        NOT_ADMIN => Some("This command is for the users in admin_users."),
        SET_FAILED => Some("Nothing has changed. pgweir's log says why."),
        _ => None,
    }
}

const HELP: &str = "\n\
    \tSHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION\n\
    \tSHOW PEERS|PEER_POOLS\n\
    \tSHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE\n\
    \tSHOW DNS_HOSTS|DNS_ZONES\n\
    \tSHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS\n\
    \tSHOW POOLS_EXTENDED|CLIENTS_EXTENDED|SERVERS_EXTENDED|STATS_EXTENDED|CONFIG_EXTENDED\n\
    \tSHOW PERCENTILES|STATEMENTS|CACHE\n\
    \tSHOW CLUSTERS|NODES|OVERLAY|VIP|LIMITS\n\
    \tSHOW ROUTE <db> '<statement>'\n\
    \tSET key = arg\n\
    \tRELOAD\n\
    \tPAUSE [<db>]\n\
    \tRESUME [<db>]\n\
    \tDISABLE <db>\n\
    \tENABLE <db>\n\
    \tRECONNECT [<db>]\n\
    \tCACHE PURGE [<db>]\n\
    \tKILL [<db>]\n\
    \tKILL_CLIENT <client_id>\n\
    \tATTACH|DRAIN|DETACH NODE <cluster>.<node>\n\
    \tRECHECK <cluster>\n\
    \tVIP TAKE FORCE\n\
    \tSWITCHOVER <cluster> TO <node> [FORCE]\n\
    \tSWITCHOVER <cluster> CANCEL\n\
    \tSUSPEND\n\
    \tSHUTDOWN\n\
    \tSHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS\n\
    \tWAIT_CLOSE [<db>]";

#[cfg(test)]
mod tests {
    use super::HELP;
    use crate::worker::console::command::{Command, TOPICS};

    #[test]
    fn help_names_every_table() {
        let shown: Vec<&str> = HELP
            .lines()
            .filter_map(|line| line.trim().strip_prefix("SHOW "))
            .flat_map(|line| line.split('|'))
            .collect();
        for (word, _) in TOPICS {
            assert!(shown.contains(&&*word.to_uppercase()), "SHOW {word} is not in SHOW HELP");
        }
    }

    #[test]
    fn help_names_every_command_in_its_form() {
        let values = [
            ("<db>", "app"),
            ("<cluster>", "main"),
            ("<node>", "m1"),
            ("<client_id>", "7"),
            ("'<statement>'", "'select 1'"),
            ("key = arg", "pool_mode = session"),
            ("[", ""),
            ("]", ""),
        ];
        let mut tags = Vec::new();
        for line in HELP.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let line = values.iter().fold(line.to_owned(), |line, (form, value)| line.replace(form, value));
            // `SHUTDOWN A|B` stands for two commands, and so does `A|B NODE x`.
            let words: Vec<Vec<&str>> = line.split(' ').map(|word| word.split('|').collect()).collect();
            let count = words.iter().map(Vec::len).max().unwrap_or_default();
            for at in 0..count {
                let words: Vec<&str> = words.iter().map(|ways| ways[at.min(ways.len() - 1)]).collect();
                let command = Command::parse(&words.join(" "));
                tags.push(command.unwrap_or_else(|_| panic!("{words:?} is no command")).tag());
            }
        }
        let verbs = "SHOW SET RELOAD PAUSE RESUME DISABLE ENABLE RECONNECT CACHE KILL KILL_CLIENT ATTACH DRAIN DETACH RECHECK \
                     SWITCHOVER VIP SUSPEND SHUTDOWN WAIT_CLOSE";
        for verb in verbs.split(' ').filter(|verb| !verb.is_empty()) {
            assert!(tags.iter().any(|tag| tag.split(' ').next() == Some(verb)), "{verb} is not in SHOW HELP");
        }
    }
}
