//! The five published experiments: what server, which pooler settings, which commands, what was published.

use crate::servers::cluster::Entry;

/// One experiment.
#[derive(Debug)]
pub(super) struct Experiment {
    /// Its name on the command line.
    pub(super) key: &'static str,
    /// What it shows.
    pub(super) title: &'static str,
    /// PostgreSQL's `max_connections` and `shared_buffers` (MB).
    pub(super) max_connections: u32,
    pub(super) shared_buffers_mb: u32,
    /// pgbench's scale, and the smaller one of `--quick`.
    pub(super) scale: u32,
    pub(super) quick_scale: u32,
    /// How clients authenticate, to the pooler and to PostgreSQL.
    pub(super) entry: Entry,
    /// `pool_mode`, `default_pool_size`, `max_client_conn`, and further settings of the pooler.
    pub(super) mode: &'static str,
    pub(super) pool_size: u32,
    pub(super) max_client_conn: u32,
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// What is run.
    pub(super) steps: &'static [Step],
    /// What the article found.
    pub(super) published: &'static str,
}

/// One command, directly and through poolers.
#[derive(Debug)]
pub(super) struct Step {
    /// Its name in tables.
    pub(super) name: &'static str,
    /// pgbench's arguments for a direct connection; `{T}` is the duration in seconds.
    pub(super) direct: &'static str,
    /// The same through a pooler.
    pub(super) pooled: &'static str,
    /// Seconds the article took; `None` if the command gives the number of transactions.
    pub(super) seconds: Option<u32>,
    /// Arguments that `--quick` uses in place of these (same for both), with `{T}`.
    pub(super) quick: Option<&'static str>,
    /// Text of the file that `{F}` stands for.
    pub(super) script: Option<&'static str>,
    /// The server is expected to refuse so many direct clients; it is tried, and what it said is in the report.
    pub(super) refused_directly: bool,
}

impl Step {
    /// The clients of a direct run of it.
    pub(super) fn direct_clients(&self) -> u32 {
        clients(self.direct)
    }

    /// The clients of a run through a pooler.
    pub(super) fn pooled_clients(&self) -> u32 {
        clients(self.pooled)
    }
}

/// What `-c` says.
fn clients(arguments: &str) -> u32 {
    let words: Vec<&str> = arguments.split(' ').collect();
    let attached = words.iter().find_map(|word| word.strip_prefix("-c")?.parse().ok());
    let separate = words.windows(2).find(|pair| pair[0] == "-c").and_then(|pair| pair[1].parse().ok());
    attached.or(separate).unwrap_or(1)
}

const STEP: Step = Step {
    name: "",
    direct: "",
    pooled: "",
    seconds: None,
    quick: None,
    script: None,
    refused_directly: false,
};

/// All of them, in the order of `all`.
pub(super) const ALL: [Experiment; 5] = [
    Experiment {
        key: "saturation",
        title: "Many clients on few connections, and what PostgreSQL's views show meanwhile",
        max_connections: 100,
        shared_buffers_mb: 128,
        scale: 50,
        quick_scale: 10,
        entry: Entry::Trust,
        mode: "transaction",
        pool_size: 25,
        max_client_conn: 300,
        settings: &[],
        steps: &[
            Step {
                name: "200 clients",
                direct: "-c 200 -j 8 -T {T} --protocol=simple",
                pooled: "-c 200 -j 8 -T {T} --protocol=simple",
                seconds: Some(300),
                refused_directly: true,
                ..STEP
            },
            Step {
                name: "80 direct, 200 pooled",
                direct: "-c 80 -j 8 -T {T} --protocol=simple",
                pooled: "-c 200 -j 8 -T {T} --protocol=simple",
                seconds: Some(300),
                ..STEP
            },
        ],
        published: "direct with 80 clients: 83 % of the connections used, TPS peak 6,040, sustained 5,200-5,400 and falling; \
                    PgBouncer with 200: 28 % used, TPS peak 3,860, sustained 3,200-3,500 and stable; \
                    200 direct clients: \"too many clients already\"",
    },
    Experiment {
        key: "reconnect",
        title: "A new connection for every transaction",
        max_connections: 100,
        shared_buffers_mb: 128,
        scale: 10,
        quick_scale: 10,
        entry: Entry::Md5,
        mode: "session",
        pool_size: 20,
        max_client_conn: 300,
        settings: &[],
        steps: &[
            Step {
                name: "10 clients",
                direct: "--connect -r -c 10 -t 200",
                pooled: "--connect -r -c 10 -t 200",
                quick: Some("--connect -r -c 10 -T {T}"),
                ..STEP
            },
            Step {
                name: "50 clients",
                direct: "--connect -r -c 50 -t 1000",
                pooled: "--connect -r -c 50 -t 1000",
                quick: Some("--connect -r -c 50 -T {T}"),
                ..STEP
            },
            Step {
                name: "80 clients",
                direct: "--connect -r -c 80 -T {T}",
                pooled: "--connect -r -c 80 -T {T}",
                seconds: Some(60),
                ..STEP
            },
        ],
        published: "TPS 243 -> 1695 (7.0x) with 10 clients, 227 -> 779 (3.4x) with 50, 228 -> 1063 (4.7x) with 80; \
                    time to connect 3.9 -> 0.39 ms, 4.2 -> 1.1 ms, 4.2 -> 0.74 ms",
    },
    Experiment {
        key: "storm",
        title: "Two hundred clients that reconnect for every transaction, on a hundred connections",
        max_connections: 100,
        shared_buffers_mb: 512,
        scale: 5,
        quick_scale: 5,
        entry: Entry::Trust,
        mode: "transaction",
        pool_size: 50,
        max_client_conn: 10_000,
        settings: &[("min_pool_size", "10"), ("reserve_pool_size", "5")],
        steps: &[Step {
            name: "200 clients",
            direct: "-M simple -C -c 200 -j 8 -T {T}",
            pooled: "-M simple -C -c 200 -j 8 -T {T}",
            seconds: Some(30),
            ..STEP
        }],
        published: "direct: connection errors, 545 TPS; PgBouncer: no errors, 917 TPS, 56-57 backends",
    },
    Experiment {
        key: "overhead",
        title: "What a pooler costs and saves when every SELECT has its own connection",
        max_connections: 100,
        shared_buffers_mb: 128,
        scale: 1,
        quick_scale: 1,
        entry: Entry::Trust,
        mode: "session",
        pool_size: 20,
        max_client_conn: 300,
        settings: &[],
        steps: &[Step {
            name: "8 clients",
            direct: "--select-only --connect -T{T} -c8 -j2",
            pooled: "--select-only --connect -T{T} -c8 -j2",
            seconds: Some(300),
            ..STEP
        }],
        published: "direct 356 TPS, pgpool-II 3,939, PgBouncer 6,626",
    },
    Experiment {
        key: "thousand",
        title: "A thousand clients",
        max_connections: 100,
        shared_buffers_mb: 128,
        scale: 50,
        quick_scale: 10,
        entry: Entry::Scram,
        mode: "transaction",
        pool_size: 20,
        max_client_conn: 5000,
        settings: &[],
        steps: &[
            Step {
                name: "1000 clients",
                direct: "-c 1000 -T {T}",
                pooled: "-c 1000 -T {T}",
                seconds: Some(60),
                // A thousand SCRAM logins of one pgbench thread take seconds, which count.
                quick: Some("-c 1000 -T 20"),
                refused_directly: true,
                ..STEP
            },
            Step {
                name: "20 that reconnect",
                direct: "-n -c 20 -t 100 -C -f {F}",
                pooled: "-n -c 20 -t 100 -C -f {F}",
                quick: Some("-n -c 20 -T {T} -C -f {F}"),
                script: Some("select 1;\n"),
                ..STEP
            },
        ],
        published: "direct: refused; PgBouncer: 904 TPS, 0 failed; with reconnecting 58.7 -> 112.2 TPS, latency 340 -> 178 ms",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn direct_clients_are_read_off_the_command() {
        let clients: Vec<u32> =
            ALL.iter().flat_map(|experiment| experiment.steps).map(Step::direct_clients).collect();
        assert_eq!(clients, [200, 80, 10, 50, 80, 200, 8, 1000, 20]);
        assert_eq!(ALL[0].steps[1].pooled_clients(), 200);
    }

    #[test]
    fn a_duration_is_named_where_there_is_one() {
        for step in ALL.iter().flat_map(|experiment| experiment.steps) {
            assert_eq!(step.seconds.is_some(), step.pooled.contains("{T}"), "{}", step.pooled);
            assert_eq!(step.script.is_some(), step.pooled.contains("{F}"), "{}", step.pooled);
        }
    }
}
