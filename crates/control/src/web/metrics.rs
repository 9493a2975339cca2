//! `/metrics`: everything of pgbouncer_exporter under its own names (`pgbouncer.rs`), and pgweir's own
//! metrics (`ours.rs`).

mod clusters;
mod limits;
mod ours;
mod pgbouncer;
#[cfg(test)]
mod reference;
mod text;
mod vip;

use pgweir_core::console::command::Topic;
use pgweir_core::snapshot::{ClientCount, Snapshot, SnapshotRequest};

use super::WebState;
use super::access::Reader;
use super::reply::{Refusal, Reply, reply};
use hyper::StatusCode;
use std::borrow::Cow;

use pgweir_core::stats::times::Times;

use super::model::{Model, Sum};
use text::{Format, Labels, Page};

/// The parts of a scrape that are not in the model.
struct Tables {
    databases: Vec<super::api::ShowRow>,
    lists: Vec<super::api::ShowRow>,
    version: String,
    clients: Vec<ClientCount>,
    /// `true` if names of users and applications may be shown. Otherwise series that differ only in them are
    /// added up.
    names: bool,
}

/// Answers a scrape.
pub(super) async fn scrape(web: &WebState, reader: &Reader, accept: &str) -> Result<Reply, Refusal> {
    let late = |_| Refusal::Unavailable("A worker did not answer in time.");
    web.refresh().await.map_err(late)?;
    let databases = web.show(Topic::Databases).await?;
    let lists = web.show(Topic::Lists).await?;
    let version = web.show(Topic::Version).await?;
    let version = version.first().and_then(|row| row.get("version")).unwrap_or_default().to_owned();
    let (clusters, nodes) = web.look_at_clusters().await?;
    let addresses = web.show(Topic::Vip).await?;
    let shared_limits = web.show(Topic::Limits).await?;
    let mut clients = Vec::new();
    for worker in web.worker_rpc.workers() {
        if let Snapshot::ClientCounts(counts) =
            web.worker_rpc.look(worker, SnapshotRequest::ClientCounts).await.map_err(late)?
        {
            clients.extend(counts);
        }
    }
    let tables = Tables { databases, lists, version, clients, names: reader.sees_names() };
    let format = Format::wanted(accept);
    let model = web.model.borrow();
    let groups = groups(&model, tables.names);
    let mut page = Page::new(format);
    pgbouncer::write(&mut page, &model, &groups, &tables, &web.config());
    ours::write(&mut page, &model, &groups, web.version);
    clusters::write(&mut page, &clusters, &nodes);
    vip::write(&mut page, &addresses);
    limits::write(&mut page, &shared_limits, tables.names);
    Ok(reply(StatusCode::OK, format.media_type(), page.finish()))
}

/// Pools that are shown as one, with their labels: each pool on its own, or all of a database.
struct Group<'a> {
    database: &'a str,
    user: &'a str,
    labels: Labels,
    sum: Sum,
    times: Option<Cow<'a, Times>>,
}

fn groups(model: &Model, names: bool) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for pool in model.pools() {
        let (database, user) = (&*pool.snapshot.database, if names { &*pool.snapshot.user } else { "" });
        let times = pool.snapshot.times.as_deref();
        // Pools are sorted by their names.
        match groups.last_mut().filter(|last| (last.database, last.user) == (database, user)) {
            Some(last) => {
                last.sum.add(&pool.snapshot);
                match (&mut last.times, times) {
                    (Some(all), Some(its)) => all.to_mut().add(its),
                    (none, its) => *none = none.take().or(its.map(Cow::Borrowed)),
                }
            }
            None => groups.push(Group {
                database,
                user,
                labels: Labels::new(&[("database", database), ("user", user)]),
                sum: Sum::of([&pool.snapshot]),
                times: times.map(Cow::Borrowed),
            }),
        }
    }
    if !names {
        for group in &mut groups {
            let Some(past) = model.past(group.database) else { continue };
            group.sum.add_past(&past.sum);
            match (&mut group.times, past.times.as_deref()) {
                (Some(all), Some(its)) => all.to_mut().add(its),
                (none, its) => *none = none.take().or(its.map(Cow::Borrowed)),
            }
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{film, pool};
    use super::*;

    #[test]
    fn what_is_added_up_over_pools_does_not_go_backward() {
        let mut film = film();
        let steps = [
            (vec![pool("shop", "ann", 100, None), pool("shop", "bob", 50, None)], Some(150)),
            (vec![pool("shop", "bob", 51, None)], Some(151)),
            // Made again, and looked at only when it had counted something.
            (vec![pool("shop", "bob", 9, None)], Some(160)),
            (vec![pool("shop", "ann", 1, None), pool("shop", "bob", 9, None)], Some(161)),
            (vec![pool("other", "ann", 1, None)], None),
            (vec![pool("shop", "ann", 2, None)], Some(2)),
        ];
        for (number, (pools, expected)) in steps.into_iter().enumerate() {
            film.show(pools);
            let all = groups(&film.model, false);
            let sum = all.iter().find(|group| group.database == "shop").map(|group| group.sum.stats.queries);
            assert_eq!(sum, expected, "step {number}");
            let mut page = Page::new(Format::wanted(""));
            pgbouncer::stats(&mut page, &film.model);
            let text = String::from_utf8(page.finish().to_vec()).expect("text");
            let line = expected.map(|count| format!("queries_pooled_total{{database=\"shop\"}} {count}\n"));
            assert!(line.is_none_or(|line| text.contains(&line)), "step {number}: {text}");
        }
    }
}
