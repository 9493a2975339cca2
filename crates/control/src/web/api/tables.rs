//! Tables of the console as JSON. They are requested from the machines like SHOW, so that both always agree.

use std::rc::Rc;

use pgweir_core::console::column_names;
use pgweir_core::console::command::{Command, Topic};
use pgweir_settings::{Config, FALLBACK_DATABASE};
use serde_json::{Map, Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::model::together;
use super::super::reply::Refusal;
use super::super::worker_rpc::NotDone;
use super::numbers;

/// One row of a SHOW, by column.
pub(in super::super) struct ShowRow {
    names: Rc<[&'static str]>,
    cells: Vec<Option<String>>,
}

impl ShowRow {
    #[cfg(test)]
    pub(in super::super) fn of(names: &[&'static str], cells: Vec<Option<String>>) -> ShowRow {
        ShowRow { names: names.into(), cells }
    }

    pub(in super::super) fn get(&self, name: &str) -> Option<&str> {
        let place = self.names.iter().position(|known| *known == name)?;
        self.cells.get(place)?.as_deref()
    }

    /// Returns whether this version has such a column.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    pub(in super::super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.trim().parse().ok()
    }

    fn flag(&self, name: &str) -> bool {
        self.number(name).is_some_and(|number| number != 0)
    }
}

impl WebState {
    /// Returns the rows of a SHOW.
    pub(in super::super) async fn show(&self, topic: Topic) -> Result<Vec<ShowRow>, Refusal> {
        match self.worker_rpc.operate(Command::Show(topic)).await {
            Ok(rows) => {
                let names: Rc<[&str]> = column_names(topic, self.config().main.compatible_with).into();
                Ok(rows.into_iter().map(|cells| ShowRow { names: Rc::clone(&names), cells }).collect())
            }
            Err(NotDone::Late) => Err(Refusal::Unavailable("A worker did not answer in time.")),
            Err(NotDone::Refused(text)) => Err(Refusal::Failed(text)),
        }
    }
}

pub(super) async fn databases(web: &WebState, reader: &Reader) -> Result<Value, Refusal> {
    let rows = web.show(Topic::Databases).await?;
    let config = web.config();
    let model = web.model.borrow();
    let tracks: std::collections::HashMap<&str, _> =
        model.databases().map(|(name, track)| (&**name, track)).collect();
    let rows: Vec<Value> = rows
        .iter()
        .filter(|row| row.get("name") != Some(pgweir_settings::ADMIN_DATABASE))
        .map(|row| {
            let name = row.get("name").unwrap_or_default();
            let mut object = Map::new();
            object.insert("name".to_owned(), name.into());
            let names = reader.sees_names();
            for key in ["host", "database", "force_user"] {
                object.insert(key.to_owned(), row.get(key).filter(|_| names).into());
            }
            object.insert("cluster".to_owned(), cluster_of(&config, name).into());
            object.insert("pool_mode".to_owned(), row.get("pool_mode").into());
            for key in [
                "port",
                "pool_size",
                "min_pool_size",
                "reserve_pool_size",
                "max_connections",
                "current_connections",
                "max_client_connections",
                "current_client_connections",
            ] {
                object.insert(key.to_owned(), row.number(key).into());
            }
            for key in ["paused", "disabled"] {
                object.insert(key.to_owned(), row.flag(key).into());
            }
            let (sum, track) = (model.sum(Some(name)), tracks.get(name));
            let recent = track.and_then(|track| together(track.recent()));
            let rates = track.map(|track| track.rates()).unwrap_or_default();
            object.insert("clients".to_owned(), numbers::clients(&sum.clients, 0));
            object.insert("servers".to_owned(), numbers::servers(&sum.servers, sum.size));
            object.insert("rates".to_owned(), numbers::rates(&rates));
            object.insert("totals".to_owned(), numbers::totals(&sum.stats, sum.errors));
            object.insert("latency".to_owned(), numbers::latency(recent.as_deref()));
            object.insert("wait_oldest_us".to_owned(), sum.wait_oldest_us.into());
            object.into()
        })
        .collect();
    Ok(json!({ "time_s": model.sampled_s(), "databases": rows }))
}

/// Returns the cluster that serves a database.
fn cluster_of<'a>(config: &'a Config, database: &str) -> Option<&'a str> {
    let entry = config.databases.get(database).or_else(|| config.databases.get(FALLBACK_DATABASE))?;
    entry.cluster.as_deref()
}

pub(super) async fn users(web: &WebState, reader: &Reader) -> Result<Value, Refusal> {
    if !reader.sees_names() {
        return Ok(json!({ "users": [] }));
    }
    let rows = web.show(Topic::Users).await?;
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let mut object = Map::new();
            for key in ["name", "pool_mode"] {
                object.insert(key.to_owned(), row.get(key).into());
            }
            for key in [
                "pool_size",
                "reserve_pool_size",
                "max_user_connections",
                "current_connections",
                "max_user_client_connections",
                "current_client_connections",
            ] {
                object.insert(key.to_owned(), row.number(key).into());
            }
            object.into()
        })
        .collect();
    Ok(json!({ "users": rows }))
}
