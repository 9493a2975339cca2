//! `pgweir node`: makes a standby a node of a cluster, makes a node again after a failover, and removes it.
//!
//! PostgreSQL's own programs copy, rewind, start and stop; this checks, orders the steps, and says what each did. It runs on the node's
//! machine as PostgreSQL's user: pgweir has no shell on other machines.

mod access;
mod add;
mod checks;
mod copy;
mod join;
mod local;
mod members;
mod options;
mod programs;
mod rebuild;
mod remove;
mod server;
mod settings;

use std::io::Write as _;
use std::process::ExitCode;

use nix::unistd::Uid;

pub(crate) use options::{NODE_HELP, NodeCommand, parse};
use options::{Verb, Wanted};

use access::Access;
use members::Members;
use programs::{Call, shell_quoted};
use server::Server;

use super::interrupt::Interrupt;

/// Exit code: a check refused, and nothing was changed.
const REFUSED: u8 = 1;
/// Exit code: the arguments are wrong, or the cluster cannot be looked at.
pub(crate) const UNUSABLE: u8 = 2;
/// Exit code: a step failed.
const FAILED: u8 = 3;

/// Why the work is not done.
#[derive(Debug)]
enum Fault {
    /// The cluster cannot be looked at.
    Unusable(String),
    /// A check says no. Nothing was changed.
    Refused(String),
    /// A step failed. The text names what was undone and what is left.
    Failed(String),
}

/// Carries the command out.
pub(crate) fn node(command: &NodeCommand) -> ExitCode {
    let wanted = match command {
        NodeCommand::Help => return crate::show(NODE_HELP),
        NodeCommand::Work(wanted) => wanted,
    };
    let done = Work::begin(wanted).and_then(|mut work| match wanted.verb {
        Verb::Add => add::add(&mut work),
        Verb::Rebuild => rebuild::rebuild(&mut work),
        Verb::Remove => remove::remove(&mut work),
    });
    let (code, why) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Fault::Unusable(why)) => (UNUSABLE, why),
        Err(Fault::Refused(why)) => (REFUSED, why),
        Err(Fault::Failed(why)) => (FAILED, why),
    };
    for line in why.lines() {
        eprintln!("pgweir node: {}", pgweir_doctor::printable(line));
    }
    ExitCode::from(code)
}

/// The state that all steps share.
struct Work<'a> {
    wanted: &'a Wanted,
    access: Access,
    members: Members,
    interrupt: Interrupt,
}

impl<'a> Work<'a> {
    /// Looks at the cluster. A cluster whose nodes Patroni makes is refused.
    fn begin(wanted: &'a Wanted) -> Result<Work<'a>, Fault> {
        let access = Access::of_environment(wanted.user.as_deref()).map_err(Fault::Unusable)?;
        if wanted.verb != Verb::Remove && Uid::effective().is_root() {
            return Err(Fault::Refused(
                "run this as the user that PostgreSQL runs as, not as root".to_owned(),
            ));
        }
        let members = Members::look(wanted).map_err(Fault::Unusable)?;
        let work = Work { wanted, access, members, interrupt: Interrupt::catch() };
        if ["patroni", "etcd"].contains(&work.members.discovery.as_str()) {
            return Err(work.patroni(&format!("has discovery={}", work.members.discovery)));
        }
        if !work.members.has_console() {
            work.say(
                "console",
                &format!("cannot be entered ({}): the nodes are those of the file", work.members.no_console),
            );
        }
        Ok(work)
    }

    /// The refusal of a cluster in which Patroni makes and removes nodes.
    fn patroni(&self, how: &str) -> Fault {
        let (cluster, node) = (&self.wanted.cluster, &self.wanted.node);
        Fault::Refused(format!(
            "cluster {cluster} {how}: Patroni makes its nodes. Start Patroni on the machine, or use: patronictl reinit CLUSTER {node}"
        ))
    }

    /// Says what a step did.
    fn say(&self, step: &str, text: &str) {
        if !self.wanted.is_dry_run {
            // A reader that has left is no reason to stop in the middle.
            let _ = writeln!(std::io::stdout(), "{step:<10}{}", pgweir_doctor::printable(text));
        }
    }

    /// With `--dry-run`, prints a command; tells whether that is all to do.
    fn only_shows(&self, line: &str) -> bool {
        if self.wanted.is_dry_run {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        self.wanted.is_dry_run
    }

    /// Prints a statement instead of running it, as `only_shows` does for a program.
    fn only_shows_sql(&self, server: &Server, sql: &str) -> bool {
        let member = &server.member;
        let conninfo = self.access.session_conninfo(&member.host, member.port);
        let call = ["psql", conninfo.as_str(), "-c", sql].map(str::to_owned).to_vec();
        self.only_shows(&Call(call).line())
    }

    /// Prints a command to the console instead of sending it, as `only_shows` does for a program. The password of a URL is not shown.
    fn only_shows_ctl(&self, verb: &str) -> bool {
        let place = match (&self.wanted.config, &self.wanted.url) {
            (_, Some(_)) => " --url=URL".to_owned(),
            (Some(file), None) => format!(" -c {}", shell_quoted(&file.display().to_string())),
            (None, None) => String::new(),
        };
        let name = shell_quoted(&self.wanted.full_name());
        self.only_shows(&format!("pgweir ctl{place} {} {name} --wait", verb.to_lowercase()))
    }

    /// The primary: of the nodes that answer, the one that is not in recovery. `others` gets the standbys.
    fn primary(&self, others: &mut Vec<Server>) -> Result<Server, Fault> {
        let (mut found, mut silent) = (Vec::new(), Vec::new());
        for member in self.members.list.iter().filter(|member| member.name != self.wanted.node) {
            match Server::enter(&self.access, member) {
                Ok(server) if server.is_standby => others.push(server),
                Ok(server) => found.push(server),
                Err(why) => silent.push(why),
            }
        }
        // Where a fenced old primary still runs, the pooler knows which of them counts.
        let named = self.members.primary.as_deref();
        if found.len() > 1 && found.iter().any(|server| Some(server.member.name.as_str()) == named) {
            found.retain(|server| Some(server.member.name.as_str()) == named);
        }
        match (found.pop(), found.is_empty()) {
            (Some(primary), true) => Ok(primary),
            (Some(_), false) => {
                Err(Fault::Refused("several nodes say that they are the primary; see SHOW NODES".to_owned()))
            }
            (None, _) => {
                let silent =
                    if silent.is_empty() { String::new() } else { format!(":\n{}", silent.join("\n")) };
                Err(Fault::Unusable(format!("no primary could be entered as {}{silent}", self.access.user)))
            }
        }
    }
}
