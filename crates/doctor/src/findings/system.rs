//! Findings about the machine and the process: open files, the kernel's limits, changes that a reload or a
//! restart would make.

use crate::finding::Finding;
use crate::snapshot::{Changed, Snapshot, Source, Vip};

/// The number of files that are neither clients nor servers: log, pid file, listeners, event queues.
const FILES_OF_OUR_OWN: u64 = 32;

/// The percentage of the limit from which the number of open files is close to it.
const FILES_NEAR_PERCENT: u64 = 90;

/// The number of characters of a setting's value that are shown.
const VALUE_SHOWN_CHARS: usize = 60;

pub(super) fn suspended(snapshot: &Snapshot) -> Option<Finding> {
    snapshot.is_suspended.then(|| {
        Finding::error(
            "suspended",
            "the pooler is suspended: it reads and accepts nothing".to_owned(),
            "run RESUME on the console",
        )
    })
}

/// Checks that the virtual address can move.
pub(super) fn virtual_address(snapshot: &Snapshot) -> Option<Finding> {
    let Vip { address, state, lease, error } = snapshot.vip.as_ref()?;
    let way = match state.as_str() {
        "holds" => "moves to no other pooler",
        _ => "does not move to this pooler",
    };
    if state == "unable" {
        return Some(Finding::error(
            "vip_unable",
            format!("this pooler cannot take the virtual address {address}: {error}"),
            "grant what is missing: the unit's drop-in pgweir-vip.conf has the capabilities (docs/operate/high-availability.md)",
        ));
    }
    (lease == "unknown" && state != "given away").then(|| {
        Finding::warning(
            "vip_without_etcd",
            format!("the virtual address {address} {way} while etcd does not answer ({error})"),
            "bring etcd back; if the pooler that has the address is dead, VIP TAKE FORCE on the console takes it",
        )
    })
}

/// Checks that this pooler has its parts of shared limits, and that each pooler can have one.
pub(super) fn shared_limits(snapshot: &Snapshot) -> Option<Finding> {
    let all = &snapshot.shared_limits;
    if let Some(limit) = all.iter().find(|limit| limit.state == "frozen") {
        return Some(Finding::error(
            "shared_limit_frozen",
            format!(
                "this pooler opens no connections under the shared limit of {}: {}",
                limit.name, limit.reason
            ),
            "bring etcd back; until then the connections that are open are kept",
        ));
    }
    if let Some(limit) = all.iter().find(|limit| limit.limit < limit.poolers) {
        return Some(Finding::error(
            "shared_limit_too_low",
            format!("{} poolers share a limit of {} on {}", limit.poolers, limit.limit, limit.name),
            "raise the limit: a pooler without a part of it serves no client",
        ));
    }
    let limit = all.iter().find(|limit| limit.kept_back > 0)?;
    Some(Finding::warning(
        "shared_limit_kept_back",
        format!("{} connections of {} are kept back: {}", limit.kept_back, limit.name, limit.reason),
        "end the sessions in pg_stat_activity that no pooler has (docs/operate/shared-limits.md)",
    ))
}

/// Checks that there are enough files for all clients and servers.
pub(super) fn open_files(snapshot: &Snapshot) -> Option<Finding> {
    let limit = snapshot.files?;
    if let Some(open) = limit.open.filter(|open| open * 100 >= limit.max * FILES_NEAR_PERCENT) {
        return Some(Finding::error(
            "open_files_near_limit",
            format!("{open} of {} files are open", limit.max),
            "raise the limit of open files (LimitNOFILE in the systemd unit, ulimit -n) and restart pgweir",
        ));
    }
    let clients = snapshot.settings.max_client_conn;
    let servers: u64 = snapshot.databases.iter().filter_map(|database| database.servers_max()).sum();
    let needed = clients + servers + FILES_OF_OUR_OWN;
    if limit.max >= needed {
        return None;
    }
    let whose = match snapshot.source {
        Source::Console => "of the pooler",
        Source::File => "of this shell",
    };
    Some(Finding::warning(
        "open_files_limit",
        format!(
            "the limit of open files {whose} is {}; max_client_conn ({clients}), the pools ({servers}) and \
             pgweir itself ({FILES_OF_OUR_OWN}) may need {needed}",
            limit.max
        ),
        format!(
            "raise the limit to {needed} (LimitNOFILE in the systemd unit, ulimit -n), or lower max_client_conn or the pool sizes"
        ),
    ))
}

/// Warns if the kernel silently limits `listen_backlog`.
pub(super) fn backlog(snapshot: &Snapshot) -> Option<Finding> {
    let (backlog, somaxconn) = (snapshot.settings.listen_backlog, snapshot.somaxconn?);
    (somaxconn < backlog).then(|| {
        Finding::warning(
            "listen_backlog",
            format!("listen_backlog is {backlog}, but the kernel's net.core.somaxconn is {somaxconn}, which counts"),
            format!("set net.core.somaxconn to {backlog} with sysctl, then restart pgweir"),
        )
    })
}

/// Returns findings about settings of the file that the running pooler does not have.
pub(super) fn changed(snapshot: &Snapshot) -> Vec<Finding> {
    let say = |needs_restart: bool, code, remedy: &str| {
        let names: Vec<String> = snapshot
            .changed
            .iter()
            .filter(|changed| changed.needs_restart == needs_restart)
            .map(|Changed { name, running, file, .. }| {
                format!("{name} ({} runs, {} in the file)", shown(running), shown(file))
            })
            .collect();
        let text = format!("the running pooler differs from the file: {}", names.join(", "));
        (!names.is_empty()).then(|| Finding::note(code, text, remedy))
    };
    let reload = say(false, "reload_pending", "run RELOAD on the console to apply the file");
    let restart =
        say(true, "restart_pending", "start the new process with -R to apply the file without a disconnect");
    reload.into_iter().chain(restart).collect()
}

fn shown(value: &str) -> String {
    match value.char_indices().nth(VALUE_SHOWN_CHARS) {
        Some((end, _)) => format!("\"{}...\"", &value[..end]),
        None if value.is_empty() => "nothing".to_owned(),
        None => value.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::snapshot::SharedLimit;
    use crate::snapshot::{Database, FilesLimit, Settings};

    fn snapshot(max: u64, open: Option<u64>) -> Snapshot {
        Snapshot {
            settings: Settings { max_client_conn: 100, listen_backlog: 128, ..Settings::default() },
            databases: vec![
                Database {
                    name: "a".into(),
                    pools: 2,
                    pool_size: 10,
                    reserve_pool_size: 1,
                    ..Database::default()
                },
                Database { name: "b".into(), pools: 9, pool_size: 0, ..Database::default() },
            ],
            files: Some(FilesLimit { max, open }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn fewer_files_than_clients_and_servers_need() {
        // 100 clients, 2 pools of 11, 32 files of the process.
        assert_eq!(open_files(&snapshot(154, None)), None);
        let found = open_files(&snapshot(153, None)).expect("one too few");
        assert_eq!((found.severity, found.code), (Severity::Warning, "open_files_limit"));
        assert!(found.text.contains("is 153;") && found.text.ends_with("may need 154"), "{}", found.text);
        assert!(found.text.contains("of this shell") && found.remedy.contains("154"), "{found}");
        let running = Snapshot { source: Source::Console, ..snapshot(153, None) };
        assert!(open_files(&running).expect("the same").text.contains("of the pooler"));
        assert_eq!(open_files(&Snapshot { files: None, ..snapshot(1, None) }), None);
    }

    #[test]
    fn nearly_all_files_are_open() {
        assert_eq!(open_files(&snapshot(1000, Some(899))), None);
        let found = open_files(&snapshot(1000, Some(900))).expect("near");
        assert_eq!((found.severity, &*found.text), (Severity::Error, "900 of 1000 files are open"));
    }

    #[test]
    fn the_kernel_cuts_the_backlog() {
        let of = |somaxconn| backlog(&Snapshot { somaxconn, ..snapshot(1, None) });
        assert_eq!((of(None), of(Some(128)), of(Some(4096))), (None, None, None));
        let found = of(Some(127)).expect("cut");
        assert!(found.text.contains("128") && found.text.contains("127"), "{found}");
        assert_eq!(found.severity, Severity::Warning);
    }

    #[test]
    fn a_virtual_address_that_cannot_move() {
        let found = |state: &str, lease: &str| {
            let vip = Vip {
                address: "10.0.0.9/24".into(),
                state: state.into(),
                lease: lease.into(),
                error: "connection refused".into(),
            };
            virtual_address(&Snapshot { vip: Some(vip), ..Snapshot::default() }).map(|found| found.text)
        };
        assert_eq!(virtual_address(&Snapshot::default()), None);
        for (state, lease) in
            [("holds", "own"), ("standby", "other"), ("standby", "free"), ("given away", "unknown")]
        {
            assert_eq!(found(state, lease), None, "{state} {lease}");
        }
        assert!(found("unable", "other").is_some_and(|text| text.contains("cannot take")));
        assert!(found("holds", "unknown").is_some_and(|text| text.contains("to no other pooler")));
        assert!(found("standby", "unknown").is_some_and(|text| text.contains("not move to this pooler")));
    }

    #[test]
    fn shared_limits_that_need_attention() {
        let found = |state: &str, poolers, kept_back| {
            let limit = SharedLimit {
                name: "database app".into(),
                state: state.into(),
                limit: 3,
                poolers,
                kept_back,
                reason: "why".into(),
            };
            shared_limits(&Snapshot { shared_limits: vec![limit], ..Snapshot::default() })
                .map(|found| found.text)
        };
        assert_eq!(shared_limits(&Snapshot::default()), None);
        assert_eq!(found("shared", 3, 0), None);
        assert!(found("frozen", 3, 0).is_some_and(|text| text.contains("opens no connections")));
        assert!(found("shared", 4, 0).is_some_and(|text| text.contains("4 poolers")));
        assert!(found("shared", 3, 2).is_some_and(|text| text.contains("kept back")));
    }

    #[test]
    fn a_suspended_pooler() {
        assert_eq!(suspended(&Snapshot::default()), None);
        let found = suspended(&Snapshot { is_suspended: true, ..Snapshot::default() }).expect("found");
        assert!(found.remedy.contains("RESUME"));
    }

    #[test]
    fn settings_that_wait_for_a_reload_or_a_restart() {
        let change = |name: &str, file: &str, needs_restart| Changed {
            name: name.into(),
            running: "1".into(),
            file: file.into(),
            needs_restart,
        };
        assert_eq!(changed(&Snapshot::default()), []);
        let long = "x".repeat(100);
        let both = vec![change("a", "2", false), change("b", "", true), change("c", &long, false)];
        let found = changed(&Snapshot { changed: both, ..Snapshot::default() });
        let codes: Vec<_> = found.iter().map(|finding| (finding.code, finding.severity)).collect();
        assert_eq!(codes, [("reload_pending", Severity::Note), ("restart_pending", Severity::Note)]);
        assert!(found[0].text.contains("a (1 runs, 2 in the file), c (1 runs, \"xxx"), "{}", found[0].text);
        assert!(found[0].text.len() < 200 && found[1].text.contains("b (1 runs, nothing in the file)"));
    }
}
