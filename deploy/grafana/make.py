#!/usr/bin/env python3
"""Writes the dashboards in dashboards/ from the lists of panels below, and `--check`s that they are what it would write.

Grafana's JSON is nine parts repetition; what a panel asks and why stands here. Every query is run against a real Prometheus by
tests/blackbox/test_prometheus.py.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
POOL = 'instance=~"$instance",database=~"$database",user=~"$user"'
HERE = 'instance=~"$instance"'


def graph(title, *queries, unit="short", hint="", stack=False, w=12, h=8, low=0):
    """A time series; `queries` are (legend, PromQL)."""
    custom = {
        "drawStyle": "line", "lineWidth": 1.5, "fillOpacity": 25 if stack else 8, "showPoints": "never", "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }  # fmt: skip
    return {
        "type": "timeseries", "title": title, "description": hint, "datasource": SOURCE, "w": w, "h": h,
        "targets": [target(letter, query) for letter, query in zip("ABCDEFGH", queries)],
        "fieldConfig": {"defaults": {"unit": unit, "min": low, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "calcs": []}, "tooltip": {"mode": "multi", "sort": "desc"}},
    }  # fmt: skip


def figure(title, query, unit="short", hint="", steps=(), w=4, h=4, decimals=None):
    """One number; `steps` are (from, colour)."""
    defaults = {"unit": unit, "thresholds": {"mode": "absolute", "steps": [{"color": "text", "value": None}] + [{"color": c, "value": v} for v, c in steps]}}
    if decimals is not None:
        defaults["decimals"] = decimals
    return {
        "type": "stat", "title": title, "description": hint, "datasource": SOURCE, "w": w, "h": h,
        "targets": [target("A", ("", query))],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "area", "textMode": "auto"},
    }  # fmt: skip


def heat(title, query, unit="s", hint="", w=12, h=8):
    """A histogram over time."""
    one = {"refId": "A", "expr": query, "legendFormat": "{{le}}", "format": "heatmap", "datasource": SOURCE}
    return {
        "type": "heatmap", "title": title, "description": hint, "datasource": SOURCE, "w": w, "h": h, "targets": [one],
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"calculate": False, "yAxis": {"unit": unit}, "color": {"mode": "scheme", "scheme": "Blues", "steps": 64}, "cellGap": 1, "tooltip": {"mode": "single"}},
    }  # fmt: skip


def lanes(title, *queries, hint="", w=24, h=9):
    """A line of time for each series that has a value."""
    return {
        "type": "state-timeline", "title": title, "description": hint, "datasource": SOURCE, "w": w, "h": h,
        "targets": [target(letter, query) for letter, query in zip("ABCDEFGH", queries)],
        "fieldConfig": {"defaults": {"custom": {"fillOpacity": 70, "lineWidth": 0}, "color": {"mode": "palette-classic-by-name"}}, "overrides": []},
        "options": {"showValue": "never", "mergeValues": True, "alignValue": "left", "rowHeight": 0.8, "legend": {"showLegend": False}, "tooltip": {"mode": "single"}},
    }  # fmt: skip


def row(title):
    """A heading."""
    return {"type": "row", "title": title, "collapsed": False, "panels": [], "w": 24, "h": 1}


def target(letter, query):
    legend, expression = query
    return {"refId": letter, "expr": expression, "legendFormat": legend, "datasource": SOURCE, "range": True}


def quantile(share, name, by=""):
    """A percentile of a histogram of the chosen pools."""
    labels = f"le{', ' + by if by else ''}"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket{{{POOL}}}[$__rate_interval])))"


def mean(name):
    """The mean of a histogram of the chosen pools."""
    return f"sum(rate({name}_sum{{{POOL}}}[$__rate_interval])) / sum(rate({name}_count{{{POOL}}}[$__rate_interval]))"


def pools(name, by=""):
    """A gauge of the chosen pools, summed."""
    return f"sum{f' by ({by})' if by else ''} (pgbouncer_pools_{name}{{{POOL}}})"


def ours(name):
    """A gauge of pgweir's own of the chosen pools, summed."""
    return f"sum(pgweir_pool_{name}{{{POOL}}})"


def session(name):
    """A counter of session continuity of the chosen pools, per second."""
    return f"sum(rate(pgweir_session_{name}_total{{{POOL}}}[$__rate_interval]))"


def per_second(name, by=""):
    """A counter of the chosen databases, per second."""
    return f'sum{f" by ({by})" if by else ""} (rate(pgbouncer_stats_totals_{name}{{{HERE},database=~"$database"}}[$__rate_interval]))'


CLIENTS = " + ".join(pools(f"client_{state}_connections") for state in ("active", "waiting"))
SERVERS = " + ".join(pools(f"server_{state}_connections") for state in ("active", "idle", "used", "testing", "login"))

PGWEIR = [
    row("Now"),
    figure("Clients", CLIENTS, hint="Connected, whatever they do."),
    figure("Server connections", SERVERS, hint="What PostgreSQL sees of those clients."),
    figure("Waiting", pools("client_waiting_connections"), hint="Clients that want a server connection while none is free.", steps=[(1, "orange")]),
    figure("Longest wait", f"max(pgbouncer_pools_client_maxwait_seconds{{{POOL}}})", unit="s", hint="Of the first in the queue.", steps=[(1, "orange"), (5, "red")]),
    figure("Transactions", per_second("sql_transactions_pooled_total"), unit="ops"),
    figure("p99 of statements", quantile(0.99, "pgweir_statement_duration_seconds"), unit="s"),
    row("Many clients, few connections"),
    graph("Clients and server connections", ("clients", CLIENTS), ("server connections", SERVERS), hint="PostgreSQL sees the lower line only.", w=24),
    graph(
        "Clients by state",
        ("working", ours("clients_linked")),
        ("waiting", ours("clients_waiting")),
        ("idle", f"{ours('clients')} - {ours('clients_linked')} - {ours('clients_waiting')}"),
        stack=True,
    ),
    graph("Server connections by state", *((state, pools(f"server_{state}_connections")) for state in ("active", "idle", "used", "testing", "login")), stack=True),
    row("Work"),
    graph("Transactions per second", ("{{database}}", per_second("sql_transactions_pooled_total", "database")), unit="ops"),
    graph("Statements per second", ("{{database}}", per_second("queries_pooled_total", "database")), unit="ops"),
    graph("How long statements take", *((f"p{share:g}".replace("0.", ""), quantile(share, "pgweir_statement_duration_seconds")) for share in (0.5, 0.95, 0.99)), unit="s"),
    graph(
        "Where the time goes",
        ("waiting for a connection", mean("pgweir_statement_wait_seconds")),
        ("PostgreSQL", mean("pgweir_statement_server_seconds")),
        ("client reading", mean("pgweir_statement_client_seconds")),
        unit="s",
        stack=True,
        hint="Parts of an average statement.",
    ),
    heat("Statements by their time", f"sum by (le) (increase(pgweir_statement_duration_seconds_bucket{{{POOL}}}[$__rate_interval]))"),
    graph("Wait for a connection, p99", ("{{database}} {{user}}", quantile(0.99, "pgweir_statement_wait_seconds", "database, user")), unit="s"),
    graph("Traffic", ("from clients", per_second("received_bytes_total")), ("to clients", per_second("sent_bytes_total")), unit="Bps"),
    graph("Errors by class", ("{{class}}", f"sum by (class) (rate(pgweir_errors_total{{{HERE}}}[$__rate_interval]))"), unit="ops", hint="What clients were sent; the first two characters of the SQLSTATE."),
    row("Sessions"),
    graph(
        "Clients that keep their server",
        ("now", ours("clients_pinned")),
        hint="Between their transactions, because they left something there that cannot move: temporary tables, advisory locks, LISTEN, ... SHOW CLIENTS_EXTENDED says what.",
    ),
    graph(
        "Session continuity",
        *((name, session(counter)) for name, counter in (("brought along", "replays"), ("asked", "audits"), ("known already", "remembered"), ("pinned", "pins"))),
        unit="ops",
        hint="Sessions that were brought to another server; servers that were asked what a client left there; changes that needed no question; clients that began to keep their server.",
    ),
    row("Statements"),
    graph("Statements that are followed", ("statements", f"sum(pgweir_statements_followed{{{HERE}}})"), hint="The list of SHOW STATEMENTS and of the page. Which take most time is shown there: their texts are no labels."),
    graph(
        "Memory of that list",
        ("bytes", f"sum(pgweir_statements_followed_bytes{{{HERE}}})"),
        unit="bytes",
        hint="Bounded by statement_stats_bytes.",
    ),
    graph(
        "Statements that made room for others",
        ("per second", f"sum(rate(pgweir_statements_forgotten_total{{{HERE}}}[$__rate_interval]))"),
        unit="ops",
        hint="Many: the list is too small for this application's statements, or their texts have names that change.",
    ),
    graph(
        "Statements that share a server",
        ("multiplexed", f"sum(rate(pgweir_multiplexed_total{{{POOL}}}[$__rate_interval]))"),
        ("run again", f"sum(rate(pgweir_multiplex_requeued_total{{{POOL}}}[$__rate_interval]))"),
        unit="ops",
        hint="Short statements that were sent behind another client's, in the same packet.",
    ),
    row("Connections"),
    graph("Login of clients, p99", ("p99", f"histogram_quantile(0.99, sum by (le) (rate(pgweir_client_login_seconds_bucket{{{HERE}}}[$__rate_interval])))"), unit="s"),
    graph("Opening server connections, p99", ("p99", f"histogram_quantile(0.99, sum by (le) (rate(pgweir_server_connect_seconds_bucket{{{HERE}}}[$__rate_interval])))"), unit="s"),
    graph("Prepared statements per second", ("by clients", per_second("client_parses_total")), ("at servers", per_second("server_parses_total")), unit="ops", hint="What lies between the two lines was spared."),
    graph("Statements per server assignment", ("statements", f"{per_second('queries_pooled_total')} / {per_second('server_assignments_total')}"), hint="Number of statements that a client runs before it gives its server back."),
    graph(
        "Logins, cancel requests, failed server connections",
        ("logins", f"sum(rate(pgweir_pool_logins_total{{{POOL}}}[$__rate_interval]))"),
        ("cancel requests", f"sum(rate(pgweir_cancel_requests_total{{{HERE}}}[$__rate_interval]))"),
        ("failed server connections", f"sum(rate(pgweir_server_connect_failures_total{{{HERE}}}[$__rate_interval]))"),
        unit="ops",
    ),
    row("Process"),
    graph("Workers", ("worker {{worker}}", f"rate(pgweir_worker_busy_seconds_total{{{HERE}}}[$__rate_interval])"), unit="percentunit", hint="Share of the time in which a worker has something to do. Near 1 it is what limits."),
    graph("CPU", ("cores", f'rate(pgbouncer_process_cpu_seconds_total{{{HERE}}}[$__rate_interval])'), hint="Cores in use."),
    graph("Memory", ("resident", f'pgbouncer_process_resident_memory_bytes{{{HERE}}}'), unit="bytes"),
    graph("Open files", ("open", f'pgbouncer_process_open_fds{{{HERE}}}'), ("limit", f'pgbouncer_process_max_fds{{{HERE}}}')),
]

CLUSTER = 'instance=~"$instance",cluster=~"$cluster"'


def nodes_in(*states):
    """The number of nodes in one of these states."""
    return f'sum(pgweir_node_state{{{CLUSTER},state=~"{"|".join(states)}"}})'


CLUSTERS = [
    row("Now"),
    figure("Clusters with a primary", f"sum(pgweir_cluster_available{{{CLUSTER}}})", hint="Clients of the others wait."),
    figure("Clusters without a primary", f"sum(1 - pgweir_cluster_available{{{CLUSTER}}})", hint="Their clients wait until a standby is promoted.", steps=[(1, "red")]),
    figure("Held clients", f"sum(pgweir_cluster_held_clients{{{CLUSTER}}})", hint="They wait for a primary.", steps=[(1, "orange")]),
    figure("Standbys", nodes_in("standby")),
    figure("Nodes that are down or refused", nodes_in("down", "refused"), steps=[(1, "red")]),
    figure("New epochs in a day", f"sum(changes(pgweir_cluster_epoch{{{CLUSTER}}}[1d]))", hint="Number of times that a cluster's primary changed or was restarted."),
    row("Nodes"),
    lanes(
        "State of each node",
        ("{{cluster}}.{{node}} {{state}}", f"pgweir_node_state{{{CLUSTER}}} == 1"),
        hint="A line for each state that a node was in, as long as it was in it.",
    ),
    graph("Lag of standbys", ("{{cluster}}.{{node}}", f"pgweir_node_lag_bytes{{{CLUSTER}}}"), unit="bytes", hint="Bytes of log by which a standby is behind its primary."),
    graph("Nodes by state", ("{{state}}", f"sum by (state) (pgweir_node_state{{{CLUSTER}}})"), stack=True),
    row("Reads"),
    graph(
        "Reads of each node",
        ("{{cluster}}.{{node}}", f"sum by (cluster, node) (rate(pgweir_node_reads_total{{{CLUSTER}}}[$__rate_interval]))"),
        unit="ops",
        hint="Groups of messages and transactions of clients whose route allows a standby.",
    ),
    graph(
        "Reads that fell back to the primary",
        ("{{cluster}} {{reason}}", f"sum by (cluster, reason) (rate(pgweir_reads_fell_back_total{{{CLUSTER}}}[$__rate_interval]))"),
        unit="ops",
        hint="A standby should have had them: there was none, or each was too far behind.",
    ),
    graph("Busy connections of each node", ("{{cluster}}.{{node}}", f"pgweir_node_active_connections{{{CLUSTER}}}")),
    graph("Clients that wait for a node", ("{{cluster}}.{{node}}", f"pgweir_node_waiting_clients{{{CLUSTER}}}"), hint="While its connections are busy."),
    row("Failovers"),
    graph("Epoch", ("{{cluster}}", f"pgweir_cluster_epoch{{{CLUSTER}}}"), hint="One more for each change of the primary, and for each restart of it."),
    graph("Held clients", ("{{cluster}}", f"pgweir_cluster_held_clients{{{CLUSTER}}}"), hint="Clients that wait until the cluster has a primary."),
    graph("Available", ("{{cluster}}", f"pgweir_cluster_available{{{CLUSTER}}}"), hint="1 while the cluster has a primary that clients are sent to.", w=24),
    graph(
        "Outcomes of COMMIT where the primary was lost",
        ("{{cluster}} {{outcome}}", f"sum by (cluster, outcome) (increase(pgweir_cluster_commit_outcomes_total{{{CLUSTER}}}[$__rate_interval]))"),
        hint="What clients were told (commit_outcome). unknown: neither committed nor rolled back could be proven.",
    ),
    graph("Clients that wait for the outcome of their COMMIT", ("{{cluster}}", f"pgweir_cluster_resolving_clients{{{CLUSTER}}}")),
]



def cached(name, by="", how="rate", over="$__rate_interval"):
    """A counter of the query cache of the chosen pools."""
    return f"sum{f' by ({by})' if by else ''} ({how}(pgweir_cache_{name}_total{{{POOL}}}[{over}]))"


CACHE_HITS, CACHE_MISSES = cached("hits"), cached("misses")
CACHE = [
    row("Now"),
    figure("Hits", CACHE_HITS, unit="ops", hint="Statements that were answered without PostgreSQL."),
    figure("Hit ratio", f"{CACHE_HITS} / ({CACHE_HITS} + {CACHE_MISSES})", unit="percentunit", hint="Of the statements that a rule of [cache] names."),
    figure("Time saved", cached("saved_seconds"), hint="PostgreSQL's time that hits saved, per second: 2 are two server connections that were not busy.", decimals=2),
    figure("Mean age of answers", f"{cached('age_seconds')} / {cached('aged')}", unit="s", hint="Answers for clients that waited do not count."),
    figure("Answers kept", f"sum(pgweir_cache_answers{{{POOL}}})"),
    figure("Memory", f"sum(pgweir_cache_bytes{{{POOL}}})", unit="bytes", hint="Bounded by query_cache_bytes."),
    row("Hits"),
    graph("Hits and misses", ("hits", CACHE_HITS), ("misses", CACHE_MISSES), unit="ops", stack=True),
    graph("Hit ratio", ("{{database}} {{user}}", f"{cached('hits', 'database, user')} / ({cached('hits', 'database, user')} + {cached('misses', 'database, user')})"), unit="percentunit"),
    graph("Age of answers", ("mean", f"{cached('age_seconds')} / {cached('aged')}"), unit="s", hint="Never above the ttl_ms of a rule."),
    graph("Time saved", ("{{database}} {{user}}", cached("saved_seconds", "database, user")), hint="Seconds of PostgreSQL per second."),
    graph("Hits of clients that waited", ("coalesced", cached("coalesced")), unit="ops", hint="One of the same reads ran, and its answer was for all that waited for a server."),
    graph("Memory", ("{{database}} {{user}}", f"sum by (database, user) (pgweir_cache_bytes{{{POOL}}})"), unit="bytes", stack=True),
    row("What drops answers"),
    graph(
        "Answers that were not given",
        *((title, cached(name)) for title, name in (("too old", "expired"), ("the client's own change", "own_changes"), ("definitions or rights changed", "redefined"))),
        unit="ops",
        hint="Misses for which an answer was kept. For the other misses none was.",
    ),
    graph(
        "Answers that were dropped or not kept",
        *((title, cached(name)) for title, name in (("no room", "evicted"), ("dropped together", "purged"), ("too long", "too_long"), ("error or notice", "unfit"))),
        unit="ops",
        hint="Many without room: query_cache_bytes is too small.",
    ),
]

# The panels that the articles on poolers show: what a pooler changes at PostgreSQL. They need postgres_exporter; versions before
# 0.13 name some counters without _total.
ACTIVITY = 'pg_stat_activity_count{instance=~"$postgres",datname=~"$database"}'
BENCHMARK = [
    row("PostgreSQL's side"),
    graph("Connections by state", ("{{state}}", f"sum by (state) ({ACTIVITY})"), stack=True, hint="Through a pooler few are open, and most of those work."),
    graph("max_connections in use", ("in use", 'sum(pg_stat_activity_count{instance=~"$postgres"}) / max(pg_settings_max_connections{instance=~"$postgres"})'), unit="percentunit"),
    graph(
        "Transactions per second",
        (
            "PostgreSQL",
            " + ".join(f'sum(rate(pg_stat_database_xact_{end}{{instance=~"$postgres",datname=~"$database"}}[$__rate_interval]))' for end in ("commit", "rollback")),
        ),
        ("through pgweir", 'sum(rate(pgbouncer_stats_totals_sql_transactions_pooled_total{instance=~"$instance",database=~"$database"}[$__rate_interval]))'),
        unit="ops",
        w=24,
    ),
    graph("Buffers allocated", ("per second", 'sum(rate({__name__=~"pg_stat_bgwriter_buffers_alloc(_total)?",instance=~"$postgres"}[$__rate_interval]))'), unit="ops"),
    graph("Buffers cleaned", ("per second", 'sum(rate({__name__=~"pg_stat_bgwriter_buffers_clean(_total)?",instance=~"$postgres"}[$__rate_interval]))'), unit="ops", hint="By the background writer."),
    row("The pooler's side"),
    graph("Clients", ("active", pools("client_active_connections")), ("waiting", pools("client_waiting_connections")), stack=True),
    graph("Server connections", ("active", pools("server_active_connections")), ("idle", pools("server_idle_connections") + " + " + pools("server_used_connections")), stack=True),
    graph("Longest wait", ("longest", f"max(pgbouncer_pools_client_maxwait_seconds{{{POOL}}})"), unit="s"),
    graph("How long statements take", *((name, quantile(share, "pgweir_statement_duration_seconds")) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))), unit="s"),
]


def variable(name, label, query):
    return {
        "type": "query", "name": name, "label": label, "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query,
        "includeAll": True, "multi": True, "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "refresh": 2, "sort": 1,
    }  # fmt: skip


def dashboard(uid, title, description, panels, variables):
    placed, x, y, tallest = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        w, h = panel.pop("w"), panel.pop("h")
        if x + w > 24:
            x, y, tallest = 0, y + tallest, 0
        placed.append({"id": number, **panel, "gridPos": {"x": x, "y": y, "w": w, "h": h}})
        x, tallest = x + w, max(tallest, h)
    source = {"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus", "current": {}, "hide": 0}
    return {
        "uid": uid, "title": title, "description": description, "tags": ["pgweir", "postgresql"], "schemaVersion": 39, "version": 1, "editable": True,
        "graphTooltip": 1, "refresh": "5s", "time": {"from": "now-15m", "to": "now"}, "timezone": "browser", "links": [], "annotations": {"list": []},
        "templating": {"list": [source, *variables]}, "panels": placed,
    }  # fmt: skip


INSTANCE = variable("instance", "Pooler", "label_values(pgbouncer_up, instance)")
DATABASE = variable("database", "Database", 'label_values(pgbouncer_pools_client_active_connections{instance=~"$instance"}, database)')
USER = variable("user", "User", 'label_values(pgbouncer_pools_client_active_connections{instance=~"$instance",database=~"$database"}, user)')
CLUSTER_NAME = variable("cluster", "Cluster", 'label_values(pgweir_cluster_epoch{instance=~"$instance"}, cluster)')
POSTGRES = variable("postgres", "PostgreSQL", "label_values(pg_up, instance)")


def files():
    """The text of each file."""
    made = {
        "pgweir.json": dashboard("pgweir", "pgweir", "Many clients over few PostgreSQL connections.", PGWEIR, [INSTANCE, DATABASE, USER]),
        "clusters.json": dashboard(
            "pgweir-clusters", "pgweir: clusters", "Primaries, standbys and failovers as pgweir sees them.", CLUSTERS, [INSTANCE, CLUSTER_NAME]
        ),
        "cache.json": dashboard("pgweir-cache", "pgweir: query cache", "What the query cache gives, saves and drops.", CACHE, [INSTANCE, DATABASE, USER]),
        "benchmark.json": dashboard(
            "pgweir-benchmark", "pgweir: benchmark", "What a pooler changes at PostgreSQL, beside what it sees itself.", BENCHMARK, [INSTANCE, POSTGRES, DATABASE, USER]
        ),
    }
    return {FOLDER / name: json.dumps(value, indent=1, ensure_ascii=False) + "\n" for name, value in made.items()}


def main():
    """Writes, or checks."""
    texts = files()
    if "--check" in sys.argv[1:]:
        stale = [path.name for path, text in texts.items() if not path.exists() or path.read_text() != text]
        sys.exit(f"not what {Path(__file__).name} writes: {', '.join(stale)}" if stale else 0)
    for path, text in texts.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
