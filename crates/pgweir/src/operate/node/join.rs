//! The steps that add and rebuild share: the slot on the primary, the settings of the standby, its start, the wait until it streams, and
//! its place in the pooler.

use std::thread;
use std::time::{Duration, Instant};

use super::checks::Servers;
use super::copy::{application_name, size};
use super::local::Local;
use super::options::Verb;
use super::programs::{LOOK_EVERY, shell_quoted};
use super::server::{NOT_LOWER, Server, create_slot, drop_slot};
use super::settings::{self, Entries};
use super::{Fault, Work};

/// How long a slot may be in use by the connection of a copy that has just failed.
const SLOT_WAIT: Duration = Duration::from_secs(30);

/// The time between two lines about a wait.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Whether the slot is there. A connection that a failed copy has left at the primary is ended.
///
/// # Errors
/// Another standby uses the slot.
pub(super) fn look_at_slot(work: &Work<'_>, primary: &mut Server) -> Result<bool, Fault> {
    let slot = &work.wanted.slot;
    let Some(found) = primary.slot(slot).map_err(Fault::Refused)? else { return Ok(false) };
    if !found.is_active || work.wanted.is_dry_run {
        return Ok(true);
    }
    end_copies(work, primary).map_err(Fault::Unusable)?;
    let began = Instant::now();
    while primary.slot(slot).map_err(Fault::Unusable)?.is_some_and(|found| found.is_active) {
        if began.elapsed() >= SLOT_WAIT || !is_of_copy(work, primary).map_err(Fault::Unusable)? {
            return Err(Fault::Refused(format!(
                "{}: a standby streams with the slot {slot}: it runs already, or has this name; name another one with --slot",
                primary.member.place()
            )));
        }
        work.interrupt.check().map_err(Fault::Refused)?;
        thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

/// The condition by which the connection of this node's copy is found.
fn copy_with_slot(work: &Work<'_>) -> String {
    let name = application_name(&work.wanted.node).replace('\'', "''");
    format!(
        "pg_replication_slots s join pg_stat_replication r on r.pid = s.active_pid where s.slot_name = '{}' and r.application_name = '{name}'",
        work.wanted.slot
    )
}

fn end_copies(work: &Work<'_>, primary: &mut Server) -> Result<(), String> {
    primary.rows(&format!("select pg_terminate_backend(r.pid) from {}", copy_with_slot(work))).map(drop)
}

fn is_of_copy(work: &Work<'_>, primary: &mut Server) -> Result<bool, String> {
    Ok(!primary.rows(&format!("select 1 from {}", copy_with_slot(work)))?.is_empty())
}

/// Makes the slot, if it is not there. Tells whether it was made.
pub(super) fn make_slot(work: &Work<'_>, primary: &mut Server, has_slot: bool) -> Result<bool, Fault> {
    let (slot, place) = (&work.wanted.slot, primary.member.place());
    if has_slot {
        work.say("slot", &format!("{slot} is there on {place}"));
        return Ok(false);
    }
    let sql = create_slot(slot);
    if !work.only_shows_sql(primary, &sql) {
        primary.rows(&sql).map_err(Fault::Refused)?;
        work.say("slot", &format!("{slot} is made on {place}"));
    }
    Ok(true)
}

/// Drops the slot over a new connection: the one that made it may be as broken as the copy. Gives what was done, or what is left to do.
pub(super) fn undo_slot(work: &Work<'_>, servers: &Servers) -> String {
    let (slot, member) = (&work.wanted.slot, &servers.primary.member);
    let dropped = Server::enter(&work.access, member).and_then(|mut primary| drop_unused(work, &mut primary));
    match dropped {
        Ok(()) => format!("undone: the slot {slot} on {} is dropped", member.place()),
        Err(why) => {
            format!(
                "left: the slot {slot} on {} keeps WAL ({why}); drop it: {};",
                member.place(),
                drop_slot(slot)
            )
        }
    }
}

/// Drops the slot as soon as no connection of a copy uses it.
pub(super) fn drop_unused(work: &Work<'_>, primary: &mut Server) -> Result<(), String> {
    end_copies(work, primary)?;
    let began = Instant::now();
    loop {
        match primary.slot(&work.wanted.slot)? {
            None => return Ok(()),
            Some(found) if !found.is_active => {
                return primary.rows(&drop_slot(&work.wanted.slot)).map(drop);
            }
            Some(_) if began.elapsed() >= SLOT_WAIT => {
                return Err(format!("it is still in use after {} s", SLOT_WAIT.as_secs()));
            }
            Some(_) => thread::sleep(LOOK_EVERY),
        }
    }
}

/// The settings that make the server the node's.
pub(super) fn entries(work: &Work<'_>, servers: &Servers) -> Entries {
    let (wanted, member) = (work.wanted, &servers.primary.member);
    let conninfo =
        work.access.conninfo(&member.host, member.port, &[("application_name", wanted.node.as_str())]);
    let mut entries: Entries = vec![
        ("primary_conninfo".to_owned(), conninfo),
        ("primary_slot_name".to_owned(), wanted.slot.clone()),
    ];
    let known = work.members.get(&wanted.node).map(|member| member.port);
    let port = wanted.port.or(known).map(|port| ("port".to_owned(), port.to_string()));
    entries.extend(port.filter(|_| !wanted.settings.iter().any(|(name, _)| name == "port")));
    entries.extend_from_slice(&wanted.settings);
    entries
}

/// Writes the settings, and compares those that a standby must not have lower than the primary.
pub(super) fn configure(work: &Work<'_>, servers: &mut Servers, local: &Local<'_>) -> Result<(), Fault> {
    let entries = entries(work, servers);
    if work.only_shows(&settings::as_commands(local.data, &entries)) {
        return Ok(());
    }
    settings::write(local.data, &entries)
        .map_err(|error| Fault::Failed(format!("{}: {error}", local.data.join(settings::AUTO).display())))?;
    let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
    work.say("settings", &format!("{} has {}; standby.signal is there", settings::AUTO, names.join(", ")));
    let at_primary = servers.primary.not_lower().map_err(Fault::Failed)?;
    let mut lower = Vec::new();
    for (name, wanted) in NOT_LOWER.iter().zip(at_primary) {
        let here = local.setting(name).map_err(Fault::Failed)?;
        if here.parse::<i64>().is_ok_and(|here| here < wanted) {
            lower.push(format!("{name} is {here} here and {wanted} at the primary: --set={name}={wanted}"));
        }
    }
    if lower.is_empty() {
        return Ok(());
    }
    Err(Fault::Failed(format!(
        "PostgreSQL would not start as a standby:\n{}\nkept: the copy in {} and the slot; run the command again with these settings",
        lower.join("\n"),
        local.data.display()
    )))
}

/// Starts the server, or has a running one read its settings.
pub(super) fn start(work: &Work<'_>, local: &Local<'_>) -> Result<(), Fault> {
    let kept =
        format!("kept: {} and the slot {}; run the command again", local.data.display(), work.wanted.slot);
    // A dry run of rebuild has not stopped it.
    let is_stopped_first = work.wanted.is_dry_run && work.wanted.verb == Verb::Rebuild;
    let is_running = local.status().is_some() && !is_stopped_first;
    let call = if is_running { local.reload_call() } else { local.start_call() };
    if work.only_shows(&call.line()) {
        return Ok(());
    }
    if is_running {
        super::programs::output(&call).map_err(Fault::Failed)?;
        work.say("start", "PostgreSQL runs already; its settings are read again");
        return Ok(());
    }
    local
        .start(&work.interrupt)
        .map_err(|why| Fault::Failed(format!("PostgreSQL did not start: {why}\n{kept}")))?;
    work.say("start", &call.line());
    Ok(())
}

/// Waits until the standby streams from the primary and is near it.
pub(super) fn wait_for_stream(
    work: &Work<'_>,
    servers: &mut Servers,
    local: &Local<'_>,
) -> Result<(), Fault> {
    let (wanted, place) = (work.wanted, servers.primary.member.place());
    if wanted.is_dry_run {
        return Ok(());
    }
    let kept = format!("kept: {} and the slot {}; run the command again", local.data.display(), wanted.slot);
    let failed = |why: String| Fault::Failed(format!("{why}\n{kept}"));
    let began = Instant::now();
    let mut told = began;
    loop {
        let seen = servers.primary.streaming(&wanted.slot).map_err(failed)?;
        let state = match &seen {
            Some(seen) if seen.state == "streaming" && seen.lag_bytes <= wanted.lag_max_bytes => {
                work.say("stream", &format!("from {place}, {} behind", size(seen.lag_bytes)));
                return Ok(());
            }
            Some(seen) => format!("{}, {} behind", seen.state, size(seen.lag_bytes)),
            None => "not connected".to_owned(),
        };
        if local.status().is_none() {
            return Err(failed(format!("PostgreSQL has ended{}", local.last_words())));
        }
        if began.elapsed() >= wanted.timeout {
            let seconds = wanted.timeout.as_secs();
            return Err(failed(format!(
                "the standby is not near {place} after {seconds} s: {state}{}",
                local.last_words()
            )));
        }
        if told.elapsed() >= TELL_EVERY {
            work.say("stream", &state);
            told = Instant::now();
        }
        work.interrupt.check().map_err(failed)?;
        thread::sleep(LOOK_EVERY);
    }
}

/// Attaches the node, and waits until it has its whole share. A node that the pooler does not know is named instead.
pub(super) fn attach(work: &mut Work<'_>) -> Result<(), Fault> {
    let (name, wanted) = (work.wanted.full_name(), work.wanted);
    if !work.members.has_console() || work.members.get(&wanted.node).is_none() {
        if !wanted.is_dry_run {
            work.say("next", &how_to_list(work));
        }
        return Ok(());
    }
    if work.only_shows_ctl("ATTACH") {
        return Ok(());
    }
    work.members.switch("ATTACH", wanted).map_err(|why| {
        Fault::Failed(format!("the standby streams, and the pooler does not use it: {why}\nsee SHOW NODES; then: ATTACH NODE {name}"))
    })?;
    work.say("attach", &format!("{name} has its whole share"));
    Ok(())
}

/// The change of the configuration that makes the standby known.
fn how_to_list(work: &Work<'_>) -> String {
    let wanted = work.wanted;
    if work.members.get(&wanted.node).is_some() {
        return format!(
            "the node is in the configuration; when the pooler runs: ATTACH NODE {}",
            wanted.full_name()
        );
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.map_or("THIS_MACHINE".to_owned(), |name| name.trim().to_owned());
    let port = wanted.port.map_or(String::new(), |port| format!(" port={port}"));
    let mut names: Vec<&str> = work.members.list.iter().map(|member| member.name.as_str()).collect();
    names.push(&wanted.node);
    match work.members.discovery.as_str() {
        "dns" => "the pooler finds the node when the cluster's host name has its address".to_owned(),
        _ => format!(
            "the pooler does not know {name} yet. In its [nodes]: {name} = host={}{port}; in [clusters]: {} = nodes={} ...; then RELOAD",
            shell_quoted(&host),
            wanted.cluster,
            names.join(","),
            name = wanted.node,
        ),
    }
}
