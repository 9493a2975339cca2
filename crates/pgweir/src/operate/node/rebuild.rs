//! `pgweir node rebuild`: an old primary, or a standby that is broken, becomes a standby of the primary that there is now. With
//! pg_rewind if that can be done, otherwise by a new copy.

use std::path::{Path, PathBuf};

use super::checks::{self, Servers};
use super::local::{Control, Local};
use super::programs::{Call, run};
use super::server::Server;
use super::settings::OwnFiles;
use super::{Fault, Work, add, join, remove};

/// Functions that pg_rewind calls at its source.
const REWIND_FUNCTIONS: [&str; 4] = [
    "pg_ls_dir(text, boolean, boolean)",
    "pg_stat_file(text, boolean)",
    "pg_read_binary_file(text)",
    "pg_read_binary_file(text, bigint, bigint, boolean)",
];

/// Makes the node again.
pub(super) fn rebuild(work: &mut Work<'_>) -> Result<(), Fault> {
    let wanted = work.wanted;
    if work.members.primary.as_deref() == Some(wanted.node.as_str()) {
        return Err(Fault::Refused(format!(
            "{} is the primary; first: SWITCHOVER {} TO another node",
            wanted.full_name(),
            wanted.cluster
        )));
    }
    let mut servers = checks::servers(work)?;
    let local = checks::local(work, &servers)?;
    add::clear_left_over(work)?;
    let is_there = wanted.data.join("PG_VERSION").exists();
    if is_there {
        check_identity(&servers, &local)?;
    }
    remove::leave(work)?;
    stop(work, &local)?;
    let is_dry_run = wanted.is_dry_run;
    follow(work, &mut servers, &local, is_there).map_err(|fault| match fault {
        fault if is_dry_run => fault,
        Fault::Refused(why) | Fault::Unusable(why) => Fault::Failed(format!(
            "{why}\nleft: PostgreSQL is stopped, and the node detached; run the command again"
        )),
        fault @ Fault::Failed(_) => fault,
    })
}

/// Makes the stopped server a standby of the primary.
fn follow(
    work: &mut Work<'_>,
    servers: &mut Servers,
    local: &Local<'_>,
    is_there: bool,
) -> Result<(), Fault> {
    let wanted = work.wanted;
    let has_slot = join::look_at_slot(work, &mut servers.primary)?;
    checks::slots_of_primary(servers, has_slot)?;
    let own = if is_there { OwnFiles::read(&wanted.data).map_err(Fault::Failed)? } else { OwnFiles::none() };
    let how = match is_there {
        true => rewind_or_why(work, servers, local)?,
        false => Err(format!("{} has no data", wanted.data.display())),
    };
    let rewound = match how {
        Ok(call) => rewind(work, servers, local, &call, has_slot)?,
        Err(why) => Err(why),
    };
    if let Err(why) = rewound {
        work.say("rewind", &format!("not possible: {why}. A new copy is made"));
        new_copy(work, servers, local, is_there)?;
    }
    if !wanted.is_dry_run && is_there {
        own.restore(&wanted.data).map_err(Fault::Failed)?;
        work.say("settings", &format!("the node's own files are back: {}", own.names()));
    }
    add::finish(work, servers, local)
}

/// The directory must be of this cluster: a wrong `--data` would be another database.
fn check_identity(servers: &Servers, local: &Local<'_>) -> Result<(), Fault> {
    let control = local.control().map_err(Fault::Refused)?;
    if control.system_identifier == servers.facts.system_identifier {
        return Ok(());
    }
    Err(Fault::Refused(format!(
        "{} is no copy of {}: its system identifier is {}, and the cluster's is {}",
        local.data.display(),
        servers.primary.member.place(),
        control.system_identifier,
        servers.facts.system_identifier
    )))
}

fn stop(work: &Work<'_>, local: &Local<'_>) -> Result<(), Fault> {
    if local.status().is_none() {
        work.say("stop", "PostgreSQL does not run");
        return Ok(());
    }
    let call = local.stop_call();
    if !work.only_shows(&call.line()) {
        local
            .stop(&work.interrupt)
            .map_err(|why| Fault::Failed(format!("PostgreSQL did not stop: {why}")))?;
        work.say("stop", &call.line());
    }
    Ok(())
}

/// The call of pg_rewind, or why it cannot be used.
fn rewind_or_why(
    work: &Work<'_>,
    servers: &mut Servers,
    local: &Local<'_>,
) -> Result<Result<Call, String>, Fault> {
    if work.wanted.is_copy {
        return Ok(Err("--copy".to_owned()));
    }
    let control = local.control().map_err(Fault::Refused)?;
    if let Some(why) = why_not(work, &control, local) {
        return Ok(Err(why));
    }
    let primary = &mut servers.primary;
    if let Some(why) = why_not_from(work, primary).map_err(Fault::Failed)? {
        return Ok(Err(why));
    }
    let member = &primary.member;
    let conninfo = work.access.session_conninfo(&member.host, member.port);
    let data = local.data.display().to_string();
    let mut call = local
        .programs
        .call("pg_rewind", &["--target-pgdata", &data, "--source-server", &conninfo, "--progress"]);
    call.0.extend(local.config_file.iter().map(|file| format!("--config-file={}", file.display())));
    if work.wanted.is_dry_run || !is_clean(&control) {
        // pg_rewind lets a crashed server recover first, and can try nothing before that.
        return Ok(Ok(call));
    }
    let mut trial = call.clone();
    trial.0.push("--dry-run".to_owned());
    Ok(run(&trial, &work.interrupt, |_| false).map(|()| call))
}

/// Whether the server was shut down, as a primary or as a standby.
fn is_clean(control: &Control) -> bool {
    control.state.starts_with("shut down")
}

/// The reason why pg_rewind cannot work on the node's own data; `None` if it can.
fn why_not(work: &Work<'_>, control: &Control, local: &Local<'_>) -> Option<String> {
    if !control.has_checksums && !control.has_hints {
        return Some("the node ran without data checksums and without wal_log_hints=on".to_owned());
    }
    if !control.has_full_pages {
        return Some("the node ran with full_page_writes=off".to_owned());
    }
    if local.config_file.is_some() && local.programs.major < 15 {
        return Some("pg_rewind before PostgreSQL 15 takes no --config-file".to_owned());
    }
    (!work.wanted.tablespaces.is_empty() || work.wanted.waldir.is_some())
        .then(|| "--tablespace-mapping and --waldir are for a copy".to_owned())
}

/// The reason why pg_rewind cannot read from the primary; `None` if it can. It finds the primary's timeline in its last checkpoint: one is made if there was none since its
/// promotion.
fn why_not_from(work: &Work<'_>, primary: &mut Server) -> Result<Option<String>, String> {
    let calls = REWIND_FUNCTIONS.map(|name| format!("has_function_privilege('{name}', 'execute')"));
    let allowed = primary.rows(&format!("select {}", calls.join(", ")))?;
    let lacks: Vec<String> = REWIND_FUNCTIONS
        .iter()
        .zip(allowed.first().into_iter().flatten())
        .filter(|(_, allowed)| *allowed != "t")
        .map(|(name, _)| format!("GRANT EXECUTE ON FUNCTION {name} TO {};", work.access.user))
        .collect();
    if !lacks.is_empty() {
        return Ok(Some(format!("in the database postgres of the primary, run: {}", lacks.join(" "))));
    }
    let rows = primary.rows(
        "select timeline_id = ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::int from pg_control_checkpoint()",
    )?;
    let has_checkpoint = rows.first().and_then(|row| row.first()).is_some_and(|same| same == "t");
    if has_checkpoint || work.only_shows_sql(primary, "CHECKPOINT") {
        return Ok(None);
    }
    primary.wait_without_limit();
    match primary.rows("CHECKPOINT") {
        Ok(_) => Ok(None),
        Err(why) => Ok(Some(format!("the primary has made no checkpoint since its promotion, and: {why}"))),
    }
}

/// Rewinds. The inner error says why a copy is needed; the data directory then is not usable.
fn rewind(
    work: &Work<'_>,
    servers: &mut Servers,
    local: &Local<'_>,
    call: &Call,
    has_slot: bool,
) -> Result<Result<(), String>, Fault> {
    // The slot keeps the WAL that the standby needs when it starts.
    join::make_slot(work, &mut servers.primary, has_slot)?;
    if work.only_shows(&call.line()) {
        return Ok(Ok(()));
    }
    let mut last = String::new();
    let done = run(call, &work.interrupt, |line| {
        last = line.trim().to_owned();
        false
    });
    match done {
        Ok(()) => {
            work.say(
                "rewind",
                &format!(
                    "{}, from {}",
                    last.trim_start_matches("pg_rewind: "),
                    servers.primary.member.place()
                ),
            );
            Ok(Ok(()))
        }
        Err(why) => match work.interrupt.check() {
            // The next call finds a directory that pg_rewind refuses, and copies.
            Err(_) => Err(Fault::Failed(format!(
                "pg_rewind was interrupted; {} is not usable\nleft: the slot {}; run the command again with --copy",
                local.data.display(),
                work.wanted.slot
            ))),
            Ok(()) => Ok(Err(why)),
        },
    }
}

/// Moves the old directory aside, and copies.
fn new_copy(work: &Work<'_>, servers: &mut Servers, local: &Local<'_>, is_there: bool) -> Result<(), Fault> {
    let has_slot = servers.primary.slot(&work.wanted.slot).map_err(Fault::Unusable)?.is_some();
    checks::copy(work, servers, has_slot)?;
    let aside = if is_there { move_aside(work, local.data)? } else { None };
    if work.wanted.is_dry_run {
        join::make_slot(work, &mut servers.primary, has_slot)?;
        let slot = servers.is_source_primary().then_some(work.wanted.slot.as_str());
        let call = super::copy::call(work, &local.programs, &servers.source().member, slot);
        work.only_shows(&call.line());
        return Ok(());
    }
    let copied =
        checks::folders(work).and_then(|folders| add::make_copy(work, servers, local, &folders, has_slot));
    match (copied, aside) {
        (Err(Fault::Failed(why) | Fault::Refused(why)), Some(aside)) => {
            let back = std::fs::rename(&aside, local.data);
            let where_is = if back.is_ok() { local.data.display() } else { aside.display() };
            Err(Fault::Failed(format!("{why}\nthe node's old data is in {where_is}")))
        }
        (other, Some(aside)) => {
            other?;
            work.say(
                "copy",
                &format!("the old data is in {}; remove it when you do not need it", aside.display()),
            );
            Ok(())
        }
        (other, None) => other,
    }
}

fn move_aside(work: &Work<'_>, data: &Path) -> Result<Option<PathBuf>, Fault> {
    let name = data.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names = (1..).map(|number| data.with_file_name(format!("{name}.old-{number}")));
    let aside = names.into_iter().find(|path| !path.exists()).expect("there are many numbers");
    let call = ["mv", &data.display().to_string(), &aside.display().to_string()].map(str::to_owned).to_vec();
    if work.only_shows(&Call(call).line()) {
        return Ok(None);
    }
    std::fs::rename(data, &aside).map_err(|error| {
        Fault::Failed(format!(
            "{} cannot be moved to {}: {error}. If it is the root of a file system, empty it, and run the command again",
            data.display(),
            aside.display()
        ))
    })?;
    Ok(Some(aside))
}
