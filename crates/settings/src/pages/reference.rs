//! The reference page, made from the tables. It must never say something about one setting that is not in
//! that setting's row.

use std::fmt::Write;

use crate::table::{
    CACHE_ROWS, CLUSTER_ROWS, Change, DATABASE_ROWS, MAIN_ROWS, NODE_ROWS, Origin, PEER_ROWS, ROUTE_ROWS,
    Row, Status, USER_ROWS,
};

pub(crate) const HEAD: &str = r#"# Settings

<!-- Made from the tables in crates/settings/src/table. To write it again:
     UPDATE=1 cargo test -p pgweir-settings --test reference -->

pgweir reads PgBouncer's configuration files as they are.

## The file

```ini
; a comment is a whole line that starts with ; or #
[databases]
shop = host=10.0.0.5 port=5432 dbname=shop
* = host=10.0.0.6

[users]
report = pool_mode=session query_timeout=600

[pgbouncer]
listen_addr = *
pool_mode = transaction
%include /etc/pgweir/more.ini
```

- The sections are `[pgbouncer]` (needed; `[pgweir]` is the same), `[databases]`, `[users]`, `[clusters]`, `[nodes]`,
  `[routes]`, `[cache]` and `[peers]`.
- A value is the rest of its line. There are no comments after it, no quotes around it and no second line.
- A name is made of letters, digits and `_ . - *`; any other name must be enclosed in single or double quotes.
- `%include file` inserts another file at this point, up to 10 files deep. A relative path starts at the working
  directory. A section continues into the included file, and out of it.
- After the file pgweir reads `/etc/pgweir/conf.d/*.ini`, directories of `--overlay` and variables `PGWEIR_NAME`. In these sources
  `name += key=value` adds keys to an entry (docs/configure/overlay.md).
- In the entries of the other sections, spaces separate the pairs. A value with spaces is enclosed in single quotes;
  within them, two quotes mean one: `connect_query='select ''hello'''`. An empty value is an error.
- Whole numbers may be octal (`0777`) or hexadecimal (`0x10`). Switches are 0 or 1; on, off, true, false, yes
  and no are accepted, too.
- Times are decimal seconds unless stated otherwise. A unit may follow: us, ms, s, min, h, d. Sizes are
  bytes; kB, MB and GB may follow.
- pgweir reports all faults of all files together. If there is a fault, it rejects all files: a reload with a fault
  changes nothing.

Some rules are surprising. pgweir has them because PgBouncer does:

- A second `[pgbouncer]` header sets everything before it back to the defaults, also if it is in an
  included file. pgweir warns.
- `host= port=1` is a host with the name "port=1": the value may follow after spaces.
- `server_lifetime=0` of a database means the global value, and only the global 0 means that a connection is
  used once.
- A setting that needs a restart is kept at a reload, and `SET` answers success for it. pgweir warns.
- The forced user of a database (`user=`) cannot be taken away by a reload.

In some things pgweir is different on purpose:

- A number that is out of range or followed by something else is an error. PgBouncer takes some of them for
  zero.
- A timeout of 0 in `[users]` means that this user has no limit.
- A setting that the file no longer has goes back to its default at a reload, also when that is "not set".
  Only `conffile`, `user` and `verbose` are kept.
- The options of a user whose line is gone are gone at a reload.

"not yet" below means that a setting is read and checked, and that nothing else happens; loading it gives a
warning. "pgweir" marks settings that PgBouncer does not have.

"#;

pub(crate) const DATABASES: &str = r#"
## [databases]

`name = key=value ...`. The name `*` stands for all databases that have no entry; `pgbouncer` is the
console's. A name has at most 63 bytes. "recycle" means that a change replaces the server connections.

"#;

pub(crate) const USERS: &str = r#"
## [users]

`name = key=value ...`. What is set here goes before what is set for a database and globally.

"#;

pub(crate) const CLUSTERS: &str = r#"
## [clusters]

`name = key=value ...`. A database with `cluster=name` is served by the node of that cluster that is the primary: see
[configure/clusters.md](configure/clusters.md).

"#;

pub(crate) const NODES: &str = r#"
## [nodes]

`name = key=value ...`. A node belongs to one cluster.

"#;

pub(crate) const ROUTES: &str = r#"
## [routes]

`name = key=value ...`. Which clients' transactions run on which nodes, in databases with a cluster: the first line in the file that
a client matches counts. It goes before the `route` of users, databases and clusters. `SET pgweir.route` goes before it.

"#;

pub(crate) const CACHE: &str = r#"
## [cache]

`name = key=value ...`. The statements whose answers are kept with `query_cache=on`: the first rule in the file that a statement matches
counts. See [configure/query-cache.md](configure/query-cache.md).

"#;

pub(crate) const PEERS: &str = r#"
## [peers]

`id = key=value ...`, with an id from 1 to 65535.

"#;

/// Returns the page `docs/reference.md`: all settings of all sections as Markdown.
pub fn reference_markdown() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n## [pgbouncer]\n");
    groups(&mut page, MAIN_ROWS);
    page.push_str(DATABASES);
    table(&mut page, DATABASE_ROWS);
    page.push_str(USERS);
    table(&mut page, USER_ROWS);
    page.push_str(CLUSTERS);
    table(&mut page, CLUSTER_ROWS);
    page.push_str(NODES);
    table(&mut page, NODE_ROWS);
    page.push_str(ROUTES);
    table(&mut page, ROUTE_ROWS);
    page.push_str(CACHE);
    table(&mut page, CACHE_ROWS);
    page.push_str(PEERS);
    table(&mut page, PEER_ROWS);
    page
}

fn groups<T>(page: &mut String, rows: &[Row<T>]) {
    for rows in rows.chunk_by(|one, next| one.group == next.group) {
        let group = rows.first().map_or("", |row| row.group);
        put(page, format_args!("\n### {group}\n\n"));
        table(page, rows);
    }
}

fn table<T>(page: &mut String, rows: &[Row<T>]) {
    page.push_str("| Setting | Default | Takes | Changes at | Meaning |\n|---|---|---|---|---|\n");
    for row in rows {
        let mut notes = String::new();
        if row.origin == Origin::Ours {
            notes.push_str("**pgweir** ");
        }
        if row.status == Status::NotYet {
            notes.push_str("**not yet** ");
        }
        let change = change_word(row.change);
        put(
            page,
            format_args!(
                "| `{}` | {} | {} | {change} | {notes}{} |\n",
                row.name,
                default(row.default),
                cell(&row.kind.describe()),
                cell(row.doc.trim())
            ),
        );
    }
}

/// The event at which a change takes effect, in a word or two.
pub(crate) fn change_word(change: Change) -> &'static str {
    match change {
        Change::Reload => "reload",
        Change::Restart => "restart",
        Change::Recycle => "reload, recycle",
    }
}

fn default(text: Option<&str>) -> String {
    match text {
        None => "not set".to_owned(),
        Some("") => "empty".to_owned(),
        Some(text) => format!("`{}`", cell(text)),
    }
}

/// Escapes bars, which would end the table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("a String takes everything");
}
