//! The checks before anything is changed: the servers of the cluster, the role, PostgreSQL's programs, and this machine's directories.

use std::path::{Path, PathBuf};

use super::copy::{Folders, size};
use super::local::{Local, debian_config};
use super::programs::Programs;
use super::server::{Facts, Server, identify};
use super::{Fault, Work};

/// The connections that a copy needs at its source: one for the files, one for the WAL.
const SENDERS_OF_COPY: i64 = 2;

/// The servers that the work is about.
pub(super) struct Servers {
    pub(super) primary: Server,
    /// The server that is copied; `None`: the primary.
    standby: Option<Server>,
    pub(super) facts: Facts,
}

impl Servers {
    pub(super) fn source(&self) -> &Server {
        self.standby.as_ref().unwrap_or(&self.primary)
    }

    fn source_mut(&mut self) -> &mut Server {
        self.standby.as_mut().unwrap_or(&mut self.primary)
    }

    pub(super) fn is_source_primary(&self) -> bool {
        self.standby.is_none()
    }
}

/// Finds the primary and the server to copy, and checks what holds for both ways of making a standby.
pub(super) fn servers(work: &Work<'_>) -> Result<Servers, Fault> {
    let mut standbys = Vec::new();
    let mut primary = work.primary(&mut standbys)?;
    let refused = Fault::Refused;
    check_rights(work, &mut primary)?;
    let facts = primary.facts().map_err(Fault::Unusable)?;
    if facts.has_patroni {
        return Err(work.patroni("has an agent of Patroni at its primary"));
    }
    if facts.wal_level == "minimal" {
        return Err(refused(format!("{}: wal_level is minimal; set it to replica", primary.member.place())));
    }
    let standby = source(work, &mut primary, standbys, &facts)?;
    let mut servers = Servers { primary, standby, facts };
    if let Some(standby) = &mut servers.standby {
        check_rights(work, standby)?;
    }
    for member in [&servers.primary.member, &servers.source().member] {
        let identifier = identify(&work.access, member).map_err(refused)?;
        if identifier != servers.facts.system_identifier {
            return Err(Fault::Refused(format!("{} is no copy of the primary", member.place())));
        }
    }
    let what = if servers.is_source_primary() { "the primary" } else { "a standby that streams" };
    work.say(
        "cluster",
        &format!(
            "{}: the primary is {}; the source is {}, {what}",
            work.wanted.cluster,
            servers.primary.member.place(),
            servers.source().member.place()
        ),
    );
    Ok(servers)
}

fn check_rights(work: &Work<'_>, server: &mut Server) -> Result<(), Fault> {
    let missing = server.missing_rights(&work.access.user).map_err(Fault::Unusable)?;
    if missing.is_empty() {
        return Ok(());
    }
    let place = server.member.place();
    Err(Fault::Refused(format!(
        "{place}: the role {} lacks rights. On the primary:\n{}",
        work.access.user,
        missing.join("\n")
    )))
}

/// The standby to copy; `None`: the primary.
fn source(
    work: &Work<'_>,
    primary: &mut Server,
    standbys: Vec<Server>,
    facts: &Facts,
) -> Result<Option<Server>, Fault> {
    let named = work.wanted.from.as_deref();
    if named == Some(primary.member.name.as_str()) {
        return Ok(None);
    }
    if named == Some(work.wanted.node.as_str()) {
        return Err(Fault::Refused("--from names the node itself".to_owned()));
    }
    if !facts.has_full_pages {
        let why =
            format!("{}: full_page_writes is off, so standbys cannot be copied", primary.member.place());
        return match named {
            Some(_) => Err(Fault::Refused(why)),
            None => {
                work.say("cluster", &why);
                Ok(None)
            }
        };
    }
    let mut best: Option<(u64, Server)> = None;
    for mut standby in standbys {
        let member = standby.member.clone();
        if named.is_some_and(|name| name != member.name) {
            continue;
        }
        let is_usable = standby.is_streaming && ["", "standby"].contains(&member.state.as_str());
        let lag = lag_bytes(primary, &mut standby).map_err(Fault::Unusable)?;
        if !is_usable || lag > work.wanted.lag_max_bytes {
            if named.is_some() {
                let why =
                    if is_usable { format!("is {} behind", size(lag)) } else { "does not stream".to_owned() };
                return Err(Fault::Refused(format!("{} {why}: it cannot be copied now", member.place())));
            }
            continue;
        }
        if best.as_ref().is_none_or(|(least, _)| lag < *least) {
            best = Some((lag, standby));
        }
    }
    match (best, named) {
        (None, Some(name)) => {
            Err(Fault::Refused(format!("--from: {name} is no node of the cluster that answers")))
        }
        (best, _) => Ok(best.map(|(_, standby)| standby)),
    }
}

fn lag_bytes(primary: &mut Server, standby: &mut Server) -> Result<u64, String> {
    let replayed = standby.rows("select coalesce(pg_last_wal_replay_lsn(), '0/0')")?;
    let replayed = replayed.first().and_then(|row| row.first()).cloned().unwrap_or_default();
    // It goes into a statement, and comes from another server.
    if !replayed.chars().all(|c| c.is_ascii_hexdigit() || c == '/') {
        return Err(format!("{}: {replayed:?} is no position", standby.member.place()));
    }
    let rows = primary
        .rows(&format!("select greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), '{replayed}'), 0)::bigint"))?;
    Ok(rows.first().and_then(|row| row.first()?.parse().ok()).unwrap_or(u64::MAX))
}

/// The programs, and where the configuration of the server here is.
pub(super) fn local<'a>(work: &Work<'a>, servers: &Servers) -> Result<Local<'a>, Fault> {
    let (wanted, facts) = (work.wanted, &servers.facts);
    let programs = Programs::find(wanted.bindir.as_deref(), facts.major).map_err(Fault::Refused)?;
    let config_file = config_file(work, facts)?;
    Ok(Local::new(wanted, programs, config_file))
}

fn config_file(work: &Work<'_>, facts: &Facts) -> Result<Option<PathBuf>, Fault> {
    let (wanted, major) = (work.wanted, facts.major);
    if let Some(file) = &wanted.config_file {
        std::fs::metadata(file).map_err(|error| Fault::Refused(format!("{}: {error}", file.display())))?;
        return Ok(Some(file.clone()));
    }
    let is_within = Path::new(&facts.config_file).parent() == Some(Path::new(&facts.data_directory));
    let is_here = wanted.data.join("postgresql.conf").exists();
    // Debian's tools start the server with this file, also if the source's own is in the copy.
    match debian_config(major, &wanted.data) {
        Some(file) => Ok(Some(file)),
        None if is_within || is_here => Ok(None),
        None => Err(Fault::Refused(format!(
            "the source keeps postgresql.conf outside of its data directory ({}), so it is not copied. Create the configuration here, on Debian with: pg_createcluster {major} NAME --datadir={}; then empty that directory, or name the file with --config-file",
            facts.config_file,
            wanted.data.display()
        ))),
    }
}

/// Checks that a copy can be made here from the source.
pub(super) fn copy(work: &Work<'_>, servers: &mut Servers, has_slot: bool) -> Result<(), Fault> {
    let is_primary = servers.is_source_primary();
    let source = servers.source_mut();
    let facts = source.facts().map_err(Fault::Unusable)?;
    let place = source.member.place();
    if facts.free_senders < SENDERS_OF_COPY {
        return Err(Fault::Refused(format!(
            "{place} has {} free WAL senders, and a copy needs {SENDERS_OF_COPY}; raise max_wal_senders",
            facts.free_senders
        )));
    }
    if facts.free_slots < 1 && !(is_primary && has_slot) {
        return Err(Fault::Refused(format!(
            "{place} has no free replication slot; raise max_replication_slots"
        )));
    }
    if !is_primary {
        slots_of_primary(servers, has_slot)?;
    }
    let spaces = tablespaces(work, servers)?;
    check_space(work, servers, &spaces)?;
    work.say(
        "checks",
        &format!(
            "PostgreSQL {}, {} to copy, {} free WAL senders, {} free slots",
            facts.version,
            size(facts.size_bytes),
            facts.free_senders,
            facts.free_slots
        ),
    );
    Ok(())
}

/// Checks that the primary can take one more standby.
pub(super) fn slots_of_primary(servers: &Servers, has_slot: bool) -> Result<(), Fault> {
    let (place, facts) = (servers.primary.member.place(), &servers.facts);
    if facts.free_senders < 1 {
        return Err(Fault::Refused(format!("{place} has no free WAL sender; raise max_wal_senders")));
    }
    if facts.free_slots < 1 && !has_slot {
        return Err(Fault::Refused(format!(
            "{place} has no free replication slot; raise max_replication_slots"
        )));
    }
    Ok(())
}

/// The sizes of the tablespaces; each must have its directory here.
fn tablespaces(work: &Work<'_>, servers: &mut Servers) -> Result<Vec<(PathBuf, u64)>, Fault> {
    let (mut spaces, mut missing) = (Vec::new(), Vec::new());
    for (name, location, size_bytes) in servers.source_mut().tablespaces().map_err(Fault::Unusable)? {
        match work.wanted.tablespaces.iter().find(|(old, _)| *old == location) {
            Some((_, new)) => spaces.push((new.clone(), size_bytes)),
            None => missing.push(format!("tablespace {name}: --tablespace-mapping={location}=DIRECTORY")),
        }
    }
    if missing.is_empty() {
        return Ok(spaces);
    }
    Err(Fault::Refused(format!(
        "the source has tablespaces; say where they go on this machine:\n{}",
        missing.join("\n")
    )))
}

fn check_space(work: &Work<'_>, servers: &Servers, spaces: &[(PathBuf, u64)]) -> Result<(), Fault> {
    let of_spaces: u64 = spaces.iter().map(|(_, bytes)| bytes).sum();
    let of_data = servers.facts.size_bytes.saturating_sub(of_spaces);
    let mut wanted = vec![(work.wanted.data.clone(), of_data)];
    wanted.extend_from_slice(spaces);
    for (folder, bytes) in wanted {
        let there = folder.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
        let Ok(about) = nix::sys::statvfs::statvfs(there) else { continue };
        let free = about.blocks_available().saturating_mul(about.fragment_size());
        if free < bytes {
            return Err(Fault::Refused(format!(
                "{} has {} free, and the copy needs {}",
                folder.display(),
                size(free),
                size(bytes)
            )));
        }
    }
    Ok(())
}

/// Looks at the directories that the copy fills.
pub(super) fn folders(work: &Work<'_>) -> Result<Folders, Fault> {
    let wanted = work.wanted;
    let mut folders = vec![wanted.data.as_path()];
    folders.extend(wanted.waldir.as_deref());
    folders.extend(wanted.tablespaces.iter().map(|(_, new)| new.as_path()));
    Folders::look(&folders).map_err(Fault::Refused)
}
