"""Which node a client's transactions run on, and what is counted of it, with real streaming replication."""

import urllib.request

from harness.machine import eventually, free_port

from test_cluster_reads import reading  # noqa: F401: a fixture
from test_clusters import clustered, node_states, nodes, port_of, shown  # noqa: F401: fixtures


def at_node(pooler, node, *columns):
    """Numbers of a node's row in SHOW NODES."""
    row = pooler.show("NODES", node=node)[0]
    return [int(row[column]) for column in columns]


def test_reads_of_each_node_are_counted(nodes, reading):  # noqa: F811
    """SHOW NODES and /metrics have what a standby was sent; reads that fall back to the primary are counted with the reason."""
    two, port = nodes(2), free_port()
    pooler = reading(two, options={"lag_limit_ms": 600}, http_listen=f"127.0.0.1:{port}", http_anonymous="all")

    def metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.read().decode()

    with pooler.raw(database="app_prefer") as session:
        assert at_node(pooler, "m2", "reads") == [0]
        session.query("begin")
        session.query("select 1")
        assert at_node(pooler, "m2", "sv_active", "reads") == [1, 1]
        session.query("commit")
        session.query("select 1")
        eventually(lambda: at_node(pooler, "m2", "sv_active", "sv_idle", "cl_waiting", "reads") == [0, 1, 0, 2], "both are over")
        assert 'pgweir_node_reads_total{cluster="main",node="m2"} 2\n' in metrics()
        assert 'pgweir_node_idle_connections{cluster="main",node="m2"} 1\n' in metrics()
        pooler.admin("DETACH NODE main.m2")
        assert port_of(session) == two.primary.port
        assert at_node(pooler, "m1", "reads") == [1]
        assert 'pgweir_reads_fell_back_total{cluster="main",reason="no_standby"} 1\n' in metrics()
        pooler.admin("ATTACH NODE main.m2")
        two.all[1].sql("select pg_wal_replay_pause()")
        two.primary.sql("insert into changes values ('x', 1)")
        eventually(lambda: at_node(pooler, "m2", "share") == [0], "it is behind")
        assert port_of(session) == two.primary.port
        assert (shown(pooler)["fell_back_no_standby"], shown(pooler)["fell_back_lag"]) == ("1", "1")
        assert 'pgweir_reads_fell_back_total{cluster="main",reason="lag"} 1\n' in metrics()
