//! The configuration file that packages install as /etc/pgweir/pgweir.ini: every setting with its
//! documentation, made from the tables. It must never say something about a setting that is not in that
//! setting's row.

use std::fmt::Write;

use crate::pages::reference::change_word;
use crate::table::{
    CACHE_ROWS, CLUSTER_ROWS, DATABASE_ROWS, MAIN_ROWS, NODE_ROWS, Origin, PEER_ROWS, ROUTE_ROWS, Row,
    Status, USER_ROWS,
};

/// Columns of a line.
const COLUMNS: usize = 110;

const HEAD: &str = "\
; The configuration of pgweir. All settings are here; those that begin with a semicolon have their default value.
; The manual page pgweir.ini(5) describes the format of this file.
;
;   pgweir check /etc/pgweir/pgweir.ini     reports every fault of this file
;   systemctl reload pgweir                 reads it again; a setting whose line says \"restart\" keeps its value

";

const DATABASES: &str = "\
; The databases that clients can connect to. The name \"*\" stands for all databases that have no line here.
[databases]
;shop = host=10.0.0.5 port=5432 dbname=shop
;* = host=/run/postgresql
;
; Each line can have these options, separated by spaces:
;
";

const USERS: &str = "
; Options of single users. They go before those of a database and those below.
[users]
;report = pool_mode=session query_timeout=600
;
; Each line can have these options, separated by spaces:
;
";

const CLUSTERS: &str = "
; A primary and its standbys: a database with cluster=main is served by the node that is the primary.
[clusters]
;main = nodes=m1,m2 check_user=pgweir_check
;
; Each line can have these options, separated by spaces:
;
";

const NODES: &str = "
; The PostgreSQL servers of the clusters.
[nodes]
;m1 = host=10.0.0.1
;m2 = host=10.0.0.2
;
; Each line can have these options, separated by spaces:
;
";

const ROUTES: &str = "
; Which clients' transactions run on which nodes of a cluster: the first line that a client matches counts.
[routes]
;bi = user=report_* route=standby percent=80
;
; Each line can have these options, separated by spaces:
;
";

const CACHE: &str = "
; Which reads' answers are kept and given again, with query_cache=on: the first rule that a statement matches counts.
[cache]
;dashboards = user=grafana ttl_ms=10000
;
; Each line can have these options, separated by spaces:
;
";

const PEERS: &str = "
; The other pgweir processes behind the same address, for cancel requests.
[peers]
;2 = host=/run/pgweir-2
;
; Each line can have these options, separated by spaces:
;
";

const MAIN: &str = "
; Everything else.
[pgbouncer]
";

/// The settings that a package sets: its own folders, and values for a first start.
const SET: [(&str, &str); 7] = [
    ("logfile", "/var/log/pgweir/pgweir.log"),
    ("pidfile", "/run/pgweir/pgweir.pid"),
    ("listen_addr", "127.0.0.1"),
    ("unix_socket_dir", "/run/pgweir"),
    ("auth_type", "scram-sha-256"),
    ("auth_file", "/etc/pgweir/userlist.txt"),
    ("pool_mode", "transaction"),
];

/// Returns the contents of `deploy/packages/pgweir.ini`.
pub fn packaged_ini() -> String {
    let mut page = HEAD.to_owned();
    options(&mut page, DATABASES, DATABASE_ROWS);
    options(&mut page, USERS, USER_ROWS);
    options(&mut page, CLUSTERS, CLUSTER_ROWS);
    options(&mut page, NODES, NODE_ROWS);
    options(&mut page, ROUTES, ROUTE_ROWS);
    options(&mut page, CACHE, CACHE_ROWS);
    options(&mut page, PEERS, PEER_ROWS);
    page.push_str(MAIN);
    for rows in MAIN_ROWS.chunk_by(|one, next| one.group == next.group) {
        let group = rows.first().map_or("", |row| row.group);
        put(&mut page, format_args!("\n;;; {group}\n"));
        for row in rows {
            setting(&mut page, row);
        }
    }
    page
}

/// Writes the options of an entry, which share the line of the entry.
fn options<T>(page: &mut String, head: &str, rows: &[Row<T>]) {
    page.push_str(head);
    for row in rows {
        wrapped(page, &format!("{}: {}", row.name, about(row)), ";   ", ";       ");
    }
}

/// Writes one setting: its documentation, and its line.
fn setting<T>(page: &mut String, row: &Row<T>) {
    page.push('\n');
    wrapped(page, &about(row), "; ", "; ");
    let default = row.default.unwrap_or("");
    match SET.iter().find(|(name, _)| *name == row.name) {
        Some((name, value)) => put(page, format_args!("{name} = {value}\n")),
        None => put(page, format_args!("{}\n", format!(";{} = {default}", row.name).trim_end())),
    }
}

/// Returns a row's documentation as plain text, with the facts that the tables have.
fn about<T>(row: &Row<T>) -> String {
    let mut facts = vec![row.kind.describe()];
    facts.extend((row.change != crate::Change::Reload).then(|| change_word(row.change).to_owned()));
    facts.extend((row.origin == Origin::Ours).then(|| "not in PgBouncer".to_owned()));
    facts.extend((row.status == Status::NotYet).then(|| "not yet in effect".to_owned()));
    format!("{} ({})", row.doc.trim().replace('`', ""), facts.join("; "))
}

/// Writes words in lines of at most [`COLUMNS`]. The first line has its own prefix.
fn wrapped(page: &mut String, text: &str, first: &str, other: &str) {
    let mut line = first.to_owned();
    for word in text.split_whitespace() {
        if line.len() > other.len() && line.len() + word.len() > COLUMNS {
            put(page, format_args!("{}\n", line.trim_end()));
            other.clone_into(&mut line);
        }
        line.push_str(word);
        line.push(' ');
    }
    put(page, format_args!("{}\n", line.trim_end()));
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes everything");
}
