//! Findings about databases whose changes the query cache follows: what keeps it from following, and what its publication does to writes.

mod publication;

use std::collections::BTreeMap;

use super::place;
use crate::finding::Finding;
use crate::following::{Cloud, Followed, Following};
use crate::snapshot::Snapshot;

/// The oldest version whose changes pgweir follows.
const VERSION_MIN: u32 = 140_000;

/// Returns all findings about databases that are followed.
pub(super) fn following(snapshot: &Snapshot) -> Vec<Finding> {
    let mut found = Vec::new();
    for at in &snapshot.following {
        match &at.result {
            Ok(server) => found.extend(of_server(at, server)),
            Err(why) => found.push(Finding::error(
                "cache_login_failed",
                format!(
                    "database {}: the query cache cannot follow changes: a login as {} at {} failed: {why}",
                    at.database,
                    at.user,
                    place(&at.host, at.port)
                ),
                "make the role of query_cache_user, put its password in auth_file, and let it in by pg_hba.conf for this database",
            )),
        }
    }
    found.extend(room(snapshot));
    found
}

fn of_server(at: &Following, server: &Followed) -> Vec<Finding> {
    if let Some(refused) = refused(at, server) {
        return vec![refused];
    }
    let mut found = Vec::new();
    found.extend(wal_level(at, server));
    if server.is_standby {
        // It has the rest from the primary, about which it is said.
        return found;
    }
    found.extend(right(at, server));
    found.extend(unbounded(at, server));
    match &server.publication {
        None => found.push(Finding::error(
            "cache_publication_missing",
            format!("database {}: the publication {} is missing, so that no changes are followed", at.database, at.publication),
            format!(
                "run CREATE PUBLICATION {} FOR TABLE ... with the tables that are to be followed; give each a primary key first",
                quoted(&at.publication)
            ),
        )),
        Some(publication) => found.extend(publication::findings(at, *publication, &server.tables)),
    }
    found
}

/// Returns the reason why a server is not followed, whatever its settings.
fn refused(at: &Following, server: &Followed) -> Option<Finding> {
    let why = if server.cloud == Cloud::Aurora {
        "Aurora is not followed: its commits were not examined"
    } else if server.version < VERSION_MIN {
        "changes are followed from PostgreSQL 14 on"
    } else if server.is_standby && !at.is_node {
        "the server is a standby, and only a primary is followed"
    } else {
        return None;
    };
    Some(Finding::error(
        "cache_not_followed",
        format!("database {}: no answers are kept with follow=wal: {why}", at.database),
        "use follow=time with ttl_ms, or query_cache = coalesce",
    ))
}

fn wal_level(at: &Following, server: &Followed) -> Option<Finding> {
    if server.wal_level == "logical" {
        return None;
    }
    let remedy = match server.cloud {
        Cloud::Rds => "set rds.logical_replication = 1 in the parameter group, and reboot the instance",
        Cloud::CloudSql => "set the flag cloudsql.logical_decoding = on, which restarts the instance",
        Cloud::Azure => "set the server parameter wal_level = logical, and restart the server",
        Cloud::Unknown | Cloud::Aurora => "run ALTER SYSTEM SET wal_level = logical, and restart PostgreSQL",
    };
    let text = format!(
        "database {} at {}: wal_level is {}, so that no changes are followed",
        at.database,
        place(&at.host, at.port),
        server.wal_level
    );
    Some(Finding::error("cache_wal_level", text, remedy))
}

fn right(at: &Following, server: &Followed) -> Option<Finding> {
    if server.may_replicate {
        return None;
    }
    let user = quoted(&at.user);
    let remedy = match server.cloud {
        Cloud::Rds => format!("run GRANT rds_replication TO {user}"),
        _ => format!("run ALTER ROLE {user} REPLICATION"),
    };
    let text = format!(
        "database {}: the role {} may not read changes: it has no right REPLICATION",
        at.database, at.user
    );
    Some(Finding::error("cache_replication_right", text, remedy))
}

/// Returns a finding if a pgweir that hangs would hold PostgreSQL's log.
fn unbounded(at: &Following, server: &Followed) -> Option<Finding> {
    if !server.keeps_all_wal {
        return None;
    }
    let (database, timeout_s) = (&at.database, server.sender_timeout_ms / 1000);
    let remedy = "set max_slot_wal_keep_size, and leave wal_sender_timeout at a minute or less";
    Some(match server.sender_timeout_ms {
        0 => Finding::warning(
            "cache_log_unbounded",
            format!(
                "database {database}: a pgweir that hangs holds PostgreSQL's log without a limit: wal_sender_timeout is 0, \
                 and max_slot_wal_keep_size is not set"
            ),
            remedy,
        ),
        _ => Finding::note(
            "cache_log_unbounded",
            format!(
                "database {database}: a pgweir that hangs holds PostgreSQL's log for {timeout_s} s (wal_sender_timeout), \
                 however much is written, as max_slot_wal_keep_size is not set"
            ),
            remedy,
        ),
    })
}

/// Compares the slots and replication connections that are free on each server with those that pgweir needs.
fn room(snapshot: &Snapshot) -> Vec<Finding> {
    let mut servers: BTreeMap<(&str, u16), (&Followed, u64)> = BTreeMap::new();
    for at in &snapshot.following {
        if let Ok(server) = &at.result {
            servers.entry((&at.host, at.port)).or_insert((server, 0)).1 += u64::from(!server.has_slot);
        }
    }
    let mut found = Vec::new();
    for ((host, port), (server, needed)) in servers {
        let kinds = [
            ("replication slots", "max_replication_slots", server.slots_max, server.slots),
            ("replication connections", "max_wal_senders", server.senders_max, server.senders),
        ];
        for (what, setting, max, used) in kinds {
            let free = max.saturating_sub(used);
            if free < needed {
                found.push(Finding::error(
                    "cache_no_room",
                    format!(
                        "server {}: {free} of {max} {what} are free, and the query cache needs {needed}: one for each followed database and pooler",
                        place(host, port)
                    ),
                    format!("run ALTER SYSTEM SET {setting} = {}, and restart PostgreSQL", used + needed),
                ));
            }
        }
    }
    found
}

/// Returns a name as SQL needs it.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let begins_plain = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    match begins_plain && name.bytes().all(is_plain) {
        true => name.to_owned(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::following::{Columns, Identity, Publication, Table};

    pub(super) fn table(name: &str, identity: Identity, columns: Columns) -> Table {
        Table { name: name.into(), identity, columns, ..Table::default() }
    }

    pub(super) fn well() -> Followed {
        Followed {
            version: 150_018,
            wal_level: "logical".into(),
            slots_max: 10,
            senders_max: 10,
            may_replicate: true,
            publication: Some(Publication {
                takes_new_tables: false,
                has_all_changes: true,
                needs_identity: true,
            }),
            tables: vec![table("public.a", Identity::PrimaryKey, Columns::All)],
            ..Followed::default()
        }
    }

    fn at(database: &str, result: Result<Followed, String>) -> Following {
        Following {
            database: database.into(),
            user: "pgweir_cache".into(),
            host: "h".into(),
            port: 5432,
            publication: "pgweir_cache".into(),
            is_node: false,
            result,
        }
    }

    pub(super) fn found(server: Followed) -> Vec<Finding> {
        following(&Snapshot { following: vec![at("app", Ok(server))], ..Snapshot::default() })
    }

    pub(super) fn codes(server: Followed) -> Vec<(Severity, &'static str)> {
        found(server).into_iter().map(|finding| (finding.severity, finding.code)).collect()
    }

    #[test]
    fn a_server_with_all_that_is_needed_gets_one_note() {
        assert_eq!(codes(well()), [(Severity::Note, "cache_publication_identity")]);
        assert!(
            found(well())[0].text.contains("1 table is published as pgweir_cache"),
            "{:?}",
            found(well())
        );
    }

    #[test]
    fn each_cloud_has_its_own_way() {
        let of =
            |cloud| found(Followed { cloud, wal_level: "replica".into(), may_replicate: false, ..well() });
        let remedies = |cloud| {
            of(cloud).into_iter().map(|finding| finding.remedy).take(2).collect::<Vec<_>>().join(" | ")
        };
        for (cloud, expected) in [
            (Cloud::Unknown, "ALTER SYSTEM SET wal_level = logical"),
            (Cloud::Unknown, "ALTER ROLE pgweir_cache REPLICATION"),
            (Cloud::Rds, "rds.logical_replication = 1"),
            (Cloud::Rds, "GRANT rds_replication TO pgweir_cache"),
            (Cloud::CloudSql, "cloudsql.logical_decoding = on"),
            (Cloud::Azure, "set the server parameter wal_level = logical"),
        ] {
            assert!(remedies(cloud).contains(expected), "{cloud:?}: {}", remedies(cloud));
        }
        assert_eq!(
            codes(Followed { cloud: Cloud::Aurora, ..well() }),
            [(Severity::Error, "cache_not_followed")]
        );
    }

    #[test]
    fn servers_that_are_not_followed() {
        for server in [Followed { version: 130_000, ..well() }, Followed { is_standby: true, ..well() }] {
            assert_eq!(codes(server), [(Severity::Error, "cache_not_followed")]);
        }
        let snapshot = Snapshot { following: vec![at("app", Err("refused".into()))], ..Snapshot::default() };
        assert_eq!(
            following(&snapshot)[0].text,
            "database app: the query cache cannot follow changes: a login as pgweir_cache at h:5432 failed: refused"
        );
    }

    #[test]
    fn a_standby_of_a_cluster_needs_what_it_does_not_get_from_its_primary() {
        let found = |server: Followed| {
            let node = Following { is_node: true, ..at("app", Ok(server)) };
            following(&Snapshot { following: vec![node], ..Snapshot::default() })
        };
        let standby = || Followed { is_standby: true, may_replicate: false, publication: None, ..well() };
        assert_eq!(found(standby()), []);
        let [finding] = &found(Followed { wal_level: "replica".into(), ..standby() })[..] else {
            panic!("one is due")
        };
        assert_eq!(
            finding.text,
            "database app at h:5432: wal_level is replica, so that no changes are followed"
        );
    }

    #[test]
    fn publications_that_are_missing_or_wrong() {
        assert_eq!(
            codes(Followed { publication: None, ..well() }),
            [(Severity::Error, "cache_publication_missing")]
        );
        let wrong = Publication { takes_new_tables: true, has_all_changes: false, needs_identity: true };
        assert_eq!(
            codes(Followed { publication: Some(wrong), tables: vec![], ..well() }),
            [
                (Severity::Error, "cache_publication_partial"),
                (Severity::Warning, "cache_publication_all_tables"),
                (Severity::Warning, "cache_publication_empty"),
            ]
        );
    }

    #[test]
    fn slots_and_connections_are_counted_for_each_server() {
        let full = Followed { slots: 9, senders: 10, ..well() };
        let mut snapshot = Snapshot {
            following: vec![at("a", Ok(full.clone())), at("b", Ok(full.clone()))],
            ..Snapshot::default()
        };
        let texts: Vec<String> = room(&snapshot).into_iter().map(|finding| finding.text).collect();
        assert!(
            texts[0].contains("1 of 10 replication slots are free, and the query cache needs 2"),
            "{texts:?}"
        );
        assert!(texts[1].contains("0 of 10 replication connections are free"), "{texts:?}");
        snapshot.following = vec![at("a", Ok(Followed { has_slot: true, ..full }))];
        assert_eq!(room(&snapshot), []);
    }

    #[test]
    fn a_pooler_that_hangs_holds_the_log() {
        let note = Followed { keeps_all_wal: true, sender_timeout_ms: 60_000, ..well() };
        assert_eq!(codes(note.clone())[0], (Severity::Note, "cache_log_unbounded"));
        let endless = Followed { sender_timeout_ms: 0, ..note };
        assert_eq!(codes(endless)[0], (Severity::Warning, "cache_log_unbounded"));
    }
}
