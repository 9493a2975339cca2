//! Finds the value that counts: the user's, then the database's, then the global one.
//!
//! The caller decides which user to ask about: sizes, pool mode and limits of server connections follow the
//! pool's server user, timeouts of clients follow the user who logged in.

use std::time::Duration;

use crate::config::Config;
use crate::table::{ClusterOptions, Database, NodeOptions, UserOptions};
use crate::{
    Balance, BeginUndeclared, CausalReads, CommitOutcome, LoadBalanceHosts, PoolMode, Route, SessionState,
};

/// Turns zero, by which the files say "no limit", into `None`.
fn limit(time: Duration) -> Option<Duration> {
    (!time.is_zero()).then_some(time)
}

impl Config {
    fn of_user<T>(&self, user: &str, field: impl FnOnce(&UserOptions) -> Option<T>) -> Option<T> {
        self.users.get(user).and_then(field)
    }

    /// Returns what a client of this pool is told if its primary is lost after its COMMIT. `Off` without a
    /// cluster.
    pub fn commit_outcome(&self, db: &Database, user: &str) -> CommitOutcome {
        let Some(cluster) = db.cluster.as_ref().and_then(|name| self.clusters.get(name)) else {
            return CommitOutcome::Off;
        };
        self.of_user(user, |u| u.commit_outcome).or(db.commit_outcome).unwrap_or(cluster.commit_outcome)
    }

    /// Returns the event after which a server of this pool is released.
    pub fn pool_mode(&self, db: &Database, user: &str) -> PoolMode {
        self.of_user(user, |u| u.pool_mode).or(db.pool_mode).unwrap_or(self.main.pool_mode)
    }

    /// Returns how the sessions of this pool's clients are handled.
    pub fn session_state(&self, db: &Database, user: &str) -> SessionState {
        self.of_user(user, |u| u.session_state).or(db.session_state).unwrap_or(self.main.session_state)
    }

    /// Returns the average number of releases per audit of the server's session; 0 means no audits.
    pub fn session_audit_sample(&self, db: &Database, user: &str) -> u32 {
        self.of_user(user, |u| u.session_audit_sample)
            .or(db.session_audit_sample)
            .unwrap_or(self.main.session_audit_sample)
    }

    /// Returns the maximum number of servers of this pool; 0 means that there is no limit.
    pub fn pool_size(&self, db: &Database, user: &str) -> u32 {
        self.of_user(user, |u| u.pool_size).or(db.pool_size).unwrap_or(self.main.default_pool_size)
    }

    /// Returns the number of servers that a pool of this database keeps open.
    pub fn min_pool_size(&self, db: &Database) -> u32 {
        db.min_pool_size.unwrap_or(self.main.min_pool_size)
    }

    /// Returns whether this pool exists without any client, to keep `min_pool_size` servers of the user that
    /// its database forces.
    pub fn keeps_pool(&self, db: &Database, user: &str) -> bool {
        db.user.as_deref() == Some(user) && self.min_pool_size(db) > 0
    }

    /// Returns the number of additional servers that this pool may open when clients wait for long.
    pub fn reserve_pool_size(&self, db: &Database, user: &str) -> u32 {
        self.of_user(user, |u| u.reserve_pool_size)
            .or(db.reserve_pool_size)
            .unwrap_or(self.main.reserve_pool_size)
    }

    /// Returns the maximum number of servers of this database; 0 means that there is no limit.
    pub fn max_db_connections(&self, db: &Database) -> u32 {
        db.max_db_connections.unwrap_or(self.main.max_db_connections)
    }

    /// Returns the maximum number of clients of this database; 0 means that there is no limit.
    pub fn max_db_client_connections(&self, db: &Database) -> u32 {
        db.max_db_client_connections.unwrap_or(self.main.max_db_client_connections)
    }

    /// Returns the maximum number of servers of this user; 0 means that there is no limit.
    pub fn max_user_connections(&self, user: &str) -> u32 {
        self.of_user(user, |u| u.max_user_connections).unwrap_or(self.main.max_user_connections)
    }

    /// Returns the maximum number of clients of this user; 0 means that there is no limit.
    pub fn max_user_client_connections(&self, user: &str) -> u32 {
        self.of_user(user, |u| u.max_user_client_connections).unwrap_or(self.main.max_user_client_connections)
    }

    /// Returns the maximum number of clients of one of this database's pools that wait for a server; 0 means
    /// that there is no limit.
    pub fn max_waiting_clients(&self, db: &Database) -> u32 {
        db.max_waiting_clients.unwrap_or(self.main.max_waiting_clients)
    }

    /// Returns the time that a statement may run; `None` means without limit.
    pub fn query_timeout(&self, user: &str) -> Option<Duration> {
        limit(self.of_user(user, |u| u.query_timeout).unwrap_or(self.main.query_timeout))
    }

    /// Returns the time that a client waits for a server; `None` means without limit.
    pub fn query_wait_timeout(&self, db: &Database, user: &str) -> Option<Duration> {
        limit(
            self.of_user(user, |u| u.query_wait_timeout)
                .or(db.query_wait_timeout)
                .unwrap_or(self.main.query_wait_timeout),
        )
    }

    /// Returns the time that a client may be idle inside a transaction; `None` means without limit.
    pub fn idle_transaction_timeout(&self, user: &str) -> Option<Duration> {
        limit(
            self.of_user(user, |u| u.idle_transaction_timeout).unwrap_or(self.main.idle_transaction_timeout),
        )
    }

    /// Returns the time that a transaction may last; `None` means without limit.
    pub fn transaction_timeout(&self, user: &str) -> Option<Duration> {
        limit(self.of_user(user, |u| u.transaction_timeout).unwrap_or(self.main.transaction_timeout))
    }

    /// Returns the time that a client may be idle outside a transaction; `None` means without limit.
    pub fn client_idle_timeout(&self, user: &str) -> Option<Duration> {
        limit(self.of_user(user, |u| u.client_idle_timeout).unwrap_or(self.main.client_idle_timeout))
    }

    /// Returns the duration from which a statement of this pool is logged; `None` means never.
    pub fn log_min_duration(&self, db: &Database, user: &str) -> Option<Duration> {
        limit(
            self.of_user(user, |u| u.log_min_duration_ms)
                .or(db.log_min_duration_ms)
                .unwrap_or(self.main.log_min_duration_ms),
        )
    }

    /// Returns the age after which an unused server is closed; zero means that each is used once.
    pub fn server_lifetime(&self, db: &Database) -> Duration {
        db.server_lifetime.unwrap_or(self.main.server_lifetime)
    }

    /// Returns the node that transactions of this user's clients run on, in a database with a cluster.
    pub fn route(&self, db: &Database, user: &str) -> Route {
        self.route_and_section(db, user).0
    }

    /// Returns the route, and the section of the file that sets it.
    pub fn route_and_section(&self, db: &Database, user: &str) -> (Route, &'static str) {
        let of_user = self.of_user(user, |u| u.route).map(|route| (route, "users"));
        let of_database = db.route.map(|route| (route, "databases"));
        let of_cluster = || Some((self.clusters.get(db.cluster.as_ref()?)?.route, "clusters"));
        of_user.or(of_database).or_else(of_cluster).unwrap_or((Route::Primary, "clusters"))
    }

    /// Returns the route of the users without one of their own; `None` if the database has no cluster.
    pub(crate) fn route_of_database(&self, db: &Database) -> Option<Route> {
        let cluster = self.clusters.get(db.cluster.as_ref()?)?;
        Some(db.route.unwrap_or(cluster.route))
    }

    /// Returns whether this user's clients keep their standby, in a database with a cluster.
    pub fn balance(&self, db: &Database, user: &str) -> Balance {
        let of_cluster = || Some(self.clusters.get(db.cluster.as_ref()?)?.balance);
        self.of_user(user, |u| u.balance).or(db.balance).or_else(of_cluster).unwrap_or(Balance::Session)
    }

    /// Returns the lists of names for this user's clients, in a database with a cluster: `read_functions`,
    /// `write_functions` and `primary_names`.
    pub fn name_lists<'a>(&'a self, db: &'a Database, user: &str) -> [&'a [String]; 3] {
        let of_user = self.users.get(user);
        let of_cluster = db.cluster.as_ref().and_then(|name| self.clusters.get(name));
        [
            first_said([
                of_user.map(|user| &user.read_functions),
                Some(&db.read_functions),
                of_cluster.map(|cluster| &cluster.read_functions),
            ]),
            first_said([
                of_user.map(|user| &user.write_functions),
                Some(&db.write_functions),
                of_cluster.map(|cluster| &cluster.write_functions),
            ]),
            first_said([
                of_user.map(|user| &user.primary_names),
                Some(&db.primary_names),
                of_cluster.map(|cluster| &cluster.primary_names),
            ]),
        ]
    }

    /// Returns where transactions begin whose BEGIN does not say READ ONLY, for this user's clients.
    pub fn begin_undeclared(&self, db: &Database, user: &str) -> BeginUndeclared {
        let of_cluster = || Some(self.clusters.get(db.cluster.as_ref()?)?.begin_undeclared);
        self.of_user(user, |u| u.begin_undeclared)
            .or(db.begin_undeclared)
            .or_else(of_cluster)
            .unwrap_or(BeginUndeclared::Primary)
    }

    /// Returns which commits a read of this user's clients must see at a standby.
    pub fn causal_reads(&self, db: &Database, user: &str) -> CausalReads {
        let of_cluster = || Some(self.clusters.get(db.cluster.as_ref()?)?.causal_reads);
        self.of_user(user, |u| u.causal_reads)
            .or(db.causal_reads)
            .or_else(of_cluster)
            .unwrap_or(CausalReads::Off)
    }

    /// Returns the time that such a read waits for a standby that has replayed these commits, in
    /// milliseconds.
    pub fn causal_wait_ms(&self, db: &Database, user: &str) -> u32 {
        let of_cluster = || Some(self.clusters.get(db.cluster.as_ref()?)?.causal_wait_ms);
        self.of_user(user, |u| u.causal_wait_ms).or(db.causal_wait_ms).or_else(of_cluster).unwrap_or(0)
    }

    /// Returns the user that asks a cluster's nodes for their role.
    pub fn check_user<'a>(&'a self, cluster: &'a ClusterOptions) -> Option<&'a str> {
        cluster.check_user.as_deref().or(self.main.auth_user.as_deref())
    }

    /// Returns the nodes of this database's cluster, in the order of its list; none if it has no cluster.
    pub fn nodes_of<'a>(&'a self, db: &Database) -> impl Iterator<Item = (&'a str, &'a NodeOptions)> {
        let cluster = db.cluster.as_ref().and_then(|name| self.clusters.get(name));
        self.nodes_of_cluster(cluster)
    }

    /// Returns the nodes of a cluster, in the order of its list.
    pub fn nodes_of_cluster<'a>(
        &'a self,
        cluster: Option<&'a ClusterOptions>,
    ) -> impl Iterator<Item = (&'a str, &'a NodeOptions)> {
        let names = cluster.into_iter().flat_map(|cluster| &cluster.nodes);
        names.filter_map(|name| Some((name.as_str(), self.nodes.get(name)?)))
    }

    /// Returns how the hosts of this database take turns.
    pub fn load_balance_hosts(&self, db: &Database) -> LoadBalanceHosts {
        db.load_balance_hosts.unwrap_or(LoadBalanceHosts::RoundRobin)
    }
}

/// Returns the first of these lists that has an entry.
fn first_said(lists: [Option<&Vec<String>>; 3]) -> &[String] {
    lists.into_iter().flatten().find(|list| !list.is_empty()).map_or(&[], Vec::as_slice)
}
