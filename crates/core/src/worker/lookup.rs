//! `auth_query`: a question of a client that logs in goes to the pool that is to answer it, wherever that is.

use crate::context::Cx;
use crate::driver::{Driver, Level, WorkerId};
use crate::ids::UnpooledId;
use crate::mail::{Mail, Shutdown};
use crate::worker::Worker;
use crate::worker::login::inquiry::{Answer, Lookup, Obstacle};
use std::sync::Arc;

use crate::pool::lookup::answer_lookup;

impl Worker {
    /// Takes a question to the pool that is to answer it, wherever that is.
    pub(crate) fn look_up<D: Driver>(&mut self, cx: &mut Cx<'_, D>, lookup: Box<Lookup>) {
        let owner = cx.env.shared.owner(&lookup.database, &lookup.auth_user);
        if owner != cx.env.worker {
            return cx.driver.mail(owner, Mail::LookUp(lookup));
        }
        let Some(pool_id) = self.pool_for(cx, &lookup.database, &lookup.auth_user) else {
            let line = format!("authentication database \"{}\" is not configured.", lookup.database);
            cx.log(Level::Error, &line);
            return answer_lookup(cx, &lookup, Answer::Unavailable(Obstacle::Misconfigured));
        };
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            return answer_lookup(cx, &lookup, Answer::Unavailable(Obstacle::ShuttingDown));
        }
        self.in_pool(cx, pool_id, |pool, cx| pool.queue_lookup(cx, lookup));
    }

    /// Forgets the question of a client that has left. If a server has already received the question, its answer is dropped.
    pub(crate) fn forget_lookup<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        from: WorkerId,
        client: UnpooledId,
        (database, auth_user): (Arc<str>, Arc<str>),
    ) {
        let owner = cx.env.shared.owner(&database, &auth_user);
        if owner != cx.env.worker {
            return cx.driver.mail(owner, Mail::ForgetLookUp { from, client, database, auth_user });
        }
        if let Some(&pool_id) = self.pool_names.get(&(database, auth_user)) {
            self.pools[pool_id]
                .state
                .queue
                .lookups
                .retain(|lookup| (lookup.from, lookup.client) != (from, client));
        }
    }
}
