//! The console's clients, and the execution of their commands. A command goes to every worker (to this one without mail); each carries it
//! out for its own pools and answers. The worker of the client that typed it merges the answers.

use std::sync::Arc;

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_notice};

use crate::client_handoff::{Counted, Login};
use crate::context::{Activity, Cx, Env, KeyOwner};
use crate::driver::{CloseMode, Driver, Level, Peer};
use crate::ids::UnpooledId;
use crate::mail::{Mail, Question, Shutdown};
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::console::command::{
    self, Command, CommandSource, FIXED_PARAMETERS, NoCommand, Outcome, PendingCommand, Topic,
};
use crate::worker::console::session::ConsoleSession;
use crate::worker::console::{self, Rights, table};
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// Begins the console session of a client that has logged in.
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
        let server_version = console::server_version(&cx.env.rules.config.main);
        let Some(client) = self.unpooled.get_mut(id) else { return Step::Gone };
        let out = &mut cx.env.scratch;
        out.clear();
        backend::encode_auth_ok(out);
        for (name, value) in [
            ("server_version", &*server_version),
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
                let columns = table::columns_of(&command, cx.env.rules.config.main.compatible_with);
                return self.say_rows(cx, id, &columns, vec![row]);
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
            Command::ShowRoute { .. } => {}
            Command::Show(Topic::Overlay) if !self.is_house(id) => {
                let text = "only a process of the same user can ask for the overlay, over the unix socket";
                return self.say_error(cx, id, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text);
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
            Command::Suspend
            | Command::Shutdown(_)
            | Command::TakeOver
            | Command::ShowParameter(_)
            | Command::Show(Topic::Overlay) => {
                Some("this command can be given on the console only".to_owned())
            }
            command => self.check_command(cx.env, command).err(),
        };
        if let Some(text) = refused {
            return cx.driver.ask(Question::Operated { ticket, result: Err(text) });
        }
        if !matches!(command, Command::Show(_) | Command::ShowRoute { .. }) {
            self.log_command(cx, &command);
        }
        self.distribute(cx, CommandSource::Control(ticket), command);
    }

    /// Whether the client is a process of the user that this one runs as, on the unix socket.
    fn is_house(&self, id: UnpooledId) -> bool {
        let client = self.unpooled.get(id);
        client.is_some_and(|client| matches!(client.origin.peer, Peer::Unix { same_user: true, .. }))
    }

    /// Hands this connection over to a process of our own user that is to replace this one, and then everything else.
    fn begin_take_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        if !self.is_house(id) || cx.env.stopping.is_some() || cx.env.activity != Activity::Active {
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
        let elsewhere = matches!(command, Command::Reload | Command::Set { .. } | Command::TakeVip);
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
            Command::TakeVip => cx.driver.ask(Question::TakeVip { from, ticket }),
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
            let has_cluster =
                env.rules.config.database(name).is_some_and(|database| database.cluster.is_some());
            if matches!(command, Command::ShowRoute { .. }) && !has_cluster {
                return Err(format!("database \"{name}\" has no cluster"));
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

/// The error for clients that may only look.
pub(crate) const NOT_ADMIN: &str = "admin access needed";
