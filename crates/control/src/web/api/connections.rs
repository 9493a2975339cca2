//! The API's clients and servers, from SHOW CLIENTS and SHOW SERVERS, with a filter, an order and a limit.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pgweir_core::console::command::Topic;
use pgweir_core::snapshot::PoolSnapshot;
use pgweir_settings::PoolMode;
use serde_json::{Map, Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::model::{Activity, Model};
use super::super::reply::Refusal;
use super::query::Query;
use super::tables::ShowRow;

/// The maximum and the default number of rows in an answer.
const LIMIT: (usize, usize) = (1_000, 200);

/// The maximum number of values of a column that are offered as filters.
const CHOICES_MAX: usize = 200;

/// The filters: the query's word is the console's column.
const FILTERS: [&str; 3] = ["database", "user", "application_name"];

pub(super) async fn clients(web: &WebState, reader: &Reader, query: &Query) -> Result<Value, Refusal> {
    let states = ["active", "idle_in_transaction", "waiting", "idle", "login", "cancel"];
    let state = query.word("state", &states)?;
    let limit = query.number("limit", 1, LIMIT.0, LIMIT.1)?;
    refuse_names(reader, query)?;
    let rows = web.show(Topic::ClientsExtended).await?;
    let names = reader.sees_names();
    let choices = choices(&rows, names);
    let mut rows = chosen(rows, query, state);
    rows.sort_by(|one, other| place(one).cmp(&place(other)));
    let total = rows.len();
    let model = web.model.borrow();
    let rows: Vec<Value> = rows.iter().take(limit).map(|row| client(row, &model, names)).collect();
    Ok(json!({ "time_s": model.sampled_s(), "total": total, "choices": choices, "clients": rows }))
}

pub(super) async fn servers(web: &WebState, reader: &Reader, query: &Query) -> Result<Value, Refusal> {
    let states =
        ["active", "idle_in_transaction", "idle", "used", "tested", "login", "being_canceled", "listening"];
    let state = query.word("state", &states)?;
    let limit = query.number("limit", 1, LIMIT.0, LIMIT.1)?;
    refuse_names(reader, query)?;
    let rows = web.show(Topic::ServersExtended).await?;
    let names = reader.sees_names();
    let choices = choices(&rows, names);
    let mut rows = chosen(rows, query, state);
    rows.sort_by_key(|row| Reverse((waited_us(row), row.number("transaction_us"))));
    let total = rows.len();
    let rows: Vec<Value> = rows.iter().take(limit).map(|row| server(row, names)).collect();
    let time_s = web.model.borrow().sampled_s();
    Ok(json!({ "time_s": time_s, "total": total, "choices": choices, "servers": rows }))
}

/// Refuses a filter by name to readers that may not see names: the number of rows would tell whether the name
/// exists.
fn refuse_names(reader: &Reader, query: &Query) -> Result<(), Refusal> {
    let asks = query.get("user").is_some() || query.get("application_name").is_some();
    if asks { super::need_names(reader) } else { Ok(()) }
}

/// Returns the values of each filter among all rows, before any are selected.
fn choices(rows: &[ShowRow], names: bool) -> Value {
    let values = |column: &str| -> Vec<&str> {
        let found: BTreeSet<&str> =
            rows.iter().filter_map(|row| row.get(column)).filter(|text| !text.is_empty()).collect();
        found.into_iter().take(CHOICES_MAX).collect()
    };
    let shown = FILTERS.into_iter().filter(|column| names || *column == "database");
    shown.map(|column| (column.to_owned(), values(column).into())).collect::<Map<String, Value>>().into()
}

fn chosen(rows: Vec<ShowRow>, query: &Query, state: Option<&str>) -> Vec<ShowRow> {
    let fits =
        |row: &ShowRow, column: &str| query.get(column).is_none_or(|wanted| row.get(column) == Some(wanted));
    rows.into_iter()
        .filter(|row| FILTERS.into_iter().all(|column| fits(row, column)))
        .filter(|row| state.is_none_or(|state| state_of(row) == state))
        .collect()
}

/// Returns the state in the words of the API.
pub(super) fn state_of(row: &ShowRow) -> &str {
    match row.get("state").unwrap_or_default() {
        "active_cancel_req" | "waiting_cancel_req" => "cancel",
        "cl_login" | "new" => "login",
        "active" if is_idle_in_transaction(row) => "idle_in_transaction",
        state => state,
    }
}

/// Returns whether a transaction is open whose client has sent nothing since its last statement ended.
fn is_idle_in_transaction(row: &ShowRow) -> bool {
    waited_us(row) == 0 && row.number("transaction_us").is_some_and(|age_us| age_us > 0)
}

/// Returns a client's place in the list. The client that waits longest comes first, then clients that have a
/// server, by the time of their last request: a client that is idle in a transaction keeps other clients
/// waiting. Then come the rest.
fn place(row: &ShowRow) -> (u8, &str, Reverse<u64>) {
    let (rank, asked) = match state_of(row) {
        "waiting" => (0, ""),
        // Times of this form have the same order as texts.
        "active" | "idle_in_transaction" => (1, row.get("request_time").unwrap_or_default()),
        _ => (2, ""),
    };
    (rank, asked, Reverse(waited_us(row)))
}

pub(super) fn waited_us(row: &ShowRow) -> u64 {
    let part = |name: &str| row.number(name).unwrap_or_default();
    part("wait") * 1_000_000 + part("wait_us")
}

fn client(row: &ShowRow, model: &Model, names: bool) -> Value {
    let shown = |name: &str| row.get(name).filter(|text| names && !text.is_empty());
    let text = |name: &str| row.get(name).filter(|text| !text.is_empty());
    json!({
        "id": row.number("id"),
        "database": text("database"),
        "user": shown("user"),
        "application_name": shown("application_name"),
        "address": address(row).filter(|_| names),
        "state": state_of(row),
        "reason": client_reason(row, model),
        "since_s": unix_s(row.get("connect_time")),
        "request_s": unix_s(row.get("request_time")),
        "wait_us": waited_us(row),
        "transaction_us": row.number("transaction_us"),
        "statement": shown("statement"),
        "server_id": linked(row),
        "prepared_statements": row.number("prepared_statements"),
        "tls": text("tls"),
        "replication": text("replication"),
    })
}

fn server(row: &ShowRow, names: bool) -> Value {
    let shown = |name: &str| row.get(name).filter(|text| names && !text.is_empty());
    let text = |name: &str| row.get(name).filter(|text| !text.is_empty());
    let close_needed = row.number("close_needed").is_some_and(|flag| flag != 0);
    json!({
        "id": row.number("id"),
        "database": row.get("database"),
        "user": shown("user"),
        "address": address(row).filter(|_| names),
        "state": state_of(row),
        "reason": match text("pinned") {
            _ if close_needed => Some("will be closed when it is free".to_owned()),
            Some(reasons) => Some(format!("kept by its client: {reasons}")),
            None => None,
        },
        "since_s": unix_s(row.get("connect_time")),
        "request_s": unix_s(row.get("request_time")),
        "active_us": waited_us(row),
        "transaction_us": row.number("transaction_us"),
        "statement": shown("statement"),
        "client_id": linked(row),
        "application_name": shown("application_name"),
        "backend_pid": row.number("remote_pid"),
        "close_needed": close_needed,
        "prepared_statements": row.number("prepared_statements"),
        "tls": row.get("tls").filter(|text| !text.is_empty()),
    })
}

/// Returns the reason why a client is in its state, if the state alone does not tell.
fn client_reason(row: &ShowRow, model: &Model) -> Option<String> {
    match row.get("pinned") {
        Some(reasons) if !reasons.is_empty() => return Some(format!("keeps its server: {reasons}")),
        _ => {}
    }
    if row.number("multiplexed").is_some_and(|count| count > 0) {
        return Some("its statement is queued on a server after another client's".to_owned());
    }
    let pool = pool_of(row, model);
    let reason = match state_of(row) {
        "waiting" if model.activity() == Activity::Paused => "everything is paused",
        "waiting" if pool.is_some_and(|pool| pool.paused) => "its database is paused",
        "waiting" if pool.is_some_and(|pool| pool.failure.is_some() && pool.servers.total() == 0) => {
            "connections to the server cannot be opened"
        }
        "waiting" => "all servers of its pool are busy",
        "idle_in_transaction" => "in a transaction, has sent nothing since its last statement",
        "active" if linked(row).is_some() && waited_us(row) == 0 => {
            let replicates = row.get("replication").is_some_and(|text| text != "none");
            let session = replicates || pool.is_some_and(|pool| pool.mode == PoolMode::Session);
            return session.then(|| "session pooling keeps its server".to_owned());
        }
        _ => return None,
    };
    Some(reason.to_owned())
}

/// Returns the pool of a client; any pool of the database if the database has a forced user.
fn pool_of<'a>(row: &'a ShowRow, model: &'a Model) -> Option<&'a PoolSnapshot> {
    let mut pools = model.pools_of(Some(row.get("database")?)).map(|pool| &pool.snapshot).peekable();
    let first = pools.peek().copied();
    pools.find(|pool| Some(&*pool.user) == row.get("user")).or(first)
}

fn address(row: &ShowRow) -> Option<String> {
    match row.get("addr")? {
        "unix" => Some("unix".to_owned()),
        host if host.contains(':') => Some(format!("[{host}]:{}", row.get("port")?)),
        host => Some(format!("{host}:{}", row.get("port")?)),
    }
}

/// Returns the id of the linked connection. `link` is the other side's `ptr`, which is its `id` in
/// hexadecimal.
fn linked(row: &ShowRow) -> Option<u64> {
    u64::from_str_radix(row.get("link")?.strip_prefix("0x")?, 16).ok()
}

/// Returns the console's time, `2026-11-19 23:59:59 CET`, as Unix time. It is this machine's local time,
/// whatever its zone is called.
pub(super) fn unix_s(text: Option<&str>) -> Option<i64> {
    let (time, zone_name) = text?.rsplit_once(' ')?;
    let zone = match zone_name {
        "UTC" => TimeZone::UTC,
        _ => TimeZone::try_system().ok()?,
    };
    let time: DateTime = time.parse().ok()?;
    Some(time.to_zoned(zone).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_consoles_times_are_understood() {
        assert_eq!(unix_s(Some("1970-01-02 00:00:01 UTC")), Some(86_401));
        assert_eq!(unix_s(Some("2000-02-29 00:00:00 UTC")), Some(951_782_400));
        assert_eq!((unix_s(Some("yesterday")), unix_s(None)), (None, None));
    }
}
