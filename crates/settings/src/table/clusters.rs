//! The keys of `[clusters]`: `name = nodes=... key=value ...`.

use std::time::Duration;

use super::{COUNT_MAX, Kind, settings};
use crate::{Balance, BeginUndeclared, CausalReads, CommitOutcome, Discovery, Password, Route, SourceLost};

settings! {
    /// One primary and its standbys, and how pgweir watches them.
    struct ClusterOptions, CLUSTER_ROWS;
    group "Clusters" {
        /// How pgweir learns of the nodes: `sql` from `nodes`; `dns` from the addresses of `host`; `patroni` from Patroni's REST
        /// API; `etcd` from Patroni's keys in etcd. With the last two, a node is the primary only if the source agrees. Each
        /// way has its keys, and no others may be set.
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
        /// What Patroni's keys of this cluster begin with: `/service/main/` for the scope `main`. `discovery=etcd` needs it.
        etcd_prefix: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// What counts while Patroni or etcd has not answered for `primary_max_age_ms`: `trust` a node's own word, if no
        /// other node claims to be the primary; `hold` nothing, so clients wait.
        source_lost: SourceLost = "trust", Kind::Choice(SourceLost::WORDS), Reload, Ours, InEffect;
        /// The user that pgweir logs in as to ask a node for its role. It needs LOGIN; as a member of `pg_read_all_stats` it is
        /// told a standby's timeline at once. `auth_user` when it is not set; one of the two is required.
        check_user: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// The password of `check_user`; looked up in `auth_file` when it is not set.
        check_password: Option<Password> = NULL, Kind::Secret, Reload, Ours, InEffect;
        /// The database that `check_user` logs in to.
        check_dbname: String = "postgres", Kind::Text, Reload, Ours, InEffect;
        /// How often each node is asked for its role, in milliseconds. While no primary is known, or the primary does not
        /// answer, pgweir asks ten times as often; standbys every 10 ms as long as clients may wait for a primary.
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
        /// A standby that is more than so many milliseconds behind the primary gets no reads until it is at half of that. 0 means
        /// that there is no limit.
        lag_limit_ms: u32 = "10000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The same in bytes of the write-ahead log. 0 means that there is no limit.
        lag_limit_bytes: u32 = "0", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
        /// A statement that gives a standby's lag in seconds, as one row of one column, for example from a heartbeat table. It runs on the
        /// standby as `check_user` after each check, for at most `check_timeout_ms`, and counts in place of the lag in time that pgweir
        /// measures. NULL, a negative number and an error count as a lag above `lag_limit_ms`.
        lag_query: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// A program that prints a standby's lag in milliseconds, in place of `lag_query`. After each check pgweir runs it for each
        /// standby, without a shell, with these words and the standby's `host:port` as arguments, and with `PGWEIR_CLUSTER`,
        /// `PGWEIR_NODE`, `PGWEIR_HOST` and `PGWEIR_PORT` in its environment. What is no number, a negative number and an exit status
        /// other than 0 count as a lag above `lag_limit_ms`.
        lag_command: Option<String> = NULL, Kind::Text, Reload, Ours, InEffect;
        /// How long `lag_command` may run. Then pgweir kills it.
        lag_command_timeout: Duration = "10", Kind::WholeSeconds(1), Reload, Ours, InEffect;
        /// A standby that comes back, or that is attached, gets 10 % of its share of the reads at first, and all of it after so many
        /// milliseconds.
        warm_up_ms: u32 = "30000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// How long the transactions on a node that is drained or detached may last. Then pgweir closes their servers. 0 means without limit.
        drain_timeout: Duration = "60", Kind::Seconds, Reload, Ours, InEffect;
        /// Which node clients' transactions run on: `primary`; `standby`, also if they fail there as they change something;
        /// `prefer-standby`, which is the primary while no standby is usable; `any`; or `auto`: statements that certainly only
        /// read run on a standby, and everything else on the primary. A user's `route` goes before a database's, and that
        /// before this one.
        route: Route = "primary", Kind::Choice(Route::WORDS), Reload, Ours, InEffect;
        /// Whether a client keeps its standby: with `session` it stays at the one that served it last, until that is not usable or its load
        /// is 50 % higher than that of the best one; with `statement` each transaction, and each statement outside of one, goes to the best one. A
        /// user's `balance` goes before a database's, and that before this one. In session pooling a client keeps its server.
        balance: Balance = "session", Kind::Choice(Balance::WORDS), Reload, Ours, InEffect;
        /// 1: a standby whose lag is more than a quarter of `lag_limit_ms` or `lag_limit_bytes` above that of the standby with the
        /// least lag gets reads only if there is no better one. One of the two limits is needed.
        prefer_lower_lag: bool = "0", Kind::Bool, Reload, Ours, InEffect;
        /// Functions that are declared volatile and only read: with `route=auto`, statements that call them may run on a standby.
        /// Letters may be in any case, and a `*` at the end of a name stands for any rest. A user's list goes before a
        /// database's, and that before this one.
        read_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Functions and other names that change something although the catalog does not say so, such as a function that is
        /// declared stable and takes locks: with `route=auto`, statements with such a name run on the primary. Names are
        /// written as in `read_functions`.
        write_functions: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// Tables, views and other names that are to be read from the primary: with `route=auto`, statements with such a name
        /// run there. Names are written as in `read_functions`.
        primary_names: Vec<String> = NULL, Kind::Names, Reload, Ours, InEffect;
        /// What a client is told whose primary is lost behind its COMMIT. `on`: pgweir asks the server for the number of each transaction
        /// that may write, in the same packet as its first such statement, and after a loss asks the next primary what became of it.
        /// `exact`: COMMIT is also held back until the number is known. With both, a change outside of a transaction runs in a block of
        /// pgweir's, so that it has a COMMIT, which is one round trip more. `off`: that the outcome is not known. A user's value goes before a
        /// database's, and that before this one. Not in session pooling.
        commit_outcome: CommitOutcome = "off", Kind::Choice(CommitOutcome::WORDS), Reload, Ours, InEffect;
        /// With `route=auto`: where a transaction begins that does not say READ ONLY. With `first` its first statements run on a standby,
        /// if they certainly read. From the first statement that does not, the rest runs in a transaction on the primary, in which `now()`
        /// is another. Only with READ COMMITTED. `primary`: all of it runs on the primary. A user's value goes before a database's, and
        /// that before this one.
        begin_undeclared: BeginUndeclared = "first", Kind::Choice(BeginUndeclared::WORDS), Reload, Ours, InEffect;
        /// What a client sees that reads from a standby: with `session` all that it has committed itself, and nothing older than
        /// what it has seen before; with `database` all that any client had committed when its statement came; with `off`
        /// whatever the standby has replayed. A user's `causal_reads` goes before a database's, and that before this one.
        causal_reads: CausalReads = "session", Kind::Choice(CausalReads::WORDS), Reload, Ours, InEffect;
        /// How long a statement waits for a standby that has replayed what its client must see, in milliseconds. Then the primary runs
        /// it; with `route=standby` it goes on waiting.
        causal_wait_ms: u32 = "10", Kind::Count(0, 60_000), Reload, Ours, InEffect;
        /// How long transactions that are open may go on in a SWITCHOVER, in milliseconds. It then gives up, or with FORCE
        /// ends them. A switchover that Patroni announces in etcd holds new transactions for at most as long.
        switchover_drain_ms: u32 = "10000", Kind::Count(0, COUNT_MAX), Reload, Ours, InEffect;
        /// The number of bytes of log that the target of a SWITCHOVER may be behind.
        switchover_max_lag_bytes: u32 = "16777216", Kind::Bytes(0, COUNT_MAX), Reload, Ours, InEffect;
    }
}
