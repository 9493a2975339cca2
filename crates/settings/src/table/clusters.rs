//! The keys of `[clusters]`: `name = nodes=... key=value ...`.

use std::time::Duration;

use super::{COUNT_MAX, Kind, settings};
use crate::{Password, Route};

settings! {
    /// One primary and its standbys, and how pgweir watches them.
    struct ClusterOptions, CLUSTER_ROWS;
    group "Clusters" {
        /// The names of the cluster's nodes, which are entries of `[nodes]`. It is required.
        nodes: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// The user that pgweir logs in as to ask a node for its role. It needs nothing but LOGIN. `auth_user` when it is not
        /// set; one of the two is required.
        check_user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The password of `check_user`; looked up in `auth_file` when it is not set.
        check_password: Option<Password> = NULL, Kind::Secret, Reload, Ours, InEffect;
        /// The database that `check_user` logs in to.
        check_dbname: String = "postgres", Kind::Text, Reload, Ours, InEffect;
        /// How often each node is asked for its role, in milliseconds. While no primary is known, or the primary does not
        /// answer, pgweir asks ten times as often.
        check_interval_ms: u32 = "1000", Kind::Count(50, 60000), Reload, Ours, InEffect;
        /// How long a node may take to accept a connection or to answer a question, in milliseconds. It must not be above
        /// `primary_max_age_ms`.
        check_timeout_ms: u32 = "1000", Kind::Count(10, 60000), Reload, Ours, InEffect;
        /// A node is down when its checks have failed for so many milliseconds, and at least three times. pgweir then closes
        /// its server connections.
        down_after_ms: u32 = "5000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// How long a node that starts up (SQLSTATE 57P03) is not down, in milliseconds.
        recovery_wait_ms: u32 = "60000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// How old the primary's last answer may be, in milliseconds. With an older one nothing new is sent to it. It must be
        /// above `check_interval_ms`.
        primary_max_age_ms: u32 = "10000", Kind::Count(100, COUNT_MAX), Reload, Ours, InEffect;
        /// How long clients wait while no node is known that may serve them. Then they get an error with SQLSTATE 57P03. With 0
        /// they get it at once.
        primary_wait: Duration = "60", Kind::Seconds, Reload, Ours, InEffect;
        /// Which node clients' transactions run on: `primary`; `standby`, also if they fail there as they change something;
        /// `prefer-standby`, which is the primary while no standby is usable; or `any`. A user's `route` goes before a
        /// database's, and that before this one.
        route: Route = "primary", Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
    }
}
