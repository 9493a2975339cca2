//! `/metrics`: everything of pgbouncer_exporter under its own names (`pgbouncer.rs`), and what is ours (`ours.rs`).

mod ours;
mod pgbouncer;
mod protobuf;
mod text;

use pgweir_core::console::command::Topic;
use pgweir_core::sight::{ClientCount, Look, Sight};

use super::House;
use super::access::Reader;
use super::reply::{Refusal, Reply, reply};
use hyper::StatusCode;
use text::{Format, Page};

/// What a scrape shows beside the model.
struct Tables {
    databases: Vec<super::api::Shown>,
    lists: Vec<super::api::Shown>,
    version: String,
    clients: Vec<ClientCount>,
    /// Names of users and applications may be shown; else series that differ in nothing else are added up.
    names: bool,
}

/// Answers a scrape.
pub(super) async fn scrape(house: &House, reader: &Reader, accept: &str) -> Result<Reply, Refusal> {
    let late = |_| Refusal::Unavailable("A worker did not answer in time.");
    house.refresh().await.map_err(late)?;
    let databases = house.show(Topic::Databases).await?;
    let lists = house.show(Topic::Lists).await?;
    let version = house.show(Topic::Version).await?;
    let version = version.first().and_then(|row| row.get("version")).unwrap_or_default().to_owned();
    let mut clients = Vec::new();
    for worker in house.desk.workers() {
        if let Sight::ClientCounts(counts) =
            house.desk.look(worker, Look::ClientCounts).await.map_err(late)?
        {
            clients.extend(counts);
        }
    }
    let tables = Tables { databases, lists, version, clients, names: reader.sees_names() };
    let format = Format::wanted(accept);
    let model = house.model.borrow();
    let mut page = Page::new(format);
    pgbouncer::write(&mut page, &model, &tables, &house.config());
    ours::write(&mut page, &model, &tables, house.version);
    Ok(reply(StatusCode::OK, format.media_type(), page.finish()))
}
