//! The API's applications: clients by `application_name`, with what they do and hold. From SHOW CLIENTS.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_core::console::command::Topic;
use pgweir_settings::ADMIN_DATABASE;
use serde_json::{Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::reply::Refusal;
use super::connections::{state_of, waited_us};
use super::tables::ShowRow;

/// The maximum number of applications in an answer. Some drivers put a process id into the name.
const APPLICATIONS_MAX: usize = 1_000;

/// The maximum number of databases and users that an application's row names.
const NAMES_MAX: usize = 20;

/// The clients of one application.
#[derive(Default)]
struct Application<'a> {
    clients: u64,
    active: u64,
    idle_in_transaction: u64,
    pinned: u64,
    waiting: u64,
    idle: u64,
    wait_oldest_us: u64,
    transaction_oldest_us: u64,
    databases: BTreeSet<&'a str>,
    users: BTreeSet<&'a str>,
}

pub(super) async fn applications(web: &WebState, reader: &Reader) -> Result<Value, Refusal> {
    super::need_names(reader)?;
    let rows = web.show(Topic::ClientsExtended).await?;
    let all = grouped(&rows);
    let total = all.len();
    let mut all: Vec<_> = all.into_iter().collect();
    // Clients that hold or wait for servers matter more than idle ones.
    all.sort_by_key(|(_, one)| {
        std::cmp::Reverse((one.waiting, one.active + one.idle_in_transaction, one.clients))
    });
    let applications: Vec<Value> =
        all.into_iter().take(APPLICATIONS_MAX).map(|(name, application)| told(name, &application)).collect();
    let time_s = web.model.borrow().sampled_s();
    Ok(json!({ "time_s": time_s, "total": total, "applications": applications }))
}

/// Returns the applications by name; clients that gave none are in the one without a name. Users of the console are left out.
fn grouped(rows: &[ShowRow]) -> BTreeMap<&str, Application<'_>> {
    let mut found: BTreeMap<&str, Application<'_>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.get("database") != Some(ADMIN_DATABASE)) {
        let one = found.entry(row.get("application_name").unwrap_or_default()).or_default();
        one.clients += 1;
        match state_of(row) {
            "active" => one.active += 1,
            "idle_in_transaction" => one.idle_in_transaction += 1,
            "waiting" => {
                one.waiting += 1;
                one.wait_oldest_us = one.wait_oldest_us.max(waited_us(row));
            }
            _ => one.idle += 1,
        }
        one.pinned += u64::from(row.get("pinned").is_some_and(|reasons| !reasons.is_empty()));
        one.transaction_oldest_us =
            one.transaction_oldest_us.max(row.number("transaction_us").unwrap_or_default());
        one.databases.extend(row.get("database"));
        one.users.extend(row.get("user"));
    }
    found
}

fn told(name: &str, one: &Application<'_>) -> Value {
    let names = |all: &BTreeSet<&str>| -> Vec<String> {
        all.iter().take(NAMES_MAX).map(|name| (*name).to_owned()).collect()
    };
    json!({
        "name": name,
        "clients": one.clients,
        "active": one.active,
        "idle_in_transaction": one.idle_in_transaction,
        "pinned": one.pinned,
        "waiting": one.waiting,
        "idle": one.idle,
        "wait_oldest_us": one.wait_oldest_us,
        "transaction_oldest_us": one.transaction_oldest_us,
        "databases": names(&one.databases),
        "users": names(&one.users),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, state: &str, wait: &str, age_us: &str, database: &str) -> ShowRow {
        let names =
            ["application_name", "state", "wait", "wait_us", "transaction_us", "pinned", "database", "user"];
        let cells = [name, state, wait, "0", age_us, "", database, "web"];
        ShowRow::of(&names, cells.iter().map(|text| Some((*text).to_owned())).collect())
    }

    #[test]
    fn clients_are_counted_by_what_they_do() {
        let rows = [
            row("shop", "waiting", "3", "0", "app"),
            row("shop", "waiting", "7", "0", "app"),
            row("shop", "active", "0", "40", "other"),
            row("shop", "active", "1", "90", "app"),
            row("", "idle", "0", "0", "app"),
            row("console", "active", "0", "0", "pgbouncer"),
        ];
        let found = grouped(&rows);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), ["", "shop"]);
        let shop = &found["shop"];
        assert_eq!(
            (shop.clients, shop.waiting, shop.active, shop.idle_in_transaction, shop.idle),
            (4, 2, 1, 1, 0)
        );
        assert_eq!((shop.wait_oldest_us, shop.transaction_oldest_us), (7_000_000, 90));
        assert_eq!(shop.databases.iter().copied().collect::<Vec<_>>(), ["app", "other"]);
        assert_eq!((found[""].clients, found[""].idle), (1, 1));
    }
}
