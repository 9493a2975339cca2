//! Commands that wait for the other workers or for an event. When the last answer has come, the client that typed the command gets the
//! answer.

use pgweir_wire::backend;
use pgweir_wire::error::{Report, SqlState, encode_notice};

use crate::context::{Activity, Cx, Env};
use crate::driver::{CloseMode, Driver, WorkerId};
use crate::ids::{ClientId, UnpooledId};
use crate::mail::{Mail, Question, Shutdown};
use crate::pool::ServerKind;
use crate::pool::client::leaving::Farewell;
use crate::worker::Worker;
use crate::worker::clusters::report::merged_routes;
use crate::worker::console::command::{Command, CommandSource, Outcome, Task, Topic, Until};
use crate::worker::console::table;

impl Worker {
    /// Answers the commands that are due.
    pub(crate) fn check_commands<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let tasks = std::mem::take(&mut self.tasks);
        for task in tasks {
            if let Until::Switched { cluster, number } = &task.until {
                match self.clusters.switched(cluster, *number) {
                    Some(Ok(())) => self.answer(cx, task.from, task.ticket, Outcome::Done),
                    Some(Err(why)) => self.answer(cx, task.from, task.ticket, Outcome::Failed(why)),
                    None => self.tasks.push_back(task),
                }
                continue;
            }
            let outcome = match self.undone_by(cx.env, &task.until) {
                Some(text) => Outcome::Undone(text),
                None if self.is_reached(cx, &task.until) => {
                    if matches!(task.until, Until::Flushed { .. }) {
                        self.close_unflushed(cx);
                    }
                    Outcome::Done
                }
                None => {
                    self.tasks.push_back(task);
                    continue;
                }
            };
            self.answer(cx, task.from, task.ticket, outcome);
        }
    }

    pub(crate) fn answer<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        ticket: u64,
        outcome: Outcome,
    ) {
        if from == cx.env.worker {
            self.command_done(cx, ticket, outcome, false);
        } else {
            cx.driver.mail(from, Mail::Outcome { ticket, outcome });
        }
    }

    /// Closes the connections whose data SUSPEND could not flush within `suspend_timeout`.
    pub(crate) fn close_unflushed<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let unpooled = self.unpooled.iter().filter(|(_, client)| cx.driver.backlog(client.conn) > 0);
        let stuck: Vec<UnpooledId> = unpooled.map(|(id, _)| id).collect();
        for id in stuck {
            self.remove_unpooled(cx, id, "suspend_timeout", CloseMode::Now);
        }
        self.for_pools(cx, |pool, cx| {
            let clients = pool.clients.iter().filter(|(_, client)| cx.driver.backlog(client.conn) > 0);
            let stuck: Vec<ClientId> = clients.map(|(id, _)| id).collect();
            let left = (CloseMode::Now, Farewell::Refused);
            stuck.into_iter().for_each(|id| pool.remove_client(cx, id, "suspend_timeout", left));
        });
    }

    pub(crate) fn answer_when<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        ticket: u64,
        until: Until,
    ) {
        self.tasks.push_back(Task { from, ticket, until });
        self.check_commands(cx);
    }

    pub(crate) fn is_reached<D: Driver>(&self, cx: &Cx<'_, D>, until: &Until) -> bool {
        match until {
            Until::Released(database) => self.pools_of(database.as_deref()).all(|(_, pool)| {
                let kinds = [ServerKind::Active, ServerKind::Tested, ServerKind::BeingCanceled];
                kinds.into_iter().all(|kind| pool.state.servers(kind) == 0)
            }),
            // `check_commands` looks for its end.
            Until::Switched { .. } => false,
            Until::Closed(database) => self
                .pools_of(database.as_deref())
                .all(|(_, pool)| pool.servers.values().all(|server| server.retiring.is_none())),
            Until::Flushed { deadline_us } => {
                cx.env.now.mono_us >= *deadline_us
                    || self.unpooled.values().all(|client| cx.driver.backlog(client.conn) == 0)
                        && self.pools.values().all(|pool| {
                            let mut clients = pool.clients.values().map(|client| client.conn);
                            let mut servers = pool.servers.values().map(|server| server.conn);
                            clients.all(|conn| cx.driver.backlog(conn) == 0)
                                && servers.all(|conn| cx.driver.backlog(conn) == 0)
                        })
            }
        }
    }

    /// Returns the reason why the awaited state will not come; `None` if it still can. No client may be told that the state is reached when
    /// it is not.
    pub(crate) fn undone_by(&self, env: &Env, until: &Until) -> Option<&'static str> {
        match until {
            Until::Released(Some(name)) if env.rules.config.database(name).is_none() => {
                Some("PAUSE was undone: database removed")
            }
            Until::Released(Some(name)) if env.shared.switches(name).paused => None,
            Until::Released(None) if env.activity == Activity::Paused => None,
            Until::Released(_) => Some("PAUSE was undone by RESUME"),
            Until::Flushed { .. } if env.activity == Activity::Suspended => None,
            Until::Flushed { .. } => Some("SUSPEND was undone by RESUME"),
            Until::Closed(_) | Until::Switched { .. } => None,
        }
    }

    /// Takes the answer of a worker or of the control plane. `all` ends the command even if answers of other workers are missing.
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
        let compatible_with = cx.env.rules.config.main.compatible_with;
        let id = match pending.source {
            CommandSource::Console(id) => id,
            CommandSource::Control(ticket) => {
                let result = match (failure, &pending.command) {
                    (Some((_, text)), _) => Err(text),
                    (None, Command::Show(topic)) => Ok(self.merge(*topic, compatible_with, pending.outcomes)),
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
                let rows = self.merge(*topic, compatible_with, pending.outcomes);
                let columns = table::columns_of(&pending.command, compatible_with);
                if *topic == Topic::Fds && self.gets_descriptors(id) {
                    self.say_descriptors(cx, id, &columns, &rows);
                } else {
                    self.say_rows(cx, id, &columns, rows);
                }
            }
            (None, Command::ShowRoute { database, .. }) => {
                let rows = merged_routes(pending.outcomes);
                if rows.is_empty() {
                    let text = format!(
                        "no client of database \"{database}\" has come yet: what its names stand for is not known"
                    );
                    self.say_error(cx, id, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, &text);
                } else {
                    self.say_rows(cx, id, &table::columns_of(&pending.command, compatible_with), rows);
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

    /// Handles Ctrl-C on a console that waits (for PAUSE, SUSPEND, WAIT_CLOSE or SWITCHOVER): the wait ends, and the command's effects are
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
