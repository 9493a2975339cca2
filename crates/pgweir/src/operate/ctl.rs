//! `pgweir ctl`: sends a command to the console of a running pooler, and prints the answer for people or scripts.
//!
//! The command uses the console's protocol and no other: psql can do the same.

mod options;
pub(super) mod print;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use pgweir_client::{Answer, Client, Login, ServerError};

pub(super) use options::quoted;
pub(crate) use options::{CTL_HELP, CtlCommand, parse};
use options::{Order, Sending};

use crate::command_line::OverlayOptions;
use crate::doctor::console::{login_of_url, logins, place};
use crate::{check, probe};

/// Exit code: pgweir refused the command.
const REFUSED: u8 = 1;
/// Exit code: the console could not be entered, or the arguments are wrong.
pub(crate) const NOT_ENTERED: u8 = 2;
/// Exit code: the effect did not come in time.
const LATE: u8 = 3;

/// The configuration that the packages install.
pub(super) const CONFIG: &str = "/etc/pgweir/pgweir.ini";

/// The time between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Why a command has no result.
pub(super) enum Failure {
    /// pgweir said no.
    Refused(ServerError),
    /// There is no console, or it went away.
    Lost(String),
    /// The time of `--wait` is over.
    Late(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match ServerError::of(&error) {
            Some(refused) => Failure::Refused(refused.clone()),
            None => Failure::Lost(format!("the console was lost: {error}")),
        }
    }
}

/// Sends, and prints the answer.
pub(crate) fn ctl(command: &CtlCommand) -> ExitCode {
    let sending = match command {
        CtlCommand::Help => return crate::show(CTL_HELP),
        CtlCommand::Send(sending) => sending,
    };
    match send(sending) {
        Ok(page) => crate::show(&page),
        Err(failure) => {
            let (code, state, message) = match failure {
                Failure::Refused(error) => (REFUSED, Some(error.code), error.message),
                Failure::Lost(message) => (NOT_ENTERED, None, message),
                Failure::Late(message) => (LATE, None, message),
            };
            if sending.is_json {
                let _ = std::io::stdout().write_all(print::error(state.as_deref(), &message).as_bytes());
            }
            eprintln!("pgweir ctl: {}", pgweir_doctor::printable(&message));
            ExitCode::from(code)
        }
    }
}

fn send(sending: &Sending) -> Result<String, Failure> {
    let (mut client, login) =
        Way { url: sending.url.as_deref(), config: sending.config.as_deref(), overlay: &sending.overlay }
            .enter_to_command("pgweir ctl")
            .map_err(Failure::Lost)?;
    let answer = match &sending.order {
        Order::Table { text, columns, only } => {
            let mut answer = client.answer(text)?;
            if let Some((column, value)) = only {
                keep(&mut answer, column, value);
            }
            if !sending.is_json {
                print::narrow(&mut answer, columns);
            }
            answer
        }
        Order::Text(text) => client.answer(text)?,
        Order::Switchover { node, is_forced } => {
            let (cluster, node) = full_name(&mut client, node)?;
            let force = if *is_forced { " FORCE" } else { "" };
            client.answer(&format!("SWITCHOVER {} TO {}{force}", quoted(&cluster), quoted(&node)))?
        }
        Order::Switch { verb, node } => {
            let (cluster, node) = full_name(&mut client, node)?;
            let answer = client.answer(&format!("{verb} NODE {}", quoted(&format!("{cluster}.{node}"))))?;
            if let Some(limit) = sending.wait {
                wait_for_node(&mut client, verb, &cluster, &node, limit)?;
            }
            answer
        }
        Order::Stop(text) => stop(client, &login, text, sending.wait)?,
    };
    Ok(if sending.is_json { print::json(&answer) } else { print::text(&answer) })
}

/// The way to a console: a URL, or the file that the pooler runs with.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) url: Option<&'a str>,
    /// The configuration file; `None`: that of the packages.
    pub(super) config: Option<&'a Path>,
    pub(super) overlay: &'a OverlayOptions,
}

impl Way<'_> {
    /// Logs in as [`Way::enter`] does, for commands: PAUSE and SWITCHOVER answer when they are done, so no answer has a limit of time.
    pub(super) fn enter_to_command(self, name: &str) -> Result<(Client, Login), String> {
        let (client, login) = self.enter(name)?;
        client.wait_without_limit().map_err(|error| error.to_string())?;
        Ok((client, login))
    }

    /// Logs in under this application_name; returns the connection, and the login that was accepted.
    pub(super) fn enter(self, name: &str) -> Result<(Client, Login), String> {
        let candidates = match self.url {
            Some(url) => vec![login_of_url(url).map_err(|error| error.to_string())?],
            None => {
                let config = self.config.unwrap_or(Path::new(CONFIG));
                std::fs::metadata(config).map_err(|error| format!("{}: {error}", config.display()))?;
                logins(&check::examine(config, self.overlay).1)
            }
        };
        let mut why = "the file has no way into the console: no unix_socket_dir, and no user of admin_users with a password in auth_file".to_owned();
        for login in candidates {
            let login = login.named(name);
            match Client::log_in(&login) {
                Ok(client) => return Ok((client, login)),
                Err(error) => {
                    why = format!(
                        "could not enter the console at {} as {}: {}",
                        place(&login),
                        login.user,
                        probe::why(&error)
                    );
                }
            }
        }
        Err(why)
    }
}

/// Leaves the rows whose column has this value.
fn keep(answer: &mut Answer, column: &str, value: &str) {
    if let Some(place) = answer.columns.iter().position(|(name, _)| name == column) {
        answer.rows.retain(|row| row.get(place).and_then(Option::as_deref) == Some(value));
    }
}

/// Rows of a table, each as what a column says.
pub(super) fn rows(client: &mut Client, text: &str) -> Result<Vec<impl Fn(&str) -> String + use<>>, Failure> {
    let answer = client.answer(text)?;
    let names: Vec<String> = answer.columns.into_iter().map(|(name, _)| name).collect();
    let names = std::rc::Rc::new(names);
    let row = |cells: Vec<Option<String>>| {
        let names = std::rc::Rc::clone(&names);
        move |column: &str| {
            let place = names.iter().position(|name| name == column);
            place.and_then(|place| cells.get(place)?.clone()).unwrap_or_default()
        }
    };
    Ok(answer.rows.into_iter().map(row).collect())
}

/// The cluster and the node that a name means.
fn full_name(client: &mut Client, name: &str) -> Result<(String, String), Failure> {
    if let Some((cluster, node)) = name.split_once('.') {
        return Ok((cluster.to_owned(), node.to_owned()));
    }
    let rows = rows(client, "SHOW NODES")?;
    let mut clusters = rows.iter().filter(|row| row("node") == name).map(|row| row("cluster"));
    let refused = |message: String| Failure::Refused(ServerError { code: "42704".to_owned(), message });
    match (clusters.next(), clusters.next()) {
        (Some(cluster), None) => Ok((cluster, name.to_owned())),
        (Some(_), Some(_)) => {
            Err(refused(format!("several clusters have a node {name}: write cluster.{name}")))
        }
        (None, _) => Err(refused(format!("there is no node {name}"))),
    }
}

/// Waits until a node takes its whole part, or none.
pub(super) fn wait_for_node(
    client: &mut Client,
    verb: &str,
    cluster: &str,
    node: &str,
    limit: Duration,
) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let rows = rows(client, "SHOW NODES")?;
        let row = rows.iter().find(|row| row("cluster") == cluster && row("node") == node);
        let Some(row) = row else { return Err(Failure::Late(format!("{cluster}.{node} is gone"))) };
        let number = |column: &str| row(column).parse::<u64>().unwrap_or(0);
        let is_done = match verb {
            "ATTACH" if row("state") == "primary" => true,
            "ATTACH" => row("state") == "standby" && number("share") >= 1000 * number("weight"),
            "DRAIN" => number("sv_active") == 0,
            _ => number("sv_active") + number("sv_idle") == 0,
        };
        if is_done {
            return Ok(());
        }
        if began.elapsed() >= limit {
            let (state, share, active) = (row("state"), row("share"), row("sv_active"));
            return Err(Failure::Late(format!(
                "{cluster}.{node} is not there after {} s: state {state}, share {share}, {active} connections are busy",
                limit.as_secs()
            )));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// SHUTDOWN. The process may be gone before it answers.
fn stop(mut client: Client, login: &Login, text: &str, wait: Option<Duration>) -> Result<Answer, Failure> {
    let answer = match client.answer(text).map_err(Failure::from) {
        Err(Failure::Lost(_)) => Answer { tag: "SHUTDOWN".to_owned(), ..Answer::default() },
        other => other?,
    };
    // An open console would be a client that is waited for.
    drop(client);
    let began = Instant::now();
    while let Some(limit) = wait {
        // Another refusal (shutting down) comes from a process that is still there.
        if Client::log_in(login).is_err_and(|error| ServerError::of(&error).is_none()) {
            break;
        }
        if began.elapsed() >= limit {
            return Err(Failure::Late(format!("pgweir has not ended after {} s", limit.as_secs())));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(answer)
}
