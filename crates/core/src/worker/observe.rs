//! The control plane's view of this worker. Everything here reads; only the state that was shown last is remembered.

use crate::context::Activity;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::limits::{APPLICATION_NAMES_SHOWN_MAX, POOLS_SHOWN_MAX};
use crate::mail::Question;
use crate::stats::snapshot::{ClientCount, Snapshot, SnapshotRequest, WorkerSnapshot};
use crate::worker::Worker;
use crate::worker::console;
use std::collections::HashMap;

use crate::pool::show::snapshot::{count, shown_state};

/// The fields that clients of one count have in common: database, user, application_name, state.
type Alike<'a> = (&'a str, &'a str, &'a [u8], &'static str);

impl Worker {
    /// Answers a request of the control plane for a snapshot.
    pub(crate) fn look<D: Driver>(&mut self, cx: &mut Cx<'_, D>, ticket: u64, look: &SnapshotRequest) {
        let snapshot = match *look {
            SnapshotRequest::Pools { skip, limit } => {
                self.show_pools(cx.env, skip, limit.min(POOLS_SHOWN_MAX))
            }
            SnapshotRequest::ClientCounts => Snapshot::ClientCounts(self.count_clients(cx.env)),
            SnapshotRequest::Statements => Snapshot::Statements {
                top: self.top_statements(cx.env),
                slow: cx.env.measured.slow.iter().cloned().collect(),
            },
        };
        cx.driver.ask(Question::Seen { worker: cx.env.worker, ticket, snapshot });
    }

    fn show_pools(&mut self, env: &Env, skip: usize, limit: usize) -> Snapshot {
        let more = self.pools.len() > skip.saturating_add(limit);
        let pools = self.pools.values_mut().skip(skip).take(limit).map(|pool| pool.show_pool(env)).collect();
        let worker = (skip == 0).then(|| Box::new(self.show_worker(env)));
        Snapshot::Pools { worker, pools, more }
    }

    fn show_worker(&self, env: &Env) -> WorkerSnapshot {
        let consoles = count(self.unpooled.values().filter(|client| client.console().is_some()).count());
        let logging_in = count(self.unpooled.len()) - consoles;
        WorkerSnapshot {
            counters: env.counters.clone(),
            consoles,
            logging_in,
            paused: env.activity == Activity::Paused,
            suspended: env.activity == Activity::Suspended,
            stopping: env.stopping,
            prepared_statements: u32::try_from(env.statements.len()).unwrap_or(u32::MAX),
            followed: env.measured.stats.numbers(),
        }
    }

    fn count_clients(&self, env: &Env) -> Vec<ClientCount> {
        let position = env.tracked.position(b"application_name");
        let mut counts: HashMap<Alike<'_>, u32> = HashMap::new();
        let consoles = self.unpooled.values().filter_map(|client| client.console());
        let consoles = consoles.map(|console| (console::DATABASE, console.user(), &b""[..], "idle"));
        let pooled = self.pools.values().flat_map(|pool| {
            pool.clients.values().map(move |client| {
                let application = position.and_then(|position| client.account.params.get(position));
                let state = shown_state(&client.state);
                (&*pool.state.database, &*client.account.user, application.unwrap_or_default(), state)
            })
        });
        for key in pooled.chain(consoles) {
            // A client chooses its application_name: there are as many as clients want, but not here.
            let key = if counts.len() >= APPLICATION_NAMES_SHOWN_MAX && !counts.contains_key(&key) {
                (key.0, key.1, &b"(other)"[..], key.3)
            } else {
                key
            };
            *counts.entry(key).or_default() += 1;
        }
        let counted = counts.into_iter().map(|((database, user, application, state), count)| ClientCount {
            database: database.into(),
            user: user.into(),
            application_name: String::from_utf8_lossy(application).into_owned(),
            state,
            count,
        });
        counted.collect()
    }
}
