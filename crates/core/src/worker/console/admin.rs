//! The console's clients, and what their commands do. A command goes to every worker (to this one without mail), each does its
//! part for its own pools and answers; the worker of the client that typed it puts the answers together.

use std::sync::Arc;

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_error, encode_notice};
use pgweir_wire::frontend::{Query, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::client_handoff::{Counted, Login};
use crate::context::Activity;
use crate::context::{Cx, Env, KeyOwner};
use crate::driver::{CloseMode, Driver, Level, Peer};
use crate::errors::Fault;
use crate::ids::UnpooledId;
use crate::limits::{BACKLOG_HIGH_BYTES, CONSOLE_QUERY_BYTES_MAX};
use crate::mail::{Mail, Question, Shutdown};
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::console::command::{
    self, Command, CommandSource, FIXED_PARAMETERS, NoCommand, Outcome, PendingCommand, Topic,
};
use crate::worker::console::session::{ConsoleSession, Reply};
use crate::worker::console::table::Row;
use crate::worker::console::{self, Rights, table};
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// A client enters the console.
    pub(crate) fn open_console<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        login: &Login,
        rights: Rights,
        counted: Counted,
    ) -> Step {
        let key = cx.new_cancel_key(KeyOwner::Console(id), 0, None);
        let application = cx.env.application_name(&login.params).map(Box::from);
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let out = &mut cx.env.scratch;
        out.clear();
        backend::encode_auth_ok(out);
        for (name, value) in [
            ("server_version", console::VERSION),
            ("client_encoding", "UTF8"),
            ("server_encoding", "UTF8"),
            ("DateStyle", "ISO"),
            ("TimeZone", "GMT"),
            ("standard_conforming_strings", "on"),
            ("is_superuser", "on"),
        ] {
            backend::encode_parameter_status(out, name.as_bytes(), value.as_bytes());
        }
        backend::encode_backend_key_data(out, key.pid(), &key.secret());
        backend::encode_ready(out, TxStatus::Idle);
        let user = Arc::clone(&login.user);
        let session = ConsoleSession::new(user, application, cx.env.now.mono_us, rights, key, counted);
        client.state = UnpooledState::Console(Box::new(session));
        self.console_logins += 1;
        cx.driver.send(client.conn, &cx.env.scratch);
        Step::Used(0)
    }

    /// A console client has sent bytes.
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
        if console.pending.is_some() || cx.driver.backlog(client.conn) > BACKLOG_HIGH_BYTES {
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

    fn not_a_query<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, message: u8) -> Step {
        let text = format!("unsupported packet type for admin console: {message}");
        self.say_error(cx, id, SqlState::PROTOCOL_VIOLATION, &text);
        self.refuse_unpooled(cx, id, &Fault::Protocol("bad packet".into()))
    }

    fn typed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, text: &str) {
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

    /// The error for a client that typed no known command.
    pub(crate) fn why_none(&self, id: UnpooledId, none: NoCommand) -> String {
        let is_admin = self.console(id).is_some_and(|console| console.rights == Rights::Admin);
        match none {
            NoCommand::Unknown(text) => text,
            NoCommand::Lacking(text) if is_admin => text.to_owned(),
            NoCommand::Lacking(_) => NOT_ADMIN.to_owned(),
        }
    }

    /// Carries out a command if its user may give it. The answer looks as the session's `reply` says.
    pub(crate) fn run_command<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, command: Command) {
        let Some(rights) = self.console(id).map(|console| console.rights) else { return };
        match &command {
            Command::Show(Topic::Help) => return self.say_help(cx, id),
            Command::ShowParameter(index) => {
                let row = vec![Some(FIXED_PARAMETERS[*index].1.to_owned())];
                return self.say_rows(cx, id, &table::columns_of(&command), vec![row]);
            }
            Command::Set { key, .. } if command::is_ignored(key) => {
                cx.env.scratch.clear();
                encode_notice(
                    &mut cx.env.scratch,
                    &Report::notice(SqlState::SUCCESSFUL_COMPLETION, "SET ignored"),
                );
                backend::encode_command_complete(&mut cx.env.scratch, "SET");
                return self.say_ready(cx, id);
            }
            Command::Show(topic) if *topic != Topic::Fds => {}
            _ if rights == Rights::Admin => self.log_command(cx, &command),
            _ => {
                return self.say_error(cx, id, SqlState::PROTOCOL_VIOLATION, NOT_ADMIN);
            }
        }
        if let Err(text) = self.check_command(cx.env, &command) {
            return self.say_error(cx, id, SqlState::PROTOCOL_VIOLATION, &text);
        }
        if command == Command::TakeOver {
            return self.begin_take_over(cx, id);
        }
        self.distribute(cx, CommandSource::Console(id), command);
    }

    /// A command of the control plane. It cannot run commands that need a client to end them, or that end the process.
    pub(crate) fn operate<D: Driver>(&mut self, cx: &mut Cx<'_, D>, ticket: u64, command: Command) {
        let refused = match &command {
            Command::Suspend | Command::Shutdown(_) | Command::TakeOver | Command::ShowParameter(_) => {
                Some("this command can be given on the console only".to_owned())
            }
            command => self.check_command(cx.env, command).err(),
        };
        if let Some(text) = refused {
            return cx.driver.ask(Question::Operated { ticket, result: Err(text) });
        }
        if !matches!(command, Command::Show(_)) {
            self.log_command(cx, &command);
        }
        self.distribute(cx, CommandSource::Control(ticket), command);
    }

    /// A process of our own user wants to take our place: it gets this connection, and then everything else.
    fn begin_take_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        let Some(client) = self.unpooled.get(id) else { return };
        let house = matches!(client.origin.peer, Peer::Unix { same_user: true, .. });
        if !house || cx.env.stopping.is_some() || cx.env.activity != Activity::Active {
            let text = "only a process of the same user can take over, while neither a shutdown nor PAUSE nor SUSPEND is in force";
            return self.say_error(cx, id, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text);
        }
        let Some(client) = self.unpooled.remove(id) else { return };
        cx.env.clear_role(client.conn);
        if let UnpooledState::Console(console) = &client.state {
            self.console_left(cx, id, console);
        }
        cx.driver.surrender(client.conn);
    }

    /// Sends a command to the workers or the control plane, which carry it out, and remembers which client or request asked
    /// for it.
    fn distribute<D: Driver>(&mut self, cx: &mut Cx<'_, D>, source: CommandSource, command: Command) {
        self.tickets += 1;
        let ticket = self.tickets;
        let elsewhere = matches!(command, Command::Reload | Command::Set { .. });
        let missing = if elsewhere { 1 } else { cx.env.shared.workers() };
        let pending = PendingCommand { source, command: command.clone(), missing, outcomes: Vec::new() };
        self.commands.insert(ticket, pending);
        if let CommandSource::Console(id) = source
            && let Some(console) = self.console_mut(id)
        {
            console.pending = Some(ticket);
        }
        let from = cx.env.worker;
        match command {
            Command::Reload => cx.driver.ask(Question::Reload { from, ticket }),
            Command::Set { key, value } => cx.driver.ask(Question::Set { from, ticket, key, value }),
            Command::Shutdown(kind) => {
                for worker in self.other_workers(cx.env) {
                    cx.driver.mail(worker, Mail::Shutdown(kind));
                }
                if kind != Shutdown::Now {
                    // The state is set before the answer: a client that reads the answer finds it true.
                    self.begin_stopping(cx, kind);
                }
                if let (CommandSource::Console(id), Shutdown::Now) = (source, kind) {
                    // The connection just ends.
                    self.remove_unpooled(cx, id, "shutdown", CloseMode::Now);
                } else {
                    self.command_done(cx, ticket, Outcome::Done, true);
                }
                cx.driver.ask(Question::Shutdown(kind));
            }
            command => {
                if let (CommandSource::Console(id), Command::Suspend) = (source, &command) {
                    self.suspended_by = Some(id);
                }
                for worker in self.other_workers(cx.env) {
                    cx.driver.mail(worker, Mail::Command { from, ticket, command: command.clone() });
                }
                self.perform(cx, from, ticket, command);
            }
        }
    }

    /// A worker's answer, or the control plane's. `all` ends the command even if answers of other workers are missing.
    pub(crate) fn command_done<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        ticket: u64,
        outcome: Outcome,
        all: bool,
    ) {
        let Some(pending) = self.commands.get_mut(&ticket) else { return };
        pending.missing -= 1;
        pending.outcomes.push(outcome);
        if pending.missing > 0 && !all {
            return;
        }
        let Some(pending) = self.commands.remove(&ticket) else { return };
        let killed =
            |outcome: &Outcome| matches!(outcome, Outcome::Sums(sums) if sums.iter().any(|(_, n)| *n > 0));
        let failure = match &pending.command {
            Command::KillClient(_) if !pending.outcomes.iter().any(killed) => {
                Some((SqlState::PROTOCOL_VIOLATION, "client not found".to_owned()))
            }
            command => pending.outcomes.iter().find_map(|outcome| failure_of(command, outcome)),
        };
        let id = match pending.source {
            CommandSource::Console(id) => id,
            CommandSource::Control(ticket) => {
                let result = match (failure, &pending.command) {
                    (Some((_, text)), _) => Err(text),
                    (None, Command::Show(topic)) => Ok(self.merge(*topic, pending.outcomes)),
                    (None, _) => Ok(Vec::new()),
                };
                return cx.driver.ask(Question::Operated { ticket, result });
            }
        };
        if let Some(console) = self.console_mut(id) {
            console.pending = None;
        }
        match (failure, &pending.command) {
            (Some((code, text)), _) => self.say_error(cx, id, code, &text),
            (None, Command::Show(topic)) => {
                let rows = self.merge(*topic, pending.outcomes);
                let columns = table::columns_of(&pending.command);
                if *topic == Topic::Fds && self.gets_descriptors(id) {
                    self.say_descriptors(cx, id, &columns, &rows);
                } else {
                    self.say_rows(cx, id, &columns, rows);
                }
            }
            (None, command) => {
                cx.env.scratch.clear();
                for outcome in &pending.outcomes {
                    if let Outcome::Noted(text) = outcome {
                        let notice = Report::notice(SqlState::SUCCESSFUL_COMPLETION, text);
                        encode_notice(&mut cx.env.scratch, &notice);
                    }
                }
                backend::encode_command_complete(&mut cx.env.scratch, &command.tag());
                self.say_ready(cx, id);
            }
        }
        self.due.answered.push(id);
    }

    pub(crate) fn console_mut(&mut self, id: UnpooledId) -> Option<&mut ConsoleSession> {
        match &mut self.unpooled.get_mut(id)?.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }

    fn console(&self, id: UnpooledId) -> Option<&ConsoleSession> {
        match &self.unpooled.get(id)?.state {
            UnpooledState::Console(console) => Some(console),
            _ => None,
        }
    }

    /// Ctrl-C on a console that waits (for PAUSE, SUSPEND, WAIT_CLOSE, SWITCHOVER): it waits no longer, and the command's effects are
    /// undone.
    pub(crate) fn cancel_console<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        let Some(ticket) = self.console(id).and_then(|console| console.pending) else { return };
        let Some(pending) = self.commands.get(&ticket) else { return };
        let undo = match &pending.command {
            // A shutdown relies on it.
            Command::Pause(_) | Command::Suspend if cx.env.stopping == Some(Shutdown::WaitForServers) => {
                return;
            }
            Command::Pause(database) => Some(Command::Resume(database.clone())),
            Command::Suspend => Some(Command::Resume(None)),
            Command::WaitClose(_) => None,
            Command::Switchover { cluster, .. } => {
                Some(Command::Switchover { cluster: cluster.clone(), to: None, force: false })
            }
            _ => return,
        };
        let text = format!("canceling {} due to user request", pending.command.tag());
        self.commands.remove(&ticket);
        if let Some(console) = self.console_mut(id) {
            console.pending = None;
        }
        self.due.undo.extend(undo);
        self.say_error(cx, id, SqlState::QUERY_CANCELED, &text);
        self.due.answered.push(id);
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

    pub(crate) fn distribute_silently<D: Driver>(&mut self, cx: &mut Cx<'_, D>, command: Command) {
        let from = cx.env.worker;
        for worker in self.other_workers(cx.env) {
            cx.driver.mail(worker, Mail::Command { from, ticket: 0, command: command.clone() });
        }
        self.perform(cx, from, 0, command);
    }

    fn log_command<D: Driver>(&self, cx: &mut Cx<'_, D>, command: &Command) {
        let verb = command.tag();
        let verb = verb.split(' ').next().unwrap_or_default().to_owned();
        let line = match command.database() {
            Some(database) => format!("{verb} '{database}' command issued"),
            None => format!("{verb} command issued"),
        };
        cx.log(Level::Log, &line);
    }

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
        encode_error(&mut cx.env.scratch, &Report::error(code, text));
        if let Some(console) = self.console_mut(id)
            && matches!(console.reply, Reply::Execute { .. })
        {
            console.extended.skipping = true;
        }
        self.say_ready(cx, id);
    }

    fn say_help<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        cx.env.scratch.clear();
        let report = Report::notice(SqlState::SUCCESSFUL_COMPLETION, "Console usage").with_detail(HELP);
        encode_notice(&mut cx.env.scratch, &report);
        backend::encode_command_complete(&mut cx.env.scratch, "SHOW");
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
    fn say_rows<D: Driver>(
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

    /// Whether the command can be carried out at all, seen from here.
    fn check_command(&self, env: &Env, command: &Command) -> Result<(), String> {
        if let Some(name) = command.database() {
            let verb = command.tag().to_lowercase();
            if console::is_database(&env.rules.config, name) {
                return Err(match verb.as_str() {
                    "wait_close" => format!("cannot wait in admin db: {name}"),
                    "resume" => format!("database {name} is not paused"),
                    // As PgBouncer has it.
                    "enable" => format!("cannot disable admin db: {name}"),
                    _ => format!("cannot {verb} admin db: {name}"),
                });
            }
            if env.rules.config.database(name).is_none() {
                return Err(format!("no such database: {name}"));
            }
        }
        self.check_cluster_command(env, command)?;
        let idle = env.activity == Activity::Active;
        match command {
            Command::Pause(_) | Command::Kill(_) | Command::Suspend if !idle => {
                Err("already suspended/paused".to_owned())
            }
            Command::Suspend if env.shared.is_any_paused() => {
                Err("cannot suspend with paused databases".to_owned())
            }
            // A shutdown that waits for clients never ends if a pause keeps them and no command may lift it. So RESUME stays
            // allowed there.
            Command::Resume(_)
                if env.stopping == Some(Shutdown::WaitForServers) && env.activity != Activity::Suspended =>
            {
                Err("pooler is shutting down".to_owned())
            }
            Command::Resume(None) if idle => Err("pooler is not paused/suspended".to_owned()),
            Command::Resume(Some(name)) if !env.shared.switches(name).paused => {
                Err(format!("database {name} is not paused"))
            }
            _ => Ok(()),
        }
    }
}

/// The error text for a worker's outcome, or the control plane's, if the command has failed with it.
fn failure_of(command: &Command, outcome: &Outcome) -> Option<(SqlState, String)> {
    match outcome {
        Outcome::Failed(text) if *command == Command::Reload => {
            Some((SqlState::CONFIG_FILE_ERROR, text.clone()))
        }
        Outcome::Failed(text) => Some((SqlState::PROTOCOL_VIOLATION, text.clone())),
        Outcome::Undone(text) => Some((SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, (*text).to_owned())),
        _ => None,
    }
}

/// The error for clients that may only look.
const NOT_ADMIN: &str = "admin access needed";

const HELP: &str = "\n\
    \tSHOW HELP|CONFIG|DATABASES|POOLS|CLIENTS|SERVERS|USERS|VERSION\n\
    \tSHOW PEERS|PEER_POOLS\n\
    \tSHOW FDS|SOCKETS|ACTIVE_SOCKETS|LISTS|MEM|STATE\n\
    \tSHOW DNS_HOSTS|DNS_ZONES\n\
    \tSHOW STATS|STATS_TOTALS|STATS_AVERAGES|TOTALS\n\
    \tSHOW POOLS_EXTENDED|CLIENTS_EXTENDED|SERVERS_EXTENDED|STATS_EXTENDED\n\
    \tSHOW PERCENTILES|STATEMENTS\n\
    \tSHOW CLUSTERS|NODES\n\
    \tSET key = arg\n\
    \tRELOAD\n\
    \tPAUSE [<db>]\n\
    \tRESUME [<db>]\n\
    \tDISABLE <db>\n\
    \tENABLE <db>\n\
    \tRECONNECT [<db>]\n\
    \tKILL [<db>]\n\
    \tKILL_CLIENT <client_id>\n\
    \tATTACH|DRAIN|DETACH NODE <cluster>.<node>\n\
    \tRECHECK <cluster>\n\
    \tSUSPEND\n\
    \tSHUTDOWN\n\
    \tSHUTDOWN WAIT_FOR_SERVERS|WAIT_FOR_CLIENTS\n\
    \tWAIT_CLOSE [<db>]";
