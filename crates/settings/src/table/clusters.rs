//! The keys of `[clusters]`: `name = nodes=... key=value ...`.

use std::time::Duration;

use super::{COUNT_MAX, Kind, settings};
use crate::{Balance, BeginUndeclared, CausalReads, CommitOutcome, Discovery, Password, Route, SourceLost};

settings! {
    /// A primary and its standbys, and the way in which pgweir watches them.
    struct ClusterOptions, CLUSTER_ROWS;
    group "Clusters" {
        /// The way in which pgweir learns of the nodes: `sql` from `nodes`; `dns` from the addresses of
        /// `host`; `patroni` from Patroni's REST API; `etcd` from Patroni's keys in etcd. With the last two,
        /// a node is the primary only if the source agrees. Each way has its keys, and no others may be set.
        discovery: Discovery = "sql", Kind::Choice(Discovery::WORDS), Reload, Ours, InEffect;
        /// The names of the cluster's nodes, which are entries of `[nodes]`. `discovery=sql` needs it.
        nodes: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// A host name with the address of each node, such as a headless service of Kubernetes. It is looked up every 5 seconds.
        /// `discovery=dns` needs it. The nodes are named by their addresses.
        host: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The port of the nodes that `host` names.
        port: u16 = "5432", Kind::Count(1, 65535), Reload, Ours, InEffect;
        /// The addresses of Patroni's agents, as `http://host:port` or `https://host:port`. `discovery=patroni` needs it. Some
        /// of the agents are enough: the others are in the list that an agent gives.
        patroni_api: Vec<String> = NULL, Kind::List, Reload, Ours, InEffect;
        /// The user of Patroni's REST API (`restapi.authentication`), for `SWITCHOVER`.
        patroni_user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The password of `patroni_user`.
        patroni_password: Option<Password> = NULL, Kind::Secret, Reload, Ours, InEffect;
        /// The prefix of Patroni's keys of this cluster: `/service/main/` for the scope `main`.
        /// `discovery=etcd` needs it.
        etcd_prefix: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The rule for the primary while Patroni or etcd has not answered for `primary_max_age_ms`: with
        /// `trust` a node is the primary by its own word, if no other node claims to be the primary; with
        /// `hold` no node is, so clients wait.
        source_lost: SourceLost = "trust", Kind::Choice(SourceLost::WORDS), Reload, Ours, InEffect;
        /// The user that pgweir logs in as to ask a node for its role. The user needs LOGIN; a member of
        /// `pg_read_all_stats` sees a standby's timeline at once. If it is not set, `auth_user` is used; one
        /// of the two is required.
        check_user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The password of `check_user`; looked up in `auth_file` when it is not set.
        check_password: Option<Password> = NULL, Kind::Secret, Reload, Ours, InEffect;
        /// The database that `check_user` logs in to.
        check_dbname: String = "postgres", Kind::Text, Reload, Ours, InEffect;
        /// The interval at which each node is asked for its role, in milliseconds. While no primary is known,
        /// or the primary does not answer, pgweir asks ten times as often; standbys every 10 ms as long as
        /// clients may wait for a primary.
        check_interval_ms: u32 = "1000", Kind::Count(50, 60000), Reload, Ours, InEffect;
        /// The time that a node may take to accept a connection or to answer a question, in milliseconds. It
        /// must not be above `primary_max_age_ms`.
        check_timeout_ms: u32 = "1000", Kind::Count(10, 60000), Reload, Ours, InEffect;
        /// The time for which a node's checks must have failed, at least three of them, before the node is
        /// down, in milliseconds. pgweir then closes its server connections.
        down_after_ms: u32 = "5000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The time for which a node that starts up (SQLSTATE 57P03) is not down, in milliseconds.
        recovery_wait_ms: u32 = "60000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum age of the primary's last answer, in milliseconds. If the answer is older, nothing new
        /// is sent to the primary. It must be above `check_interval_ms`.
        primary_max_age_ms: u32 = "10000", Kind::Count(100, COUNT_MAX), Reload, Ours, InEffect;
        /// The time that clients wait while no node is known that may serve them. Then they get an error with
        /// SQLSTATE 57P03. With 0 they get it at once.
        primary_wait: Duration = "60", Kind::Seconds, Reload, Ours, InEffect;
        /// The maximum lag of a standby behind the primary, in milliseconds. A standby above it gets no reads
        /// until its lag is half of that. 0 means that there is no limit.
        lag_limit_ms: u32 = "10000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The maximum lag of a standby in bytes of the write-ahead log, like `lag_limit_ms`. 0 means that
        /// there is no limit.
        lag_limit_bytes: u32 = "0", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
        /// A statement that returns a standby's lag in seconds, as one row of one column, for example from a
        /// heartbeat table. It runs on the standby as `check_user` after each check, for at most
        /// `check_timeout_ms`, and its result replaces the lag in time that pgweir measures. NULL, a negative
        /// number and an error count as a lag above `lag_limit_ms`.
        lag_query: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// A program that prints a standby's lag in milliseconds, instead of `lag_query`. After each check
        /// pgweir runs it for each standby, without a shell, with these words and the standby's `host:port`
        /// as arguments, and with `PGWEIR_CLUSTER`, `PGWEIR_NODE`, `PGWEIR_HOST` and `PGWEIR_PORT` in its
        /// environment. Output that is not a number, a negative number and an exit status other than 0 count
        /// as a lag above `lag_limit_ms`.
        lag_command: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The time that `lag_command` may run. Then pgweir kills it.
        lag_command_timeout: Duration = "10", Kind::WholeSeconds(1), Reload, Ours, InEffect;
        /// A program that makes a standby the primary in a `SWITCHOVER`, with `discovery=sql` and `dns`. It must
        /// stop the old primary and promote the standby. pgweir runs it when no transaction is open, without a
        /// shell, with these words and the `host:port` of the standby and of the old primary as arguments, and
        /// with `PGWEIR_CLUSTER`, `PGWEIR_NODE`, `PGWEIR_HOST`, `PGWEIR_PORT`, `PGWEIR_OLD_NODE`,
        /// `PGWEIR_OLD_HOST` and `PGWEIR_OLD_PORT` in its environment. An exit status other than 0 means that it
        /// has failed.
        promote_command: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The time that `promote_command` may run. Then pgweir kills it.
        promote_command_timeout: Duration = "60", Kind::WholeSeconds(1), Reload, Ours, InEffect;
        /// The time over which a standby that comes back, or that is attached, gets its full share of the
        /// reads, in milliseconds. It begins with 10 % of its share.
        warm_up_ms: u32 = "30000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The time that transactions on a node that is drained or detached may last. Then pgweir closes
        /// their servers. 0 means without limit.
        drain_timeout: Duration = "60", Kind::Seconds, Reload, Ours, InEffect;
        /// The node that clients' transactions run on: `primary`; `standby`, even if they fail there because
        /// they change something; `prefer-standby`, which is the primary while no standby is usable; `any`;
        /// or `auto`: statements that certainly only read run on a standby, and everything else on the
        /// primary. A user's `route` overrides a database's, and that overrides this one.
        route: Route = "primary", Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// The time for which a client keeps its standby. With `session` it stays at the one that served it
        /// last, until that is not usable or its load is 50 % higher than that of the best one; with `statement` each
        /// transaction, and each statement outside of one, goes to the best one. A user's `balance` overrides
        /// a database's, and that overrides this one. In session pooling a client keeps its server.
        balance: Balance = "session", Kind::Choice(Balance::WORDS), Reload, Ours, InEffect;
        /// Prefers standbys with less lag. With 1, a standby whose lag is more than a quarter of
        /// `lag_limit_ms` or `lag_limit_bytes` above that of the standby with the least lag gets reads only
        /// if there is no better one. One of the two limits is needed.
        prefer_lower_lag: bool = "0", Kind::Bool, Reload, Ours, InEffect;
        /// Functions that are declared volatile and only read: with `route=auto`, statements that call them
        /// may run on a standby. Letters may be in any case, and a `*` at the end of a name stands for any
        /// rest. A user's list overrides a database's, and that overrides this one.
        read_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Functions and other names that change something although the catalog does not say so, such as a function that is
        /// declared stable and takes locks: with `route=auto`, statements with such a name run on the primary. Names are
        /// written as in `read_functions`.
        write_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Tables, views and other names that are to be read from the primary: with `route=auto`, statements with such a name
        /// run there. Names are written as in `read_functions`.
        primary_names: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// The handling of a COMMIT whose primary is lost before its answer. `on`: pgweir asks the server for
        /// the number of each transaction that may write, in the same packet as its first such statement, and
        /// after a loss asks the next primary for the outcome. `exact`: COMMIT is also held back until the
        /// number is known. With both, a change outside of a transaction runs in a block of pgweir's, so that
        /// it has a COMMIT, which is one round trip more. `off`: the client is told that the outcome is not
        /// known. A user's value overrides a database's, and that overrides this one. It has no effect in
        /// session pooling.
        commit_outcome: CommitOutcome = "off", Kind::Choice(CommitOutcome::WORDS), Reload, Ours, InEffect;
        /// The node on which a transaction that does not say READ ONLY begins, with `route=auto`. With
        /// `first` its first statements run on a standby, if they certainly read. From the first statement
        /// that does not, the rest runs in a transaction on the primary, in which `now()` differs. This needs
        /// READ COMMITTED. With `primary` all of it runs on the primary. A user's value overrides a
        /// database's, and that overrides this one.
        begin_undeclared: BeginUndeclared = "first", Kind::Choice(BeginUndeclared::WORDS), Reload, Ours, InEffect;
        /// The commits that a client sees when it reads from a standby: with `session` all that it has
        /// committed itself, and nothing older than it has seen before; with `database` all that any client
        /// had committed when its statement came; with `off` those that the standby has replayed. A user's
        /// `causal_reads` overrides a database's, and that overrides this one.
        causal_reads: CausalReads = "session", Kind::Choice(CausalReads::WORDS), Reload, Ours, InEffect;
        /// The time that a statement waits for a standby that has replayed the commits its client must see,
        /// in milliseconds. Then the primary runs it; with `route=standby` it goes on waiting.
        causal_wait_ms: u32 = "10", Kind::Count(0, 60_000), Reload, Ours, InEffect;
        /// The time that open transactions may go on in a SWITCHOVER, in milliseconds. Then it gives up, or
        /// with FORCE ends them. A switchover that Patroni announces in etcd holds new transactions for at
        /// most as long.
        switchover_drain_ms: u32 = "10000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The number of bytes of log that the target of a SWITCHOVER may be behind.
        switchover_max_lag_bytes: u32 = "16777216", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
    }
}
