//! What PostgreSQL says of the databases whose changes the query cache follows: one login for each, as `query_cache_user`. What the answers mean is
//! `pgweir-doctor`'s matter.

use std::io;

use pgweir_client::Client;
use pgweir_doctor::{Cloud, Columns, Followed, Following, Identity, Publication, Table};

use crate::probe::{self, Logins};

/// The state of the server, in one row. `$1` is the publication. Managed services are known by roles and functions of their own.
const SERVER: &str = "\
select current_setting('server_version_num'), current_setting('wal_level'), pg_is_in_recovery()::text, \
current_setting('max_replication_slots'), (select count(*) from pg_replication_slots)::text, \
current_setting('max_wal_senders'), (select count(*) from pg_stat_replication)::text, \
exists (select from pg_replication_slots where slot_name like 'pgweir\\_cache\\_%' and database = current_database())::text, \
(select rolreplication or rolsuper or exists (select from pg_roles as managed \
    where managed.rolname = 'rds_replication' and pg_has_role(own.oid, managed.oid, 'member')) \
    from pg_roles as own where own.rolname = session_user)::text, \
current_setting('max_slot_wal_keep_size'), (select setting from pg_settings where name = 'wal_sender_timeout'), \
case when to_regproc('aurora_version') is not null then 'aurora' \
    when to_regrole('rds_superuser') is not null then 'rds' \
    when to_regrole('cloudsqlsuperuser') is not null then 'cloudsql' \
    when to_regrole('azure_pg_admin') is not null then 'azure' else '' end, \
(select puballtables::text from pg_publication where pubname = $1), \
(select (pubinsert and pubupdate and pubdelete and pubtruncate)::text from pg_publication where pubname = $1), \
(select (pubupdate or pubdelete)::text from pg_publication where pubname = $1)";

/// Whether the publication has all tables of a schema, from PostgreSQL 15 on.
const SCHEMAS: &str = "\
select (count(*) > 0)::text from pg_publication_namespace as s join pg_publication as p on p.oid = s.pnpubid where p.pubname = $1";

/// A row for each published table: its name, the letter of its replica identity, whether the columns of that identity are known, which columns are
/// published, whether rows are left out, and why no answers are kept that depend on it. `{listed}` and `{filtered}` depend on the version.
const TABLES: &str = "\
select format('%I.%I', n.nspname, c.relname), c.relreplident::text, (key.columns is not null)::text, \
case when {listed} is null then 'all' when key.columns <@ {listed} then 'with' else 'without' end, ({filtered})::text, \
case when c.relkind <> 'r' or c.relispartition then 'it is a partition, or has partitions' \
    when c.relhassubclass or exists (select from pg_inherits as i where c.oid in (i.inhrelid, i.inhparent)) then 'it has parents or children' \
    when c.relpersistence <> 'p' then 'it is unlogged' when c.relrowsecurity then 'it has row security' \
    when c.relhasrules then 'it has rules' else '' end \
from pg_publication as p, pg_get_publication_tables(p.pubname) as t join pg_class as c on c.oid = t.relid \
join pg_namespace as n on n.oid = c.relnamespace \
left join pg_publication_rel as r on r.prrelid = c.oid and r.prpubid = (select oid from pg_publication where pubname = $1) \
left join lateral (select (i.indkey::int2[])[0:i.indnkeyatts - 1] as columns from pg_index as i where i.indrelid = c.oid and i.indisvalid \
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end) as key on true \
where p.pubname = $1 order by 1";

/// The first version that can publish some columns, some rows, and schemas.
const VERSION_OF_LISTS: u32 = 150_000;

/// Asks the servers of all databases that are followed.
pub(super) fn following(logins: &Logins<'_>) -> Vec<Following> {
    let config = logins.config;
    let (user, publication) = (&config.main.query_cache_user, &config.main.query_cache_publication);
    let of = |(database, host, port, result): (String, String, u16, Result<Followed, String>)| Following {
        is_node: config.databases.get(&database).is_some_and(|entry| entry.cluster.is_some()),
        database,
        user: user.clone(),
        host,
        port,
        publication: publication.clone(),
        result,
    };
    let mut found = Vec::new();
    for (name, database) in config.databases.iter().filter(|(name, _)| config.is_followed(name)) {
        for target in logins.followers((name, database), user) {
            found.push(of(match target {
                Ok(target) => {
                    let answer = target.log_in().and_then(|mut client| ask(&mut client, publication));
                    (name.clone(), target.host, target.port, answer.map_err(|error| probe::why(&error)))
                }
                Err(why) => (
                    name.clone(),
                    database.hosts.first().cloned().unwrap_or_default(),
                    database.port,
                    Err(why),
                ),
            }));
        }
    }
    found
}

fn ask(client: &mut Client, publication: &str) -> io::Result<Followed> {
    let (_, rows) = client.ask(SERVER, publication)?;
    let mut server = rows.first().and_then(|row| read_server(row)).ok_or_else(unreadable)?;
    // Older versions lack what the other questions ask for, and nothing of the rest counts.
    if server.version < 140_000 {
        return Ok(server);
    }
    let has_lists = server.version >= VERSION_OF_LISTS;
    if let Some(found) = server.publication.as_mut().filter(|_| has_lists) {
        let (_, rows) = client.ask(SCHEMAS, publication)?;
        found.takes_new_tables |= rows.first().and_then(|row| row.first()).is_some_and(is_true);
    }
    let (listed, filtered) = match has_lists {
        true => ("r.prattrs::int2[]", "r.prqual is not null"),
        false => ("null::int2[]", "false"),
    };
    let (_, rows) =
        client.ask(&TABLES.replace("{listed}", listed).replace("{filtered}", filtered), publication)?;
    server.tables = rows.iter().map(|row| read_table(row)).collect::<Option<_>>().ok_or_else(unreadable)?;
    Ok(server)
}

fn unreadable() -> io::Error {
    io::Error::other("the answer to a question of pgweir cannot be read")
}

fn is_true(column: &Option<String>) -> bool {
    column.as_deref() == Some("true")
}

fn read_server(row: &[Option<String>]) -> Option<Followed> {
    let text = |place: usize| row.get(place)?.as_deref();
    let number = |place: usize| text(place)?.parse::<u64>().ok();
    let holds = |place: usize| row.get(place).is_some_and(is_true);
    Some(Followed {
        version: text(0)?.parse().ok()?,
        wal_level: text(1)?.to_owned(),
        is_standby: holds(2),
        slots_max: number(3)?,
        slots: number(4)?,
        senders_max: number(5)?,
        senders: number(6)?,
        has_slot: holds(7),
        may_replicate: holds(8),
        keeps_all_wal: text(9)? == "-1",
        sender_timeout_ms: number(10)?,
        cloud: match text(11)? {
            "aurora" => Cloud::Aurora,
            "rds" => Cloud::Rds,
            "cloudsql" => Cloud::CloudSql,
            "azure" => Cloud::Azure,
            _ => Cloud::Unknown,
        },
        publication: text(12).map(|_| Publication {
            takes_new_tables: holds(12),
            has_all_changes: holds(13),
            needs_identity: holds(14),
        }),
        tables: Vec::new(),
    })
}

fn read_table(row: &[Option<String>]) -> Option<Table> {
    let text = |place: usize| row.get(place)?.as_deref();
    let has_key = row.get(2).is_some_and(is_true);
    Some(Table {
        name: text(0)?.to_owned(),
        identity: match text(1)? {
            "f" => Identity::Full,
            "n" => Identity::Nothing,
            _ if !has_key => Identity::Missing,
            "i" => Identity::Index,
            _ => Identity::PrimaryKey,
        },
        columns: match text(3)? {
            "all" => Columns::All,
            "with" => Columns::WithIdentity,
            _ => Columns::WithoutIdentity,
        },
        has_filter: row.get(4).is_some_and(is_true),
        obstacle: text(5)?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Vec<Option<String>> {
        text.split(' ').map(|word| (word != "-").then(|| word.replace('~', ""))).collect()
    }

    #[test]
    fn a_server_is_read() {
        let well = "150018 logical false 10 1 10 2 true true -1 60000 ~ false true true";
        let server = read_server(&row(well)).expect("whole");
        assert_eq!((server.version, server.slots, server.senders), (150_018, 1, 2));
        assert!(server.has_slot && server.may_replicate && server.keeps_all_wal && !server.is_standby);
        let publication = server.publication.expect("there is one");
        assert!(!publication.takes_new_tables && publication.has_all_changes && publication.needs_identity);
        let none =
            read_server(&row("150018 replica true 0 0 0 0 false false 64MB 0 rds - - -")).expect("whole");
        assert_eq!((none.publication, none.cloud, none.keeps_all_wal), (None, Cloud::Rds, false));
        assert_eq!(read_server(&row("150018 logical")), None);
    }

    #[test]
    fn tables_are_read() {
        let read = |text: &str| read_table(&row(text)).map(|table| (table.identity, table.columns));
        assert_eq!(read("public.a d true all false ~"), Some((Identity::PrimaryKey, Columns::All)));
        assert_eq!(read("public.a d false all false ~"), Some((Identity::Missing, Columns::All)));
        assert_eq!(read("public.a i true with false ~"), Some((Identity::Index, Columns::WithIdentity)));
        assert_eq!(read("public.a i false all false ~"), Some((Identity::Missing, Columns::All)));
        assert_eq!(
            read("public.a f false without false ~"),
            Some((Identity::Full, Columns::WithoutIdentity))
        );
        assert_eq!(read("public.a n false all true ~"), Some((Identity::Nothing, Columns::All)));
        assert_eq!(read("public.a"), None);
    }
}
